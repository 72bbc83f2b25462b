"""Ticket pools of one process: who may be in flight, how many at once, who waits for how long."""

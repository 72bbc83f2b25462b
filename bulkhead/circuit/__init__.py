"""The circuit breaker: pure state.

What belongs here: trip rules, epochs, transitions. `now` is an argument. No lock, no clock, no I/O, no logging, no
user code: the resource that owns a circuit calls it under its lock and announces what changed after letting go of it.
An outcome only touches the epoch that admitted its call; an epoch that has ended ignores everything.
"""

"""How long a call may wait for a ticket, told before it stands in line. The line itself is tickets/waiting.py."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any

from bulkhead.refusals import UNKNOWN
from bulkhead.tables import ENFORCE

if TYPE_CHECKING:
    from bulkhead.tables import Tables


def patience(gate: Tables, tenant: str | None, answer: Any, *, in_loop: bool = False) -> float | None:
    """Seconds that this call waits; 0.0: none, but it stands in line, where others do; None: it is refused."""
    if answer == UNKNOWN or gate.mode != ENFORCE:
        return None
    seconds = gate.options.timeout
    if seconds and not (_can_wait(in_loop=in_loop) and _room(gate, tenant)):
        seconds = 0.0
    return seconds if seconds or gate.queue.lines else None


def _can_wait(*, in_loop: bool) -> bool:
    """A plain call must not stop the running loop of its thread; a coroutine needs a loop of asyncio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return not in_loop  # trio, or a coroutine driven by hand
    return in_loop


def _room(gate: Tables, tenant: str | None) -> bool:
    """May one more wait? max_waiting for each pool: the tenant's if it has a limit, else the resource's."""
    pool = gate.tenants.of(tenant) if gate.per_tenant else None
    limit = pool.limit if pool is not None and pool.limit != inf else gate.options.tickets
    most = limit if gate.options.max_waiting is None else gate.options.max_waiting
    return most is None or (gate.queue.length(tenant) if gate.per_tenant else len(gate.queue)) < most

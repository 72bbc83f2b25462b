"""What belongs to the web request that the current code serves, as long as it lasts: one dict for each request.

A middleware puts an empty dict into `current` when a request begins; all tasks and threads that the request starts with
a copy of its context share it. Whoever has something to remember for the request adds an entry:

None -> something true  the client has gone (a bool, or an object that knows)
tenant -> its cell      the memory cell that this request got first (bulkhead.memory)
OVER -> True            it has ended: copies of its context (tasks, timers, connections of a pool) outlive it, and must
                        keep nothing for it. Whoever adds an entry looks for this afterwards, and takes it out again

A `with tenant(…)` block has such a dict of its own (tenancy.py), for its cell; it ends in the same way.

A dict and nothing of our own, because every request pays for it: one that stayed empty says nothing, so it need not be
taken out of the context again. The core reads it; only middlewares set it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

Held = dict[str | None, Any]
OVER: Final = ""  # no tenant's id is empty

current: ContextVar[Held | None] = ContextVar("bulkhead_request", default=None)


def client_gone() -> bool:
    """Whether the client that the current code works for has gone: what is cancelled then is no failure.

    Asked when a guarded call was cancelled, never on the way of one that was not.
    """
    held = current.get()
    return held is not None and bool(held.get(None))


def end(held: Held) -> None:
    """It is over: nothing is held for it any more. Whether a request's client had gone can still be asked."""
    held[OVER] = True
    if len(held) > 1:
        for key in tuple(held):
            if key:
                held.pop(key, None)

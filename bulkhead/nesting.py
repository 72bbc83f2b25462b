"""Is the current code inside a guarded call of this resource already?

A nested call of the same identifier is part of the outer one: no second ticket, no second outcome. The mark is a list
`[identifier, outer mark, token]` in a ContextVar; emptying the list ends it, wherever a copy of the context still
shows it. A task or thread that was started inside has a copy of the context and is a call of its own: a context
variable's token works only in the context that made it, which tells the copies apart in C and costs nothing unless a
mark is found. A process that was forked inside is a call of its own too (a pool's worker would be unguarded for ever).
A bypass is such a mark without a permit.

Whoever sets a mark keeps it until it ends. One that nobody keeps any more was left behind by an exception that hit
between two instructions (of a signal handler, say); it counts for nothing, or this thread would be unguarded for ever.

Only hooks that can contain another guarded object set marks (SQLAlchemy's, `permit()`, decorators); every hook looks.
"""

from __future__ import annotations

import os
import sys
from contextvars import Context, ContextVar
from typing import Any

Mark = list[Any]
current: ContextVar[Mark | None] = ContextVar("bulkhead.inside", default=None)
getrefcount = getattr(sys, "getrefcount", lambda mark: sys.maxsize)  # noqa: ARG005  an interpreter without counts
bypassed: set[str] = set()
"""Identifiers that were ever bypassed: written in code, so few."""
os.register_at_fork(after_in_child=lambda: current.set(None))


def own(innermost: Mark | None) -> Mark | None:
    """`innermost`, if it was set in this very context and has not ended. The caller has it in one local name."""
    if not innermost or getrefcount(innermost) <= _ABANDONED:
        return None
    try:
        current.reset(innermost[2])
    except (LookupError, ValueError, RuntimeError):  # half made; another context's: a task or thread started inside
        return None
    innermost[2] = current.set(innermost)
    return innermost


def _abandoned() -> int:
    """References that `own` sees to a mark that only the context holds: measured, interpreters differ."""

    def counting(innermost: Mark | None) -> int:
        return getrefcount(innermost)

    current.set(["nothing", None])
    innermost = current.get()
    return counting(innermost)


_ABANDONED = Context().run(_abandoned)


def inside(identifier: str) -> bool:
    """Is this task or thread inside a guarded call, or a bypass, of that identifier?"""
    innermost = current.get()
    if not innermost:
        return False
    link = own(innermost)
    while link:
        if link[0] == identifier:
            return True
        link = link[1]
    return False


def may_be_inside(identifier: str) -> bool:
    """Can there be a mark of an identifier that nobody has used yet?"""
    return bool(current.get()) or identifier in bypassed  # an empty mark has ended


def mark(identifier: str) -> Mark:
    """Begin to be inside; end it with `unmark`."""
    outer = current.get()
    new: Mark = [identifier, own(outer)]
    new.append(current.set(new))
    return new


def unmark(ended: Mark) -> None:
    """End a mark. Works from any context (an async generator may be closed elsewhere)."""
    outer = ended[1] if ended else None
    seen_here = current.get() is ended
    ended.clear()
    if outer and seen_here:
        outer[2] = current.set(outer)

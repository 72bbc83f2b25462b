"""A ticket pool: the list of its free tickets.

`pop` takes one, `append` gives one back: single C calls, atomic with and without the GIL, so the hot path needs no
lock and no frame of ours. Everything else in this file runs on the slow path, under the lock of the resource.

A ticket that is lost (an exception raised by a signal handler between two instructions, an abandoned generator, a dead
thread) is noticed through a weak reference whose callback is `lost.append`, a C method again: nothing of ours runs at
the moment of the loss, so nothing can be interrupted there. `__del__` is no substitute: a second exception that lands
in it is swallowed, and the ticket with it. The next caller that finds the pool empty makes a replacement.

This file knows no lock, no clock and no circuit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import getweakrefs, ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.circuit.machine import Circuit

# A list that becomes empty frees its memory at each pop (measured: +18 ns a call), so a pool makes a few at a time.
AT_ONCE_PER_TENANT = 3
AT_ONCE_SHARED = 16


class Ticket:
    """The right to one call in flight.

    `since` holds (start, tenant, epochs) of that call where something measures it, else nothing. It is a list because
    `pop` and `remove` decide atomically who reports the call: the call that ends, or whoever finds that it has been
    hanging for too long. (A ticket of the pool that late tenants share keeps its holder there.)
    """

    __slots__ = ("__weakref__", "since")

    def __init__(self) -> None:
        self.since: list[tuple[float, str | None, Any]] = []


class Pool(list[Ticket]):
    """Free tickets of one tenant (or of the whole resource: tenant None).

    Invariant: `len(watch)` tickets exist; each is in this list, with a caller, or dead and noted in `lost`. They are
    at most `limit`, except after the limit was lowered: then the surplus is destroyed as it comes back.
    """

    __slots__ = ("circuit", "draining", "limit", "lost", "note", "tenant", "watch")

    def __init__(self, tenant: str | None, limit: float, circuit: Circuit | None = None) -> None:
        self.tenant = tenant
        self.limit = limit
        self.circuit = circuit
        self.watch: list[ref[Ticket]] = []
        self.lost: list[ref[Ticket]] = []
        self.note: Callable[[ref[Ticket]], None] = self.lost.append
        self.draining = False

    __hash__ = object.__hash__  # type: ignore[assignment]  # a list has none; this one is equal to itself only

    def __eq__(self, other: object) -> bool:
        return self is other

    def full(self) -> bool:
        """Is a refusal certain? Needs no lock; a False only means: look again under the lock."""
        # Looked at twice: without the GIL, `drain` may have begun before the first look and ended before `draining`.
        return not self and not self.lost and not self.draining and len(self.watch) >= self.limit and not self

    @property
    def in_use(self) -> int:
        """Tickets with callers."""
        return max(0, len(self.watch) - len(self) - len(self.lost))

    @property
    def owing(self) -> bool:
        """Was the limit lowered below the number of tickets that exist?"""
        return len(self.watch) > self.limit

    def fill(self, least: int = 1) -> None:
        """Forget the dead, destroy the surplus, and have `least` free tickets if the limit allows. Lock held.

        The lock is re-entrant: a signal handler or a finalizer of this thread may call the resource between any two
        lines here. So nothing relies on what was true a line before.
        """
        watch, lost = self.watch, self.lost
        self.draining = False
        for dead in tuple(lost) if lost else ():
            for known in (watch, lost):
                try:
                    known.remove(dead)
                except ValueError:  # an earlier call was interrupted between the two, or a nested one was faster
                    pass
        try:
            while len(watch) > self.limit:
                ticket = self.pop()
                watch.remove(getweakrefs(ticket)[0])
        except IndexError:
            return
        if len(self) >= least:
            return
        for _ in range(AT_ONCE_SHARED if self.tenant is None else least):
            if len(watch) >= self.limit:
                return
            ticket = Ticket()
            watch.append(ref(ticket, self.note))
            if len(watch) > self.limit:  # a nested call was here: this one is not handed out, and found in `lost`
                return
            self.append(ticket)

    def drain(self) -> bool:
        """Take every ticket out; True if all were in, else they are put back. Lock held.

        A caller that found this pool before it was drained gets an IndexError and asks for the tenant's pool again.
        """
        if len(self) + len(self.lost) < len(self.watch):
            return False  # without a moment in which it is empty
        self.draining = True
        out: list[Ticket] = []
        try:
            while True:
                out.append(self.pop())
        except IndexError:
            pass
        if len(out) + len(self.lost) >= len(self.watch):
            return True
        self.extend(out)
        self.draining = False
        return False

    def __repr__(self) -> str:
        whose = "resource" if self.tenant is None else f"tenant {self.tenant!r}"
        return f"<Pool of {whose}: {self.in_use} of {self.limit} in use>"

"""Waiting for tickets: FIFO per tenant, round-robin over tenants, threads and event loops in one queue.

While anybody waits for a resource, every call of it queues, so nobody overtakes. The right to hand out is itself a
ticket: it is never waited for and cannot be lost; whoever has it serves for all, and looks again if others came by.
A tenant at its cap is not looked at until one of its own tickets comes back. The queue knows its waiters weakly, so
one that is gone is gone; a permit that was granted to it is passed on. A lost ticket rings no bell, so each waiter
also looks by itself twice a second.

No loop stands directly in a block that holds a lock: since 3.12 the jump back is outside of what `with` protects, and
an exception of a signal handler there would keep the lock for ever.

Waiting is measured in real time: it is a bound on the caller's patience, not a rule of the circuit.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from collections import OrderedDict, deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from bulkhead.tickets.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from bulkhead.outcomes import Site

LOOK_AGAIN = 0.5  # seconds


class Owner(Protocol):
    """What the queue needs from its resource."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Re-entrant."""
        ...

    def attempt(self, tenant: str | None, site: Site) -> Any:
        """A permit (a tuple), "tenant" or "resource" (the limit that is reached), or seconds (the circuit is open)."""

    def special(self) -> None:
        """Let no call pass without a question."""

    def pass_on(self, permit: Any) -> None:
        """Give a permit back that nobody used."""


class Waiter:
    """One caller that waits. Whoever pops `claim` decides: granted, or gone."""

    __slots__ = ("__weakref__", "claim", "granted", "site", "tenant", "wake")

    def __init__(self, tenant: str | None, site: Site, wake: Callable[[], object]) -> None:
        self.tenant, self.site, self.wake = tenant, site, wake
        self.claim: list[None] = [None]
        self.granted: Any = None


class Place(ref[Waiter]):
    """A place in a line. `tenant` names the line, for a waiter that died in it."""

    __slots__ = ("tenant",)
    tenant: str | None


class Queue:
    """Everybody who waits for one resource."""

    __slots__ = ("_dirty", "_gone", "_owner", "_ready", "_turn", "lines")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.lines: dict[str | None, deque[Place]] = {}
        self._gone: list[Any] = []  # places whose waiters died in line: a line of these must not stay
        self._ready: OrderedDict[str | None, None] = OrderedDict()  # tenants to look at, in turn
        self._dirty = False
        self._turn = Pool(None, 1)
        self._turn.fill()

    def __len__(self) -> int:
        return sum(len(line) for line in list(self.lines.values()))

    def length(self, tenant: str | None) -> int:
        """Callers of one tenant that wait."""
        line = self.lines.get(tenant)
        return 0 if line is None else len(line)

    def wait(self, tenant: str | None, site: Site, seconds: float) -> Any:
        """Wait in a thread. What `attempt` said in the end, or None: the time is over."""
        bell = allocate_lock()
        bell.acquire()
        waiter = Waiter(tenant, site, bell.release)
        until = monotonic() + seconds
        try:
            self._join(waiter)
            while waiter.claim and (left := until - monotonic()) > 0:
                if bell.acquire(timeout=min(left, LOOK_AGAIN)):
                    break
                self.serve(tenant)
        except BaseException:
            self._abandon(waiter)
            raise
        return None if self._leave(waiter) else waiter.granted

    async def wait_async(self, tenant: str | None, site: Site, seconds: float) -> Any:
        """The same in an event loop of asyncio."""
        loop = asyncio.get_running_loop()
        bell = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(bell.set)

        waiter = Waiter(tenant, site, wake)
        until = monotonic() + seconds
        try:
            self._join(waiter)
            while waiter.claim and (left := until - monotonic()) > 0:
                timer = loop.call_later(min(left, LOOK_AGAIN), bell.set)
                try:
                    await bell.wait()
                finally:
                    timer.cancel()
                bell.clear()
                if waiter.claim:
                    self.serve(tenant)
        except BaseException:
            self._abandon(waiter)
            raise
        return None if self._leave(waiter) else waiter.granted

    def _join(self, waiter: Waiter) -> None:
        place = Place(waiter, self._gone.append)
        place.tenant = waiter.tenant
        with self._owner.lock:
            self._forget_gone()
            line = self.lines.get(waiter.tenant)
            if line is None:
                self.lines[waiter.tenant] = deque([place])
            else:
                line.append(place)
            self._owner.special()
        del place
        self.serve(waiter.tenant)

    def _forget_gone(self) -> None:
        """Take the places of waiters that died in line out of it. Lock held."""
        for place in tuple(self._gone):
            line = self.lines.get(place.tenant, deque())
            for places in (line, self._gone):
                try:
                    places.remove(place)
                except ValueError:
                    pass
            if not line:
                self.lines.pop(place.tenant, None)

    def _leave(self, waiter: Waiter) -> bool:
        """True if the waiter left without an answer."""
        try:
            waiter.claim.pop()
        except IndexError:
            return False
        with self._owner.lock:
            line = self.lines.get(waiter.tenant)
            if line is not None:
                try:
                    line.remove(ref(waiter))  # type: ignore[arg-type]  # references to one object are equal
                except ValueError:
                    pass
                if not line:
                    del self.lines[waiter.tenant]
        return True

    def _abandon(self, waiter: Waiter) -> None:
        if not self._leave(waiter):
            self._pass_on(waiter)

    def _pass_on(self, waiter: Waiter) -> None:
        permit, waiter.granted = waiter.granted, None
        if permit.__class__ is tuple:
            self._owner.pass_on(permit)

    def serve_all(self) -> None:
        """The circuit, a limit or a mode changed: look at everybody."""
        with self._owner.lock:
            tenants = list(self.lines)
        self.serve(*tenants)

    def serve(self, *tenants: str | None) -> None:
        """Hand out what is free. `tenants`: those that got a ticket back, or a waiter."""
        if tenants:
            with self._owner.lock:
                self._to_be_looked_at(tenants)
        self._dirty = True
        while self._dirty and self._ready:
            try:
                turn = self._turn.pop()
            except IndexError:
                if not self._turn.lost:
                    return  # somebody else, or this thread further down the stack: it will look again
                with self._owner.lock:
                    self._turn.fill()
                continue
            woken: list[Waiter] = []
            try:
                self._dirty = False
                self._hand_out(woken)
            finally:
                self._turn.append(turn)
            for waiter in woken:
                try:
                    waiter.wake()
                except RuntimeError:  # its event loop is closed
                    self._pass_on(waiter)

    def _to_be_looked_at(self, tenants: tuple[str | None, ...]) -> None:
        for tenant in tenants:
            if tenant in self.lines:
                self._ready[tenant] = None

    def _next(self) -> tuple[str | None, deque[Place] | None, Waiter | None]:
        """Whose turn it is: the tenant, its line, the first in it that is still there. Lock held, somebody ready."""
        tenant = next(iter(self._ready))
        line = self.lines.get(tenant)
        waiter = None
        while line and (waiter := line[0]()) is None:
            line.popleft()
        del self._ready[tenant]  # before the attempt: a ticket that comes back meanwhile puts it in again
        return tenant, line, waiter

    def _hand_out(self, woken: list[Waiter]) -> None:
        """Each step leaves a state that the next call can take up."""
        lock, lines, ready = self._owner.lock, self.lines, self._ready
        while True:
            with lock:
                if not ready:
                    return
                tenant, line, waiter = self._next()
                if waiter is None:
                    lines.pop(tenant, None)
                    continue
            answer = self._owner.attempt(tenant, waiter.site)
            if answer == "tenant":
                continue
            if answer == "resource":
                with lock:
                    ready[tenant] = None
                    ready.move_to_end(tenant, last=False)  # it stays the first
                return
            waiter.granted = answer
            try:
                waiter.claim.pop()
            except IndexError:
                self._pass_on(waiter)  # gone
            else:
                woken.append(waiter)
            with lock:
                if line and line[0]() is waiter:
                    line.popleft()
                if line:
                    ready[tenant] = None  # at the end: the others come first
                elif lines.get(tenant) is line:
                    del lines[tenant]

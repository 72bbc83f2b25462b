"""Permits and tickets that outlive one call frame: blocks, checked-out connections, streams.

Ending is synchronous, idempotent and safe from any thread, so no cancellation can lose a ticket; a holder that is
dropped on the floor gives everything back by itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bulkhead import nesting
from bulkhead.outcomes import DIRECT, Site

if TYPE_CHECKING:
    from types import TracebackType

    from bulkhead.entries import Permit
    from bulkhead.resources import Resource
    from bulkhead.tickets.pool import Pool, Ticket


class Session:
    """A permit that is ended later: `end()`, `fail(error)`, or once early `settle()`."""

    __slots__ = ("_permit", "_site", "_started")

    def __init__(self, permit: Permit, site: Site, started: float | None = None) -> None:
        self._permit: list[Permit] = [permit]  # whoever pops it ends it
        self._site, self._started = site, started

    def end(self) -> None:
        """The call ended well. Does nothing if it ended already."""
        try:
            ticket, give, shared, give_shared, _ = self._permit.pop()
        except IndexError:
            return
        give_shared(shared)
        give(ticket)

    def fail(self, error: BaseException) -> None:
        """The call ended with this error; what it counts as is decided here. Does nothing if it ended already."""
        try:
            ticket, _, shared, _, failed = self._permit.pop()
        except IndexError:
            return
        failed(ticket, shared, error, self._site, self._started)

    def settle(self, error: BaseException | None = None, *, tickets: bool = True) -> None:
        """The verdict is given now: success, or what `error` counts as. A later `fail` counts besides.

        The tickets stay out until `end()`; with tickets=False they are back, and only that later `fail` is left.
        """
        try:
            permit = self._permit.pop()
        except IndexError:
            return
        rest = permit[4](permit[0], permit[2], error, self._site, self._started, "tickets" if tickets else "epoch")
        self._permit.append(rest or permit)

    @property
    def ended(self) -> bool:
        """Is nothing left to be ended?"""
        return not self._permit

    def __repr__(self) -> str:
        return f"<Session {self._site.driver} {'ended' if self.ended else 'open'}>"


class Checkout:
    """A connection ticket of a tenant, from checkout to check-in."""

    __slots__ = ("__weakref__", "_pool", "_ticket")

    def __init__(self, pool: Pool | None, ticket: Ticket | None) -> None:
        self._pool = pool
        self._ticket = [] if ticket is None else [ticket]

    def end(self) -> None:
        """Give it back. Does nothing the second time."""
        try:
            ticket = self._ticket.pop()
        except IndexError:
            return
        if self._pool is not None:
            self._pool.append(ticket)

    def __repr__(self) -> str:
        return f"<Checkout of {self._pool!r}, {'held' if self._ticket else 'returned'}>"


class PermitContext:
    """What `resource.permit()` returns: one guarded block, in `with` or `async with`.

    With call_timeout (or half_open_resource_timeout, for a probe) an `async with` block is ended by TimeoutError; a
    plain block that lasts longer is only counted.
    """

    __slots__ = ("_gate", "_mark", "_session", "_timer")

    def __init__(self, gate: Resource) -> None:
        self._gate = gate
        self._session: Session | None = None
        self._mark: nesting.Mark | None = None
        self._timer: asyncio.Timeout | None = None

    def _enter(self, permit: Permit) -> None:
        self._session = Session(permit, DIRECT, self._gate.clock())
        self._mark = self._gate.mark()

    def _exit(self, error: BaseException | None) -> None:
        session, mark, self._session, self._mark = self._session, self._mark, None, None
        if session is None or mark is None:
            return
        nesting.unmark(mark)
        if error is None:
            session.end()
        else:
            session.fail(error)

    def _once(self) -> None:
        if self._session is not None:
            raise RuntimeError("this permit is in use; call resource.permit() for each block")

    def __enter__(self) -> None:
        self._once()
        if not nesting.inside(self._gate.identifier):
            self._enter(self._gate.begin(DIRECT))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit(error)

    async def __aenter__(self) -> None:
        self._once()
        gate = self._gate
        if nesting.inside(gate.identifier):
            return
        permit = await gate.abegin(DIRECT)
        self._enter(permit)
        if gate.limits_time and (limit := gate.time_limit(permit[0])) is not None:
            self._timer = asyncio.timeout(limit)
            await self._timer.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        timer, self._timer = self._timer, None
        try:
            if timer is not None:
                await timer.__aexit__(kind, error, traceback)
        except TimeoutError as late:
            self._exit(late)
            raise
        except BaseException as other:
            self._exit(other)
            raise
        self._exit(error)

    def __repr__(self) -> str:
        return f"<permit of {self._gate.identifier}>"

"""One request of the proxy's and its client: the body as it comes, and whether the client is still there.

A client that hangs up is seen where the body is read; once that is read to its end, by a task that does nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bulkhead.web.asgi_scope import Message, Receive, Scope, Send

_UNWATCHED: Final = 0.05
"""Seconds, at most twice that. A request that is done sooner needs nobody to watch whether its client is there."""


class ClientGone(Exception):
    """The client hung up."""


class Young:
    """Exchanges that nobody watches yet. One timer for all of them: one for each would be a twentieth of a request."""

    def __init__(self) -> None:
        self._exchanges: set[Exchange] = set()
        self._older: set[Exchange] = set()
        """Those of the last look. Without them a busy proxy would watch whatever begins shortly before a look."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: Exchange) -> None:
        """To be watched from the look after the next one on, if it is under way then."""
        self._exchanges.add(exchange)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_UNWATCHED, self._look)

    def discard(self, exchange: Exchange) -> None:
        """It is over."""
        self._exchanges.discard(exchange)
        self._older.discard(exchange)

    def _look(self) -> None:
        grown, self._older, self._exchanges, self._timer = self._older, self._exchanges, set(), None
        if self._older:
            self._timer = asyncio.get_running_loop().call_later(_UNWATCHED, self._look)
        for one in grown:
            one.begin()


class Exchange:
    """One request and its client. `gone`: empty until it hung up; `begun`: the head of a response was sent."""

    __slots__ = ("_over", "_receive", "_send", "_task", "_watching", "_young", "begun", "gone", "scope")

    def __init__(self, scope: Scope, receive: Receive, send: Send, young: Young) -> None:
        self.scope, self._receive, self._send, self._young = scope, receive, send, young
        self.gone: list[bool] = []
        self.begun = self._over = False
        self._task: asyncio.Task[Any] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        """Send a part of the response. ClientGone where the server says that its client hung up."""
        try:
            await self._send(message)
        except OSError:
            self.gone.append(True)
            raise ClientGone from None

    async def unannounced(self) -> AsyncIterator[bytes] | None:
        """The body of a request that may have one without a header that says so, as in HTTP/2; None = it has none."""
        first: Message = await self._receive()
        ends = first["type"] == "http.request" and not first.get("body") and not first.get("more_body")
        return None if ends else self.body(first)

    async def body(self, first: Message | None = None) -> AsyncIterator[bytes]:
        """The request's body; `first` was read already. ClientGone if its client hangs up."""
        while True:
            message: Message = first or await self._receive()
            first = None
            if message["type"] == "http.disconnect":
                self.gone.append(True)
                raise ClientGone
            part = message.get("body")
            if part:
                yield part
            if not message.get("more_body"):
                self.watch(started=True)
                return

    def watch(self, *, started: bool) -> None:
        """Cancel the request when its client hangs up. `started`: its body is read, so `receive` is ours alone."""
        if self._task is None:
            self._task = asyncio.current_task()
        if started and not self._over:
            self._young.add(self)

    def begin(self) -> None:
        """Watch from now on."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone.append(True)
        if self._task is not None:
            self._task.cancel()

    def was_left(self) -> bool:
        """Whether the request was cancelled because of its client, and by nobody else."""
        return bool(self.gone) and self._task is not None and self._task.uncancel() == 0

    def end(self) -> None:
        """Nobody watches any more."""
        self._over = True
        self._young.discard(self)
        if self._watching is not None:
            self._watching.cancel()

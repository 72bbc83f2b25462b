"""The body of an ASGI request, charged to its tenant's memory cell before the application has it.

Over the quota the application's `receive` raises QuotaExceeded, and whatever it makes of that (FastAPI: a 400), the
client gets 503 and the connection is closed, as long as the response has not begun. Only made where `charge_bodies` is
on: a request without it has nothing of this on its way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from bulkhead.memory.sizes import real_size
from bulkhead.request import current as of_request
from bulkhead.web.bodies import Upload
from bulkhead.web.edge import MARK

if TYPE_CHECKING:
    from bulkhead.web.asgi_scope import App, Message, Receive, Scope, Send
    from bulkhead.web.edge import Plan

_LINGER_SECONDS: Final = 2.0
_LINGER_BYTES: Final = 2**24  # many clients read no answer before they have sent all: most get so far
_NOBODY: Final = "nobody reads this response: the request's body was over the quota"


async def with_charged_body(app: App, plan: Plan, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application for the request's tenant; the charges of the body end with it."""
    exchange = _Exchange(plan, scope, receive, send)
    try:
        exchange.expect()
        await app(scope, exchange.receive, exchange.send)
        await exchange.finish()
    except Exception:
        if not exchange.refused:
            raise
        await exchange.finish()
    finally:
        exchange.upload.end()


class _Exchange:
    """One request. Invariant: the client gets the application's head, or ours, and never parts of both."""

    __slots__ = (
        "_answered", "_begun", "_ended", "_held", "_plan", "_receive", "_scope", "_send", "_unsent", "upload",
    )  # fmt: skip

    def __init__(self, plan: Plan, scope: Scope, receive: Receive, send: Send) -> None:
        self._plan, self._scope, self._receive, self._send = plan, scope, receive, send
        self._held = of_request.get()
        self.upload = Upload(scope[MARK])
        self._begun = False  # the application's response
        self._answered = False  # with ours instead
        self._unsent: list[Message] = []  # of ours
        self._ended = False  # the client has sent its last part, or has gone, or waits to be told that it may send

    @property
    def refused(self) -> bool:
        """Is the response ours to give?"""
        return self.upload.over is not None and not self._begun

    def expect(self) -> None:
        """QuotaExceeded if the body says itself that it is over the quota."""
        headers = dict(self._scope["headers"])
        self._ended = b"expect" in headers
        self.upload.expect(headers.get(b"content-length"))
        self._ended = False

    async def receive(self) -> Message:
        """For the application."""
        if self._answered:
            return {"type": "http.disconnect"}
        self.upload.check()
        message = await self._receive()
        self._look(message)
        part = message.get("body")
        if part:
            self.upload.take(real_size(part))
        return message

    async def send(self, message: Message) -> None:
        """For the application."""
        if not self.refused:
            self._begun = self._begun or message["type"] == "http.response.start"
            await self._send(message)
            return
        await self._answer()
        if message.get("more_body"):
            raise OSError(_NOBODY)  # as servers do when the client is gone: what streams must come to its end

    async def finish(self) -> None:
        """The application is done: end the answer, if it is ours."""
        if not self.refused:
            return
        self.upload.end()
        try:
            await self._answer()
            await self._go_on()  # whoever began the answer was cancelled: a task that streams, by one that listens
            await self._linger()
            await self._send({"type": "http.response.body", "body": b""})
        except OSError:  # as servers raise it that follow version 2.4 of ASGI: the client has gone
            return

    async def _answer(self) -> None:
        """The whole answer, for the client; for the server its end is still to come."""
        if self._answered:
            return
        self._answered = True
        if self._held is not None:
            self._held[None] = True  # what is cancelled from here on has nobody who waits for it
        answer = self._plan.unavailable(self.upload.over, self._scope)
        headers = [*answer.raw_headers]
        if str(self._scope.get("http_version", "1.1")).startswith("1"):  # HTTP/2 has no such header
            headers.append((b"connection", b"close"))
        self._unsent = [
            {"type": "http.response.start", "status": answer.status, "headers": headers},
            {"type": "http.response.body", "body": answer.body, "more_body": True},
        ]
        await self._go_on()

    async def _go_on(self) -> None:
        """Servers wait before they send, so what was cancelled is still to be sent."""
        while self._unsent:
            await self._send(self._unsent[0])
            del self._unsent[0]

    async def _linger(self) -> None:
        """Read on for a moment, and keep nothing of it.

        A server that closes a socket with something unread in it makes TCP send a reset, which can overtake the answer.
        """
        left = _LINGER_BYTES
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while left > 0 and not self._ended:
                    message = await self._receive()
                    self._look(message)
                    left -= len(message.get("body") or b"")
        except (TimeoutError, RuntimeError):  # RuntimeError: the event loop is not asyncio's
            pass

    def _look(self, message: Message) -> None:
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            self._ended = True

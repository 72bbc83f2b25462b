"""A WebSocket under its limits: one request until it is accepted or refused, one WebSocket for as long as it lives.

It lives until either side closes it or the application is done with it. Who is not let in gets a response, where the
server can send one instead of the handshake, else a close.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bulkhead import request, tenancy
from bulkhead.sessions import Session
from bulkhead.web.asgi_scope import path_of, respond
from bulkhead.web.edge import MARK, known, permit
from bulkhead.web.limits import REQUEST, WEBSOCKET

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from bulkhead.request import Held
    from bulkhead.web.answers import Answer
    from bulkhead.web.asgi_scope import App, Message, Receive, Scope, Send
    from bulkhead.web.edge import Plan

TRY_AGAIN_LATER: Final = 1013  # the registry of close codes that RFC 6455 began
POLICY_VIOLATION: Final = 1008
_ANSWERS: Final = ("websocket.accept", "websocket.close", "websocket.http.response.start")


async def websocket(app: App, plan: Plan, scope: Scope, receive: Receive, send: Send) -> None:
    """One WebSocket, from connect to its end."""
    before, held_before = tenancy.current.get(), request.current.get()
    held: Held = {}
    handshake: Session | None = None
    whole: Session | None = None
    begun = False

    async def receiving() -> Message:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            held[None] = True
            _end(handshake, whole)
        return message

    def sending(message: Message) -> Awaitable[None]:
        nonlocal begun
        kind = message["type"]
        if kind in _ANSWERS:
            begun = True
            _end(handshake, None if kind == "websocket.accept" else whole)
        return send(message)

    try:
        if plan.public is not None and plan.public(path_of(scope)):
            scope[MARK] = None
        else:
            who = await plan.awhose(scope)
            if plan.requests is not None:
                handshake = Session(permit(plan.requests, who, REQUEST), REQUEST)
            if plan.websockets is not None:
                whole = Session(permit(plan.websockets, who, WEBSOCKET), WEBSOCKET)
            scope[MARK] = known(who)
            tenancy.current.set(known(who))
        request.current.set(held)
        await app(scope, receiving, sending)
    except BaseException as error:
        _fail(error, handshake, whole)
        answer = None if begun else plan.answer_to(error, scope)
        if answer is None:
            raise
        await _refuse(scope, send, answer)
    finally:
        _end(handshake, whole)
        tenancy.current.set(before)
        request.current.set(held_before)
        request.end(held)


def _end(*sessions: Session | None) -> None:
    for session in sessions:
        if session is not None:
            session.end()


def _fail(error: BaseException, *sessions: Session | None) -> None:
    for session in sessions:
        if session is not None:
            session.fail(error)


async def _refuse(scope: Scope, send: Send, answer: Answer) -> None:
    if "websocket.http.response" in (scope.get("extensions") or ()):
        await respond(send, "websocket.http", answer)
        return
    # Before the handshake is over a server makes 403 of any close; servers that tell the reason get the right one.
    code = TRY_AGAIN_LATER if answer.status == 503 else POLICY_VIOLATION
    await send({"type": "websocket.close", "code": code, "reason": answer.phrase})

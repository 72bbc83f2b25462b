"""TenancyMiddleware for ASGI: FastAPI and Starlette by add_middleware, any ASGI application by wrapping.

A pure ASGI middleware: the application runs in the task of the server, so what it sets, cancels and raises is where it
would be without us. The context that is set for a request holds for its background tasks and streaming body too.
Every request comes by here, so nothing is made for it but a dict, two lists and two partials: the permit is taken from
the resource's fast table as in an adapter, `receive` says when the client went, `send` when the head is ready.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from bulkhead import request, tenancy
from bulkhead.web.asgi_body import with_charged_body
from bulkhead.web.asgi_scope import ScopeReader, path_of, respond
from bulkhead.web.asgi_websocket import websocket
from bulkhead.web.edge import MARK, Edge, refuse_finished
from bulkhead.web.limits import REQUEST

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Unpack

    from bulkhead.entries import Permit
    from bulkhead.request import Held
    from bulkhead.web.asgi_scope import App, Message, Receive, Scope, Send
    from bulkhead.web.options import TenancyOptions

__all__ = ["TenancyMiddleware"]

current: Final = tenancy.current
of_request: Final = request.current
_FINISHED: Final = {
    "starlette.applications.Starlette": (
        "Write app.add_middleware(TenancyMiddleware, …), or Starlette(middleware=[Middleware(TenancyMiddleware, …)])"
    ),
    "django.core.handlers.asgi.ASGIHandler": ("Put 'bulkhead.web.django.TenancyMiddleware' in MIDDLEWARE"),
}
"""Applications that have to be told from inside, by the name of their class: nothing is imported to find them."""


class TenancyMiddleware:
    """Each request works for its tenant, and no tenant has more requests under way than it may.

    `app.add_middleware(TenancyMiddleware, source="header", max_concurrent_requests=20)`. Options are the fields of the
    section [tenancy] and `server_max_concurrent_requests`; without any the settings decide, and then it is off unless
    `enabled = true` stands there. ConfigurationError for wrong ones, and around a finished application, which would
    answer exceptions before they come here.

    A callable `source` is given the scope, and may be a coroutine function.
    """

    def __init__(self, app: App, **options: Unpack[TenancyOptions]) -> None:
        refuse_finished(app, _FINISHED)
        self.app = app
        self._edge = Edge(ScopeReader(), options, asynchronous=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: PLR0915  calls cost
        """One connection, or the lifespan, which passes untouched."""
        plan, kind = self._edge.plan, scope["type"]
        if kind != "http" or plan is None or MARK in scope:
            if kind == "websocket" and plan is not None and MARK not in scope:
                await websocket(self.app, plan, scope, receive, send)
            else:
                await self.app(scope, receive, send)
            return
        before, held_before = current.get(), of_request.get()
        held: Held = {}
        waiting: list[Permit | None] = [None]  # for the head, with its permit; empty once that is ready
        body: list[Permit | None] | None = None  # the same for the end of the body
        try:
            if plan.public is not None and plan.public(path_of(scope)):
                scope[MARK] = None
            else:
                who = found = None
                if plan.quick is not None:
                    wanted, known = plan.quick
                    for key, value in scope["headers"]:
                        if key == wanted:
                            if found is not None:  # twice: neither of the two
                                found = None
                                break
                            found = value
                    who = known.get(found)
                if who is None:
                    who = await plan.awhose(scope)
                current.set(who)
                if plan.requests is not None:
                    waiting[0] = plan.requests.begin(REQUEST)
                if who.__class__ is not str:  # nobody's, from here on
                    who = None
                    current.set(None)
                scope[MARK] = who
            of_request.set(held)
            app = self.app
            if plan.plain:
                sending = partial(_to_the_head, waiting, send)
            else:
                if plan.whole_body:
                    body = []
                    sending = partial(_to_the_body, waiting, body, send)
                else:
                    sending = partial(_to_the_head, waiting, send)
                if plan.charge_bodies and scope[MARK] is not None:
                    app = partial(with_charged_body, app, plan)
            await app(scope, partial(_receiving, receive, held), sending)
        except BaseException as error:
            answer = plan.answer_to(error, scope) if waiting else None
            _fail(waiting, error)
            _fail(body, error)
            if answer is None:
                raise
            await respond(send, "http", answer)
        finally:
            if waiting or body:  # the application sent nothing, or not all
                _give_back(waiting)
                _give_back(body)
            current.set(before)
            of_request.set(held_before)
            request.end(held)


async def _receiving(receive: Receive, held: Held) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        held[None] = True
    return message


def _to_the_head(waiting: list[Permit | None], send: Send, message: Message) -> Awaitable[None]:
    if waiting and message["type"] == "http.response.start":
        permit = waiting.pop()
        if permit is not None:  # as in _give_back
            ticket, give, shared, give_shared, _ = permit
            give_shared(shared)
            give(ticket)
    return send(message)


def _to_the_body(
    waiting: list[Permit | None], body: list[Permit | None], send: Send, message: Message
) -> Awaitable[None]:
    kind = message["type"]
    if waiting and kind == "http.response.start":
        body.append(waiting.pop())
    elif body and (kind == "http.response.pathsend" or (kind == "http.response.body" and not message.get("more_body"))):
        _give_back(body)
    return send(message)


def _give_back(held: list[Permit | None] | None) -> None:
    permit = held.pop() if held else None
    if permit is not None:
        ticket, give, shared, give_shared, _ = permit
        give_shared(shared)
        give(ticket)


def _fail(held: list[Permit | None] | None, error: BaseException) -> None:
    permit = held.pop() if held else None
    if permit is not None:
        permit[4](permit[0], permit[2], error, REQUEST, None)

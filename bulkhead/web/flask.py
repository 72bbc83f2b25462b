"""Flask: `init_app(app, …)`.

Header, subdomain and token are read around `app.wsgi_app`, before Flask does any work: who is not let in costs little.
The session and functions of the user's need Flask's request context, so there the tenant is found, and the permit
taken, by the first `before_request` function of the application: the session is open then, and `flask.request` is what
a callable source is given. What happens to the permit and to the tenant's context after that is the same.

Rejections become 503 in `app.handle_exception`, the last stop of whatever no error handler of the application's took:
views, hooks, opening and saving the session. So any error handler of the user's comes first, whatever class it is for,
and rejections inside other exceptions are found, which an error handler for a class would not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from flask import Flask, request, session

from bulkhead.errors import ConfigurationError
from bulkhead.tenancy import current
from bulkhead.web.edge import MARK, Edge, Visit
from bulkhead.web.wsgi_body import charge_body
from bulkhead.web.wsgi_environ import header_reader, path_of, respond
from bulkhead.web.wsgi_exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from flask import Response

    from bulkhead.web.answers import Answer
    from bulkhead.web.edge import Plan
    from bulkhead.web.options import TenancyOptions

__all__ = ["TenancyMiddleware", "init_app"]

_EXTENSION: Final = "bulkhead"
_INSIDE: Final = "bulkhead.exchange"  # in an environ: the exchange whose tenant is found in the request context


def init_app(app: Flask, **options: Unpack[TenancyOptions]) -> None:
    """Each request works for its tenant, and no tenant has more requests under way than it may.

    `init_app(app, source="session", max_concurrent_requests=20)`, once for an application and before its first
    request; before other middlewares are put around `app.wsgi_app`, if they shall be outside. Options are the fields
    of the section [tenancy] and `server_max_concurrent_requests`; without any the settings decide, and then it is off
    unless `enabled = true` stands there. ConfigurationError for wrong ones.

    A callable `source` is given `flask.request`, in the request context.
    """
    TenancyMiddleware(app, **options)


class TenancyMiddleware:
    """What `init_app` puts around `app.wsgi_app`, in front of `before_request` functions, behind error handlers."""

    def __init__(self, app: Flask, **options: Unpack[TenancyOptions]) -> None:
        if not isinstance(app, Flask):
            raise ConfigurationError(
                f"bulkhead.web.flask takes the Flask application itself, not {type(app).__name__}: init_app(app, …)"
            )
        if _EXTENSION in app.extensions:
            raise ConfigurationError("this application has a TenancyMiddleware: call init_app once")
        self._edge = Edge(_RequestReader(app), options)
        self._app = app
        self._inner: WSGIApplication = app.wsgi_app
        self._handle: Callable[..., Response] = app.handle_exception
        app.extensions[_EXTENSION] = self
        app.before_request_funcs.setdefault(None, []).insert(0, self._let_in)
        # Where Flask's documentation puts a middleware, and an extension that answers for the whole application.
        setattr(app, "wsgi_app", self)  # noqa: B010  a method
        setattr(app, "handle_exception", self._handle_exception)  # noqa: B010  the same

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """One request."""
        plan = self._edge.plan
        if plan is None or MARK in environ:
            return self._inner(environ, start_response)
        if plan.source.inside:
            environ[MARK] = None
            visit = Visit(None, None, whole_body=False)  # until it is known
            environ[_INSIDE] = exchange = Exchange(plan, visit, environ, start_response)
            return exchange.run(self._inner)
        try:
            visit = plan.admit(environ, path_of(environ))
        except Exception as error:  # TurnedAway; anything else is a fault
            answer = plan.answer_to(error, environ)
            if answer is None:
                raise
            return respond(answer, environ, start_response)
        environ[MARK] = visit.tenant
        return Exchange(plan, visit, environ, start_response).run(self._inner)

    def _let_in(self) -> Response | None:
        """The first `before_request` function: the way in for sources that need the request context."""
        exchange: Exchange | None = request.environ.pop(_INSIDE, None)
        if exchange is None:
            return None
        try:
            visit = exchange.plan.admit(request, path_of(request.environ))
        except Exception as error:
            answer = exchange.plan.answer_to(error, request)
            if answer is None:
                raise
            return self._response(answer)
        exchange.visit = visit
        request.environ[MARK] = visit.tenant
        current.set(visit.tenant)  # this is within a step of the exchange: it holds for the later ones, and no longer
        exchange.upload = upload = charge_body(exchange.plan, visit.tenant, request.environ)
        if upload is None or upload.over is None:
            return None
        return self._response(exchange.plan.unavailable(upload.over, request))

    def _handle_exception(self, *arguments: Any) -> Response:
        """`app.handle_exception(error)`; later versions of Flask put their context before the error."""
        plan: Plan | None = self._edge.plan
        answer = None if plan is None else plan.answer_to(arguments[-1], request)
        if answer is None:
            return self._handle(*arguments)
        finish = cast("Callable[..., Response]", self._app.finalize_request)
        return finish(*arguments[:-1], self._response(answer), from_error_handler=True)

    def _response(self, answer: Answer) -> Response:
        return self._app.response_class(answer.body, answer.status, [*answer.headers])


class _RequestReader:
    """How a request is read, be it an environ or Flask's."""

    def __init__(self, app: Flask) -> None:
        self._sessions = app.session_interface

    def header(self, name: str) -> Callable[[Any], str | None]:
        """See sources.Reader."""
        read = header_reader(name)
        return lambda request: read(getattr(request, "environ", request))

    def session(self, key: str) -> Callable[[Any], object]:
        """See sources.Reader."""

        def read(request: Any) -> object:  # noqa: ARG001  Flask keeps the session beside it
            if self._sessions.is_null_session(session):
                raise ConfigurationError(
                    'source = "session": this application has no session. Set app.secret_key, or the '
                    "session_interface of a session library"
                )
            return session.get(key)

        return read

"""TenancyMiddleware for any WSGI application; Flask and Django have files of their own.

The tenant is there while the application is called, around each step of its body, and in the body's `close()`. The
permit is held until `start_response` was called, or with hold = "body" until the body is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bulkhead.web.edge import MARK, Edge, refuse_finished
from bulkhead.web.wsgi_environ import EnvironReader, path_of, respond
from bulkhead.web.wsgi_exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from bulkhead.web.options import TenancyOptions

__all__ = ["TenancyMiddleware"]

_FINISHED: Final = {
    "flask.app.Flask": "Write bulkhead.web.flask.init_app(app, …)",
    "django.core.handlers.wsgi.WSGIHandler": "Put 'bulkhead.web.django.TenancyMiddleware' in MIDDLEWARE",
}
"""Applications that answer their exceptions themselves, by the name of their class: no framework is imported."""


class TenancyMiddleware:
    """Each request works for its tenant, and no tenant has more requests under way than it may.

    `application = TenancyMiddleware(application, source="header", max_concurrent_requests=20)`. Options are the fields
    of the section [tenancy] and `server_max_concurrent_requests`; without any the settings decide, and then it is off
    unless `enabled = true` stands there. ConfigurationError for wrong ones, and around a Flask or Django application.

    A callable `source` is given the environ. Limits hold for one process, however many threads it has; where a process
    serves one request at a time (gunicorn's sync worker) no limit of requests is ever reached.
    """

    def __init__(self, app: WSGIApplication, **options: Unpack[TenancyOptions]) -> None:
        refuse_finished(app, _FINISHED)
        self.app = app
        self._edge = Edge(EnvironReader(), options)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """One request."""
        plan = self._edge.plan
        if plan is None or MARK in environ:
            return self.app(environ, start_response)
        try:
            visit = plan.admit(environ, path_of(environ))
        except Exception as error:  # TurnedAway, and rejections that a source of the user's met
            answer = plan.answer_to(error, environ)
            if answer is None:
                raise
            return respond(answer, environ, start_response)
        environ[MARK] = visit.tenant
        return Exchange(plan, visit, environ, start_response).run(self.app)

"""Django: 'bulkhead.web.django.TenancyMiddleware' in MIDDLEWARE, after SessionMiddleware.

Options are the dict BULKHEAD_TENANCY of Django's settings, or without it the settings of Bulkhead. Where settings of
Django have a name instead of a function ("shop.tenants.of_request"), so may these.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.signals import got_request_exception
from django.http import Http404, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.utils.module_loading import import_string

from bulkhead.errors import ConfigurationError, rejection
from bulkhead.web.django_stay import Gone, Stay, in_its_own_task
from bulkhead.web.edge import MARK, Edge
from bulkhead.web.wsgi_environ import header_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.web.answers import Answer
    from bulkhead.web.edge import Plan

__all__ = ["TenancyMiddleware"]

SETTING: Final = "BULKHEAD_TENANCY"
_NAMED: Final = ("source", "max_concurrent_requests", "max_db_connections")  # may be functions, so names of functions
_ANSWERED: Final = (Http404, PermissionDenied, SuspiciousOperation, BadRequest, MultiPartParserError)
"""What Django has an answer for: a view that raises it has decided, whatever it met before."""
_ANSWER: Final = "bulkhead_answer"  # attribute of a request: what became of a rejection that was no view's


class TenancyMiddleware:
    """Each request works for its tenant, and no tenant has more requests under way than it may.

    `BULKHEAD_TENANCY = {"source": "session", "max_concurrent_requests": 20}`. Options are the fields of the section
    [tenancy] and `server_max_concurrent_requests`; without any the settings decide, and then it is off unless
    `enabled = true` stands there. ConfigurationError for wrong ones, when the server starts.

    A callable `source` is given the HttpRequest; under ASGI it may be a coroutine function.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        # Of asgiref: in Python 3.11 there is no other that knows Django's marks.
        self._asynchronous: bool = iscoroutinefunction(get_response)  # pyright: ignore[reportDeprecated]
        if self._asynchronous:
            markcoroutinefunction(self)
        self._edge = Edge(_RequestReader(), _options(), asynchronous=self._asynchronous)
        got_request_exception.connect(self._note)  # held weakly

    def __call__(self, request: Any) -> Any:
        """One request."""
        if self._asynchronous:
            return self._acall(request)
        plan = self._edge.plan
        if plan is None:
            return self.get_response(request)
        if _is_counted(request):
            return _told(request, self.get_response(request))
        try:
            visit = plan.admit(request, request.path_info)
        except Exception as error:  # noqa: BLE001  raised on, if there is no answer
            return _refusal(plan.answer_to(error, request), error)
        stay = Stay(plan, visit, request)
        try:
            response = None if _is_over(stay) else stay.steps.run(self.get_response, request)
        except BaseException as error:
            stay.end(error)
            raise
        return stay.until_closed(_told(request, _within_quota(stay, plan, request, response)))

    async def _acall(self, request: Any) -> Any:
        plan = self._edge.plan
        if plan is None:
            return await self.get_response(request)
        if _is_counted(request):
            return _told(request, await self.get_response(request))
        try:
            # A store of sessions and a function of the user's may wait for a database.
            admit = sync_to_async(plan.admit) if plan.source.inside else plan.aadmit
            visit = await admit(request, request.path_info)
        except Exception as error:  # noqa: BLE001  raised on, if there is no answer
            return _refusal(plan.answer_to(error, request), error)
        stay = Stay(plan, visit, request)
        stay.steps.held[None] = Gone()
        try:
            response = None
            if not _is_over(stay):
                response = await stay.steps.arun(in_its_own_task(self.get_response, request))
        except BaseException as error:
            try:
                if isinstance(error, asyncio.CancelledError):
                    # The view may be a plain function: then it goes on, in the thread of this request, and holds the
                    # permit as long.
                    await sync_to_async(_nothing)()
            finally:
                stay.end(error)
            raise
        response = _told(request, _within_quota(stay, plan, request, response))
        return stay.until_closed(response, asyncio.current_task())

    def process_exception(self, request: Any, exception: Exception) -> HttpResponse | None:
        """503 for a rejection of ours that a view raised, also inside Django's own database errors."""
        plan = None if isinstance(exception, _ANSWERED) else self._edge.plan
        answer = None if plan is None else plan.answer_to(exception, request)
        return None if answer is None else _response(answer)

    def _note(self, *, request: Any = None, **_: Any) -> None:
        """Middlewares between this and the view: Django answers what they raise before it gets here."""
        plan, error = self._edge.plan, sys.exc_info()[1]
        found = rejection(error)
        if plan is not None and request is not None and found is not None:
            setattr(request, _ANSWER, plan.unavailable(found, request))


def _nothing() -> None: ...


def _is_counted(request: Any) -> bool:
    """Has a middleware around this application let the request in? Then only exceptions are left to this one."""
    scope = getattr(request, "scope", None) or {}
    if MARK in scope:
        request.META[MARK] = scope[MARK]
    return MARK in request.META


def _told(request: Any, response: Any) -> Any:
    """The response, or 503 instead of the 500 that Django made of a rejection in a middleware."""
    answer: Answer | None = request.__dict__.pop(_ANSWER, None)
    return response if answer is None or response.status_code != 500 else _response(answer)


def _is_over(stay: Stay) -> bool:
    """Was the request's body over the quota?"""
    return stay.upload is not None and stay.upload.over is not None


def _within_quota(stay: Stay, plan: Plan, request: Any, response: Any) -> Any:
    """The response, or 503 whatever it is, if the request's body was over the quota. None: there is none yet."""
    if not _is_over(stay):
        return response
    if stay.body is not None and not hasattr(request, "scope"):  # WSGI: the connection cannot be closed from here
        stay.body.drop_the_rest(request.META.get("CONTENT_LENGTH"))
    instead = _response(plan.unavailable(None if stay.upload is None else stay.upload.over, request))
    # What was to be closed with the response. Closing it here would be the end of the request for Django.
    closers: list[Any] = getattr(instead, "_resource_closers", [])
    closers += getattr(response, "_resource_closers", [])
    return instead


def _refusal(answer: Answer | None, error: Exception) -> HttpResponse:
    """Raises `error`, which is being handled, where there is no answer to it."""
    if answer is None:
        raise error
    return _response(answer)


def _response(answer: Answer) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))
    # Django logs each 5xx as an error, and by default mails those to the ADMINS: a tenant over its limit is none.
    setattr(response, "_has_been_logged", True)  # noqa: B010  a mark of Django's
    return response


def _options() -> dict[str, Any]:
    """BULKHEAD_TENANCY of Django's settings."""
    given = getattr(settings, SETTING, None)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f'{SETTING} of Django\'s settings is a dict of options, such as {{"source": "session"}}'
        )
    return {name: _function(name, value) if name in _NAMED else value for name, value in given.items()}


def _function(option: str, value: Any) -> Any:
    """The function, if it is given by its name."""
    if not isinstance(value, str) or "." not in value:
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ConfigurationError(f"{SETTING}: {option} names a function that cannot be imported: {error}") from error


class _RequestReader:
    """How an HttpRequest is read."""

    def header(self, name: str) -> Callable[[Any], str | None]:
        """See sources.Reader."""
        if name.lower() == "host":
            return lambda request: request.get_host()  # as ALLOWED_HOSTS and USE_X_FORWARDED_HOST have it
        read = header_reader(name)
        return lambda request: read(request.META)

    def session(self, key: str) -> Callable[[Any], object]:
        """See sources.Reader."""

        def read(request: Any) -> object:
            session = getattr(request, "session", None)
            if session is None:
                raise ConfigurationError(
                    "source = \"session\": this request has no session. Put 'bulkhead.web.django.TenancyMiddleware' "
                    "after 'django.contrib.sessions.middleware.SessionMiddleware' in MIDDLEWARE"
                )
            return session.get(key)

        return read

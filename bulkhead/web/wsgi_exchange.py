"""One request inside a WSGI application, from the call of the application to `close()` of the body.

A WSGI server calls, iterates and closes, in one thread or several, and does other work in between. So the tenant is set
again around each step, and whatever ends first ends the visit: the head, the body's end, an exception.
The application's head is kept back until there is a part of the body: an exception before that can still become an
answer. PEP 3333 has exc_info for it, which some servers take for more headers instead of other ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bulkhead.web.steps import Steps
from bulkhead.web.wsgi_body import charge_body, close_after
from bulkhead.web.wsgi_environ import respond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from bulkhead.web.bodies import Upload
    from bulkhead.web.edge import Plan, Visit


class Exchange:
    """Runs the application, and is the iterable that the server gets from it.

    Invariant: once `run` raised, a list was returned or `close` was called, the visit is over, and so is `upload`.
    """

    __slots__ = (
        *("_begun", "_close", "_environ", "_head", "_iterating", "_parts", "_start", "_steps"),
        *("plan", "upload", "visit"),
    )

    def __init__(self, plan: Plan, visit: Visit, environ: WSGIEnvironment, start_response: StartResponse) -> None:
        self.plan, self.visit = plan, visit
        self.upload: Upload | None = None  # the charges of the request's body
        self._environ, self._start = environ, start_response
        self._steps = Steps(visit.tenant)
        self._head: tuple[str, list[tuple[str, str]]] | None = None  # what the application began with
        self._begun: Callable[[bytes], object] | None = None  # `write` of the server, once it has the head
        self._parts: Any = None  # the body, once it is there; its iterator, once it is asked for; None again at the end
        self._iterating = False
        self._close: Callable[[], object] | None = None

    def run(self, app: WSGIApplication) -> Iterable[bytes]:
        """Call the application. What is to be given to the server: its body, or this."""
        try:
            if self.plan.charge_bodies:
                self.upload = self._steps.run(charge_body, self.plan, self.visit.tenant, self._environ)
            self._check()
            body = self._steps.run(app, self._environ, self._start_response)
            self._parts, self._close = body, getattr(body, "close", None)
            self._check()
            if type(body) in (list, tuple) and not self.plan.whole_body:
                self._begin()
                self._end()  # nothing is left to be run; and servers like to know a body's length
                return body
            if self._is_a_file(body):
                self._begin()
                return body
        except BaseException as error:
            answer = self._answer(error)
            if answer is None:
                raise
            if self._close is None:
                return answer
            self._parts, self._iterating = answer, False  # and the application's own body is still to be closed
        return self

    def __iter__(self) -> Exchange:
        return self

    def __next__(self) -> bytes:
        try:
            try:
                part: bytes | None = self._steps.run(self._next)
            except StopIteration:
                part = None
            self._check()
            self._begin()
        except BaseException as error:
            answer = self._answer(error)
            if answer is None:
                raise
            self._parts = None
            return b"".join(answer)
        if part is None:
            raise StopIteration
        return part

    def close(self) -> None:
        """Close the body; does nothing the second time."""
        close, self._close, self._parts = self._close, None, None
        try:
            if close is not None:
                self._steps.run(close)
        finally:
            self._end()

    def _start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        try:
            if self._begun is not None:
                return self._start(status, headers, exc_info)  # raises it, as the head is gone
            if self._head is not None and not exc_info:
                raise AssertionError("start_response was called already")
        finally:
            exc_info = None  # PEP 3333: it would be a circle with this frame
        self._head = status, headers
        self.visit.ready()
        return self._write

    def _begin(self) -> None:
        """Give the head to the server."""
        if self._begun is None and self._head is not None:
            self._begun = self._start(*self._head)

    def _write(self, data: bytes) -> object:
        self._check()
        self._begin()
        return None if self._begun is None else self._begun(data)

    def _next(self) -> bytes:
        if self._parts is None:
            raise StopIteration
        if not self._iterating:
            self._parts, self._iterating = iter(self._parts), True
        part: bytes = next(self._parts)
        return part

    def _answer(self, error: BaseException) -> list[bytes] | None:
        """Our answer to an exception; None: there is none, or it is too late for one, and it has to be raised on."""
        self._end(error)
        over = None if self.upload is None or self._begun is not None else self.upload.over
        if over is not None and isinstance(error, Exception):
            error = over
            close_after(self._environ, self._start)
        answer = None if self._begun is not None else self.plan.answer_to(error, self._environ)
        if answer is None:
            return None
        self._head = self.upload = None  # ours is there instead
        return respond(answer, self._environ, self._start)

    def _check(self) -> None:
        """QuotaExceeded if the request's body was, whatever the application answered to that: ours is there instead."""
        if self.upload is not None and self._begun is None:
            self.upload.check()

    def _end(self, error: BaseException | None = None) -> None:
        self.visit.end(error)
        if self.upload is not None:
            self.upload.end()
        self._steps.end()

    def _is_a_file(self, body: Any) -> bool:
        """Is it a real file that the server may send without reading it here? Then only its `close` is ours."""
        wrapper: Any = self._environ.get("wsgi.file_wrapper")
        if not (isinstance(wrapper, type) and issubclass(type(body), wrapper)):
            return False
        try:
            body.filelike.fileno()  # as wsgiref and gunicorn name it
            body.close = self.close
        except (AttributeError, OSError):
            return False
        return True

"""One request inside Django, from the next middleware to `close()` of its response; nothing here imports Django.

A body is charged as the view reads it. Under ASGI Django has collected it before that, beyond 2.5 MB in a file.

Under ASGI the rest of the request runs in a task of its own. Django's handler cancels a request whose client went, and
tells nobody why; a task that was cancelled from outside can be told from one that was cancelled by a time-out inside.
"""

from __future__ import annotations

import asyncio
import io
import weakref
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from bulkhead.web.edge import MARK
from bulkhead.web.steps import Steps
from bulkhead.web.wsgi_body import ChargedInput, begin_upload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextvars import Context

    from bulkhead.web.edge import Plan, Visit


class Stay:
    """One request that was let in, until its response is closed: its tenant's context, permit and body's charges."""

    __slots__ = ("_hold", "_visit", "body", "steps", "upload")

    def __init__(self, plan: Plan, visit: Visit, request: Any) -> None:
        self._visit, self._hold = visit, plan.whole_body
        self.steps = Steps(visit.tenant)
        self.upload = self.steps.run(begin_upload, plan, visit.tenant, request.META)
        self.body: ChargedInput | None = None
        if self.upload is not None and getattr(request, "_stream", None) is not None:
            self.body = request._stream = ChargedInput(request._stream, self.upload)  # noqa: SLF001  Django's body
        request.META[MARK] = visit.tenant
        scope = getattr(request, "scope", None)
        if scope is not None:
            scope[MARK] = visit.tenant

    def until_closed(self, response: Any, sender: asyncio.Task[Any] | None = None) -> Any:
        """The head is ready. What is left of the response, its parts and `close()`, belongs to the tenant too.

        `sender`: the task that sends it. When that ends, all is over: Django closes no response that it could not send.
        """
        self._visit.ready()
        parts: _Parts | None = None
        if response.streaming and not _is_file(response):
            parts = (_AsyncParts if response.is_async else _SyncParts)(self, response.streaming_content)
            response.streaming_content = parts
        if parts is not None or self._hold or self.upload is not None:
            response.close = _Close(self, response)
            if sender is not None:
                sender.add_done_callback(partial(self._over, None if parts is None else weakref.ref(parts)))
        else:
            self.steps.end()
        return response

    def _over(self, parts: weakref.ref[_Parts] | None, _: object) -> None:
        left = None if parts is None else parts()
        if left is not None:
            # A generator that was not used up is closed by the event loop, in the context in which it was dropped.
            self.steps.run(left.drop)
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """All is over, or `error` was raised: what is held goes back. Any number of times, any thread."""
        self._visit.end(error)
        if self.upload is not None:
            self.upload.end()
        self.steps.end()


class _Close:
    """`close()` of a response. It does not keep the response alive: one that is lost gives everything back at once."""

    __slots__ = ("_close", "_response", "_stay")

    def __init__(self, stay: Stay, response: Any) -> None:
        self._stay = stay
        self._response = weakref.ref(response)
        self._close = response.__dict__.get("close")  # somebody else's, instead of its class's

    def __call__(self) -> None:
        response = self._response()
        try:
            if self._close is not None:
                self._stay.steps.run(self._close)
            elif response is not None:
                self._stay.steps.run(type(response).close, response)
        finally:
            self._stay.end()


class _Parts:
    """The parts of a streaming response."""

    def __init__(self, stay: Stay, parts: Any) -> None:
        self._stay = stay
        self._parts: Any = parts

    def drop(self) -> None:
        self._parts = None


class _SyncParts(_Parts):
    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            part: bytes = self._stay.steps.run(next, self._parts)
        except StopIteration:
            raise
        except BaseException as error:
            self._stay.end(error)
            raise
        return part


class _AsyncParts(_Parts):
    def __aiter__(self) -> _AsyncParts:
        return self

    async def __anext__(self) -> bytes:
        self._stay.steps.held[None] = Gone()
        try:
            part: bytes = await self._stay.steps.arun(anext(self._parts))
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self._stay.end(error)
            raise
        return part


class Gone:
    """True once the present task is cancelled, by the handler that saw the client go."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        task = asyncio.current_task()
        self._task = None if task is None else weakref.ref(task)  # tasks that the request leaves behind keep this

    def __bool__(self) -> bool:
        task = None if self._task is None else self._task()
        return task is not None and task.cancelling() > 0


async def in_its_own_task(get_response: Callable[[Any], Coroutine[Any, Any, Any]], request: Any) -> Any:
    """As if it were awaited here: what it sets in the context is there afterwards."""
    context = copy_context()
    try:
        return await asyncio.create_task(get_response(request), context=context)
    finally:
        _take_over(context)


def _take_over(context: Context) -> None:
    for variable, value in context.items():
        try:
            same = variable.get() is value
        except LookupError:
            same = False
        if not same:
            variable.set(value)


def _is_file(response: Any) -> bool:
    """Is it a real file that the server may send without reading it here?"""
    try:
        response.file_to_stream.fileno()
    except (AttributeError, OSError, io.UnsupportedOperation):
        return False
    return True

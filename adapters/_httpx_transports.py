"""The transports that stand in front of a protected client's own, and the streams of their responses.

One request handed to a transport is one guarded call: a redirect or an authentication round trip is another one. The
verdict is given when the headers are there; the tickets come back when the response is closed. Shared by httpx and
httpx2: `adapters/httpx.py` and `adapters/httpx2.py` add the base classes of their library. Nothing here knows which
resource a request belongs to (`_httpx_choice.py`) or how clients are patched (`_httpx_clients.py`).

The two `handle` methods are written out, permit and all: each frame less is a microsecond in a real request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from bulkhead.adapter import Session, inside, unmark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from adapters._httpx_choice import Choice
    from adapters._patch import Driver
    from bulkhead.adapter import Permit, Resource, Site

TIME_LIMITS = ("connect", "read", "write", "pool")
TOO_MANY_REQUESTS = 429
SERVER_ERROR = 500

new: Callable[[Any], Any] = object.__new__


class Guarded:
    """What the plain and the asynchronous transport have in common. Other attributes are the inner transport's."""

    driver: ClassVar[Driver]
    site: ClassVar[Site]
    status_error: ClassVar[Any]  # HTTPStatusError of the library
    stream: ClassVar[Any]  # our stream class for its responses
    streams: ClassVar[type]  # and what they are of before
    leaf: ClassVar[type]  # its own transport, which contains no other client

    def __init__(self, inner: Any, choice: Choice) -> None:
        self.inner, self.choice, self.fixed = inner, choice, choice.fixed
        # A transport of somebody else's may call another guarded client: such a call is part of this one.
        self._contains = type(inner) is not self.leaf

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet, as in a copy being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.inner!r}, {self.choice!r}>"

    def _prepare(self, request: Any, resource: Resource, ticket: Any) -> Callable[[], None]:
        """Before a request that has a time limit, or that may contain other calls. Returns how to undo it."""
        before = _limit(request, resource.time_limit(ticket)) if resource.limits_time else None
        inside_now = resource.mark() if self._contains else None

        def undo() -> None:
            if inside_now is not None:
                unmark(inside_now)
            if before is not None:
                request.extensions.pop("timeout", None)
                request.extensions.update(before)

        return undo

    def _early_verdict(
        self, permit: Permit, resource: Resource, request: Any, response: Any, started: float | None
    ) -> Permit:
        """Say what the status means, where that is not settled by the tickets coming back. Returns what is left."""
        options, status, error = resource.options, response.status_code, None
        if options.open_circuit_server_errors and (status >= SERVER_ERROR or status == TOO_MANY_REQUESTS):
            error = self.status_error(f"HTTP {status}", request=request, response=response)
        rest = "epoch" if options.ticket_until == "headers" else "tickets"
        return permit[4](permit[0], permit[2], error, self.site, started, rest) or permit


class GuardedSync(Guarded):
    """In front of a transport of a plain client."""

    def __enter__(self) -> Any:
        self.inner.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.inner.__exit__(*raised)

    def close(self) -> None:
        self.inner.close()

    def handle_request(self, request: Any) -> Any:
        """One guarded call. Raises what the inner transport raises, or a rejection."""
        resource: Any = self.fixed or self.choice.of(request.url)
        if resource is None or self.driver.off:
            return self.inner.handle_request(request)
        if resource.late:
            resource = resource.now()
        if resource.marked and inside(resource.identifier):
            return self.inner.handle_request(request)
        ticket = None
        try:
            take, give, take_shared, give_shared, failed = resource.fast[resource.key()]
            ticket = take()
            permit = ticket, give, take_shared(), give_shared, failed
            early = resource.settles
        except LookupError:
            permit = resource.enter(self.site, ticket)
            early = True  # it may be a probe
        undo = self._prepare(request, resource, permit[0]) if resource.limits_time or self._contains else None
        try:
            response = self.inner.handle_request(request)
        except BaseException as error:
            permit[4](permit[0], permit[2], error, self.site, None)
            del ticket, permit
            raise
        finally:
            if undo is not None:
                undo()
        if early or response.status_code >= TOO_MANY_REQUESTS or resource.options.ticket_until == "headers":
            permit = self._early_verdict(permit, resource, request, response, None)
        stream = response.stream
        # A response that is complete already (mocks, caches) is never closed by anybody.
        if response.is_closed or not isinstance(stream, self.streams):
            permit[3](permit[2])
            permit[1](permit[0])
        else:
            tied = response.stream = new(self.stream)
            tied.inner, tied._permit = stream, [permit]  # noqa: SLF001  half the time of a call of the class
        return response


class GuardedAsync(Guarded):
    """In front of a transport of an asynchronous client."""

    async def __aenter__(self) -> Any:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self.inner.__aexit__(*raised)

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def handle_async_request(self, request: Any) -> Any:
        """One guarded call. Raises what the inner transport raises, or a rejection."""
        resource: Any = self.fixed or self.choice.of(request.url)
        if resource is None or self.driver.off:
            return await self.inner.handle_async_request(request)
        if resource.late:
            resource = resource.now()
        if resource.marked and inside(resource.identifier):
            return await self.inner.handle_async_request(request)
        ticket = None
        try:
            take, give, take_shared, give_shared, failed = resource.fast[resource.key()]
            ticket = take()
            permit = ticket, give, take_shared(), give_shared, failed
            early = resource.settles
        except LookupError:
            permit = await resource.aenter(self.site, ticket)
            early = True  # it may be a probe
        started = resource.clock()
        undo = self._prepare(request, resource, permit[0]) if resource.limits_time or self._contains else None
        try:
            response = await self.inner.handle_async_request(request)
        except BaseException as error:
            permit[4](permit[0], permit[2], error, self.site, started)
            del ticket, permit
            raise
        finally:
            if undo is not None:
                undo()
        if early or response.status_code >= TOO_MANY_REQUESTS or resource.options.ticket_until == "headers":
            permit = self._early_verdict(permit, resource, request, response, started)
        stream = response.stream
        # A response that is complete already (mocks, caches) is never closed by anybody.
        if response.is_closed or not isinstance(stream, self.streams):
            permit[3](permit[2])
            permit[1](permit[0])
        else:
            tied = response.stream = new(self.stream)
            tied.inner, tied._permit = stream, [permit]  # noqa: SLF001  half the time of a call of the class
        return response


def _limit(request: Any, seconds: float | None) -> dict[str, Any] | None:
    """Lower the time-outs of the request to this; returns what has to be put back when the headers are there.

    In place: httpcore reads the body by the very same mapping, and the body has the client's own time-outs again.
    """
    if seconds is None:
        return None
    extensions: dict[str, Any] = request.extensions
    own = extensions.get("timeout") or {}
    lowered = {name: seconds if own.get(name) is None else min(seconds, own[name]) for name in TIME_LIMITS}
    before = {"timeout": extensions["timeout"]} if "timeout" in extensions else {}
    extensions["timeout"] = {**own, **lowered}
    return before


class GuardedStream(Session):
    """The body of an open response. An error while it is read counts besides; `close` gives the tickets back."""

    __slots__ = ("inner",)
    inner: Any
    _site: Site
    _started = None  # an error in the body has no time limit

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self.inner
        except Exception as error:
            self.fail(error)
            raise

    def close(self) -> None:
        try:
            self.inner.close()
        finally:
            self.end()


class GuardedAsyncStream(Session):
    """The same of an asynchronous client. A cancelled read says nothing: the verdict was given at the headers."""

    __slots__ = ("inner",)
    inner: Any
    _site: Site
    _started = None  # an error in the body has no time limit

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Parts(self.inner.__aiter__(), self)

    async def aclose(self) -> None:
        try:
            await self.inner.aclose()
        finally:
            self.end()


class _Parts:
    """An iterator and no generator: one that is left in the middle needs no closing by the event loop."""

    __slots__ = ("_next", "_session")

    def __init__(self, inner: AsyncIterator[bytes], session: Session) -> None:
        self._next, self._session = inner.__anext__, session

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._next()
        except Exception as error:
            if not isinstance(error, StopAsyncIteration):
                self._session.fail(error)
            raise

"""httpx transports that send each request to its tenant's cell.

`httpx.Client(transport=CellTransport(router), base_url="http://cell.internal")`: requests for the placeholder host go
to the cell of the tenant in context, or of the request's extension `tenant`; all others pass through. Each cell is a
resource, `cell:<name>`, so a sick one fails fast for its own tenants. Nothing here decides where a tenant belongs
(router.py, maps.py) or what is made of a request (transport_requests.py).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

try:
    import httpx
except ImportError:  # pragma: no cover  an extra
    from bulkhead.errors import ConfigurationError

    raise ConfigurationError('CellTransport needs httpx: pip install "bulkhead-toolkit[httpx]"') from None

from bulkhead import tenancy
from bulkhead.adapter import Session
from bulkhead.cells.arguments import check, header_fault
from bulkhead.cells.places import MISDIRECTED, TENANT_HEADER, VERSION_HEADER, Places, wanted
from bulkhead.cells.transport_errors import HttpxCellUnavailableError, adapter
from bulkhead.cells.transport_requests import Place, elsewhere, limit_time, tenant_of, unlimit_time
from bulkhead.option_rows import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import TracebackType

    from bulkhead.cells.maps import CellMap
    from bulkhead.cells.router import CellRouter
    from bulkhead.cells.sources import Source

T = TypeVar("T")
_SITE = adapter.query


class _Routing(Generic[T]):
    """What both transports have in common. `inner` is the transport that talks to cells and other hosts."""

    inner: T

    def __init__(
        self,
        routes: CellRouter | CellMap | Source,
        inner: T,
        placeholder: str,
        tenant_header: str,
        options: dict[str, Any],
    ) -> None:
        check("tenant_header", header_fault(tenant_header))
        check("placeholder", _host_fault(placeholder))
        self.inner = inner
        self._placeholder = placeholder.lower()
        self._header = tenant_header.encode("ascii"), tenant_header.lower().encode("ascii")
        self._places = Places(routes, adapter, options, Place)

    @property
    def source(self) -> Source:
        """Where the map comes from."""
        return self._places.source

    def _place(self, now: CellMap, tenant: str, request: httpx.Request) -> Place:
        """The place of the tenant's cell; HttpxCellUnavailableError if that is down, or the tenant being moved."""
        cell, refused = now.route(tenant)
        if refused is not None:
            facts = (f"cell:{cell.name}", tenant, refused.retry_after, refused.reason)
            raise HttpxCellUnavailableError(*facts, request=request)
        return self._places.of(now, cell)

    def _answered(
        self,
        now: CellMap,
        place: Place,
        request: httpx.Request,
        inner: httpx.Request,
        response: httpx.Response,
        body: Any,
    ) -> httpx.Response:
        """The response as the caller gets it. `body`: a Body or AsyncBody; whoever closes it ends the call."""
        resource = place.resource
        if resource.limits_time:
            unlimit_time(inner, request)
        place.tell(request, response, self._places.stamp(now).decode())
        if resource.settles:
            body.settle()
        stream = response.stream
        if response.is_closed or not isinstance(stream, body.kind):  # nobody is going to close it
            body.end()
        else:
            body.inner = stream
            response.stream = body
        return response

    @staticmethod
    def _misdirected(now: CellMap, tenant: str, request: httpx.Request) -> HttpxCellUnavailableError:
        identifier = f"cell:{now.router.for_tenant(tenant).name}"
        return HttpxCellUnavailableError(identifier, tenant, now.retry_after.moving, "misdirected", request=request)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._places.source!r}>"


def _host_fault(name: object) -> str | None:
    """What is wrong with the host that stands for the cells; None = it is what `httpx.URL.host` may be."""
    with contextlib.suppress(httpx.InvalidURL):
        if isinstance(name, str) and name and httpx.URL(f"http://{name}/").host == name.lower():
            return None
    return f"{shown(name)} is no name of a host"


def _transport_fault(inner: object, method: str, client: str) -> str | None:
    if hasattr(inner, method):
        return None
    return f"{type(inner).__name__} is no transport of {client}: it has no {method}"


class CellTransport(_Routing[httpx.BaseTransport], httpx.BaseTransport):
    """For `httpx.Client`. `routes`: a CellRouter, a CellMap, or a source of maps.

    `placeholder`: the host that stands for the tenant's cell. `tenant_header` is set in requests to cells, whatever
    the caller gave there, and taken out of all others. `transport` does the work (default `httpx.HTTPTransport()`).
    `options`: those of each cell's resource. Raises HttpxCell…Error and what the inner transport raises.
    """

    def __init__(
        self,
        routes: CellRouter | CellMap | Source,
        *,
        placeholder: str = "cell.internal",
        tenant_header: str = TENANT_HEADER,
        transport: httpx.BaseTransport | None = None,
        **options: Any,
    ) -> None:
        inner = httpx.HTTPTransport() if transport is None else transport
        check("transport", _transport_fault(inner, "handle_request", "httpx.Client"))
        super().__init__(routes, inner, placeholder, tenant_header, options)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request to the tenant's cell; a second one where the first cell says 421 and a newer map is there."""
        if request.url.host != self._placeholder:
            return self.inner.handle_request(elsewhere(request, self._header))
        tenant, now = tenant_of(request), self._places.source.current
        response = self._ask(now, tenant, request)
        if response.status_code != MISDIRECTED:
            return response
        response.close()
        newer = self._places.source.refresh(wanted(now.stamp, response.headers.get(VERSION_HEADER)))
        if newer.stamp > now.stamp and isinstance(request.stream, httpx.ByteStream):
            response = self._ask(newer, tenant, request)
            if response.status_code != MISDIRECTED:
                return response
            response.close()
        raise self._misdirected(newer, tenant, request)

    def _ask(self, now: CellMap, tenant: str, request: httpx.Request) -> httpx.Response:
        place = self._place(now, tenant, request)
        inner = place.request(request, tenant, self._header)
        resource, before = place.resource, tenancy.current.get()
        if before != tenant:
            tenancy.current.set(tenant)
        try:
            permit = resource.begin(_SITE)
            try:
                if resource.limits_time:
                    limit_time(inner, resource.time_limit(permit[0]))
                response = self.inner.handle_request(inner)
            except BaseException as error:
                permit[4](permit[0], permit[2], error, _SITE, None)
                del permit
                raise
        finally:
            if before != tenant:
                tenancy.current.set(before)
        return self._answered(now, place, request, inner, response, Body(permit, _SITE))

    def close(self) -> None:
        """Close the inner transport."""
        self.inner.close()

    def __enter__(self) -> Self:
        self.inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.inner.__exit__(exc_type, exc_value, traceback)


class AsyncCellTransport(_Routing[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`."""

    def __init__(
        self,
        routes: CellRouter | CellMap | Source,
        *,
        placeholder: str = "cell.internal",
        tenant_header: str = TENANT_HEADER,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        inner = httpx.AsyncHTTPTransport() if transport is None else transport
        check("transport", _transport_fault(inner, "handle_async_request", "httpx.AsyncClient"))
        super().__init__(routes, inner, placeholder, tenant_header, options)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See CellTransport.handle_request."""
        if request.url.host != self._placeholder:
            return await self.inner.handle_async_request(elsewhere(request, self._header))
        tenant, now = tenant_of(request), self._places.source.current
        response = await self._ask(now, tenant, request)
        if response.status_code != MISDIRECTED:
            return response
        await response.aclose()
        newer = await self._places.source.arefresh(wanted(now.stamp, response.headers.get(VERSION_HEADER)))
        if newer.stamp > now.stamp and isinstance(request.stream, httpx.ByteStream):
            response = await self._ask(newer, tenant, request)
            if response.status_code != MISDIRECTED:
                return response
            await response.aclose()
        raise self._misdirected(newer, tenant, request)

    async def _ask(self, now: CellMap, tenant: str, request: httpx.Request) -> httpx.Response:
        place = self._place(now, tenant, request)
        inner = place.request(request, tenant, self._header)
        resource, before = place.resource, tenancy.current.get()
        if before != tenant:
            tenancy.current.set(tenant)
        try:
            permit = await resource.abegin(_SITE)
            started = resource.clock()
            try:
                if resource.limits_time:
                    limit_time(inner, resource.time_limit(permit[0]))
                response = await self.inner.handle_async_request(inner)
            except BaseException as error:
                permit[4](permit[0], permit[2], error, _SITE, started)
                del permit
                raise
        finally:
            if before != tenant:
                tenancy.current.set(before)
        return self._answered(now, place, request, inner, response, AsyncBody(permit, _SITE))

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self.inner.aclose()

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.inner.__aexit__(exc_type, exc_value, traceback)


class Body(Session, httpx.SyncByteStream):
    """The body of a response. An error while it is read counts besides; `close` gives the tickets back."""

    kind = httpx.SyncByteStream
    inner: httpx.SyncByteStream

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self.inner
        except Exception as error:
            self.fail(error)
            raise

    def close(self) -> None:
        """Close the response of the inner transport."""
        try:
            self.inner.close()
        finally:
            self.end()


class AsyncBody(Session, httpx.AsyncByteStream):
    """The same of an asynchronous client."""

    kind = httpx.AsyncByteStream
    inner: httpx.AsyncByteStream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Parts(self.inner.__aiter__(), self)

    async def aclose(self) -> None:
        """Close the response of the inner transport."""
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

"""From a request for the placeholder host to one for a cell: URL, headers, time-outs. It sends nothing.

The caller's request is never changed: it may be sent again, or by two tasks at once, for two tenants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import httpx

from bulkhead import tenancy
from bulkhead.cells.errors import UnsafePathError
from bulkhead.cells.paths import joined
from bulkhead.cells.places import KIND, local
from bulkhead.cells.transport_errors import HttpxCellTenantError, HttpxUnsafePathError

if TYPE_CHECKING:
    from bulkhead.adapter import Resource
    from bulkhead.cells.cell import Cell

EXTENSION: Final = "tenant"
REDIRECTS: Final = range(300, 400)
_new = object.__new__
_TIME_LIMITS: Final = ("connect", "read", "write", "pool")


def tenant_of(request: httpx.Request) -> str:
    """The tenant of the request's extension, else of the context. HttpxCellTenantError if there is none."""
    tenant: Any = request.extensions.get(EXTENSION)
    if tenant is None:
        tenant = tenancy.current.get()
    elif tenant.__class__ is not str or tenancy.text_fault(tenant) is not None:
        tenant = tenancy.tenant_text(tenant)
    if tenant is None:
        raise HttpxCellTenantError(f"{KIND}:(none)", None, request=request)
    if tenant[0] in " \t" or tenant[-1] in " \t":  # two tenants would be one for the cell
        raise HttpxCellTenantError(f"{KIND}:(none)", tenant, request=request)
    return tenant  # type: ignore[no-any-return]


class Place:
    """A cell, as requests to it need it."""

    __slots__ = ("_base", "_base_path", "_host", "_parsed", "cell", "resource")

    def __init__(self, cell: Cell, resource: Resource) -> None:
        self.cell, self.resource = cell, resource
        self._base = httpx.URL(cell.base)
        self._host: tuple[bytes, bytes, bytes] = b"Host", b"host", self._base.netloc
        self._base_path = self._base.path.rstrip("/")
        self._parsed = _parsed(self._base)

    def request(self, request: httpx.Request, tenant: str, header: tuple[bytes, bytes]) -> httpx.Request:
        """The same request for this cell. `header`: name of the tenant's, and that in lower case.

        HttpxUnsafePathError: its path could lead out of the cell.
        """
        url = request.url
        try:
            target = joined(self._base_path, url.raw_path.decode("ascii"))
        except UnsafePathError as error:
            raise HttpxUnsafePathError(*error.args, request=request) from None
        made = _new(httpx.Request)  # without another look at what was checked before
        made.__dict__ = {
            **request.__dict__,
            "url": self._url(target),
            "headers": self._headers(request.headers, url, (*header, tenant.encode())),
            "extensions": {**request.extensions},
        }
        return made

    def _headers(self, given: httpx.Headers, url: httpx.URL, tenant: tuple[bytes, bytes, bytes]) -> httpx.Headers:
        # Triples, as httpx keeps them for itself; to give it pairs instead takes longer than all the rest here.
        triples = getattr(given, "_list", None)
        if triples is None:
            triples = [(key, key.lower(), value) for key, value in given.raw]
        lower, made = tenant[1], [self._host]
        for one in triples:
            key = one[1]
            if key == b"host":
                if one[2] != url.netloc:
                    made[0] = one  # the caller's own
            elif key != lower:
                made.append(one)
        made.append(tenant)
        headers = httpx.Headers()
        if not hasattr(headers, "_list"):
            return httpx.Headers([(key, value) for key, _, value in made])
        headers._list = made  # noqa: SLF001
        return headers

    def _url(self, target: str) -> httpx.URL:
        if self._parsed is None:
            return self._base.copy_with(raw_path=target.encode())
        kind, before, fragment = self._parsed
        path, mark, query = target.partition("?")
        url: Any = _new(httpx.URL)
        parsed = tuple.__new__(kind, (*before, path, query if mark else None, fragment))
        url._uri_reference = parsed  # noqa: SLF001
        return cast("httpx.URL", url)

    def tell(self, request: httpx.Request, response: httpx.Response, version: str) -> None:
        """Say in the response who answered, and bring a redirect within the cell back to the placeholder."""
        response.extensions |= {"cell": self.cell.name, "cell_map_version": version}
        if response.status_code in REDIRECTS or response.status_code == httpx.codes.CREATED:
            location = response.headers.get("location")
            if location is not None:
                public = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
                response.headers["location"] = local(location, self.cell, public)


def _parsed(url: httpx.URL) -> tuple[type[tuple[Any, ...]], tuple[Any, ...], str | None] | None:
    """Of the parsed form that httpx keeps for itself: its class, what is before the path, the fragment.

    Parsing a URL anew takes as long as a tenth of a request. None if this httpx keeps something else.
    """
    reference: Any = getattr(url, "_uri_reference", None)
    if getattr(reference, "_fields", ())[-3:] != ("path", "query", "fragment"):
        return None
    return type(reference), tuple(reference)[:-3], reference.fragment


def elsewhere(request: httpx.Request, header: tuple[bytes, bytes]) -> httpx.Request:
    """A request for another host, as it is, but without the tenant: that is nobody else's business."""
    lower = header[1]
    headers = [one for one in request.headers.raw if one[0].lower() != lower]
    if len(headers) == len(request.headers.raw):
        return request
    return httpx.Request(
        request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
    )


def limit_time(request: httpx.Request, seconds: float | None) -> None:
    """Lower the request's time-outs to this. `unlimit_time` when the headers are there."""
    own = request.extensions.get("timeout") or {}
    if seconds is not None:
        lowered = {name: seconds if own.get(name) is None else min(seconds, own[name]) for name in _TIME_LIMITS}
        request.extensions["timeout"] = {**own, **lowered}


def unlimit_time(inner: httpx.Request, request: httpx.Request) -> None:
    """The body has the caller's own time-outs again; httpcore reads it by the very same mapping."""
    if "timeout" in request.extensions:
        inner.extensions["timeout"] = request.extensions["timeout"]
    else:
        inner.extensions.pop("timeout", None)

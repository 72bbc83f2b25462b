"""httpx clients behind tickets and a circuit: `httpx.Client(base_url=…, **bulkhead.options(name="payments"))`.

Each request that reaches a transport is one guarded call, so a redirect or a digest-authentication round trip is
another. The rejections are `httpx.TransportError`s, with `.request`. `httpx.get()` and its siblings build a client of
their own and take no options; `adapters.resolve` reaches them.
"""

from __future__ import annotations

from typing import Any

import httpx

import adapters._patch as patching
from adapters._httpx_clients import Clients, outcomes
from adapters._httpx_transports import GuardedAsync, GuardedAsyncStream, GuardedStream, GuardedSync
from bulkhead.adapter import Adapter, CircuitOpenError, Errors, ResourceBusyError, UnknownTenantError, protects

__all__ = [
    "HttpxCircuitOpenError",
    "HttpxResourceBusyError",
    "HttpxUnknownTenantError",
    "adapter",
    "apply",
    "driver",
]

driver = patching.Driver("httpx", "httpx")


class HttpxResourceBusyError(ResourceBusyError, httpx.TransportError):
    """No ticket was free for the request; nothing was sent."""

    def __init__(self, *facts: Any, request: httpx.Request | None = None) -> None:  # noqa: ARG002
        self._request = request


class HttpxCircuitOpenError(CircuitOpenError, httpx.TransportError):
    """The circuit is open; nothing was sent."""

    def __init__(self, *facts: Any, request: httpx.Request | None = None) -> None:  # noqa: ARG002
        self._request = request


class HttpxUnknownTenantError(UnknownTenantError, httpx.TransportError):
    """The request was made outside any tenant while that is refused; nothing was sent."""

    def __init__(self, *facts: Any, request: httpx.Request | None = None) -> None:  # noqa: ARG002
        self._request = request


adapter = Adapter(
    "httpx",
    "http",
    Errors(HttpxResourceBusyError, HttpxCircuitOpenError, HttpxUnknownTenantError),
    outcomes(httpx),
)


class ResponseStream(GuardedStream, httpx.SyncByteStream):
    """The body of a response of a protected client."""

    __slots__ = ()
    _site = adapter.query


class AsyncResponseStream(GuardedAsyncStream, httpx.AsyncByteStream):
    """The same of an asynchronous client."""

    __slots__ = ()
    _site = adapter.query


class Transport(GuardedSync, httpx.BaseTransport):
    """Stands in front of a transport of a protected client."""

    driver, site, status_error = driver, adapter.query, httpx.HTTPStatusError
    stream, streams, leaf = ResponseStream, httpx.SyncByteStream, httpx.HTTPTransport


class AsyncTransport(GuardedAsync, httpx.AsyncBaseTransport):
    """The same of an asynchronous client."""

    driver, site, status_error = driver, adapter.query, httpx.HTTPStatusError
    stream, streams, leaf = AsyncResponseStream, httpx.AsyncByteStream, httpx.AsyncHTTPTransport


clients = Clients(httpx, adapter, Transport, AsyncTransport)


def _patches() -> None:
    clients.patch()
    protects("httpx", clients.protect)


def apply() -> None:
    """Patch httpx. Idempotent; a version that is not supported is left alone."""
    driver.apply(_patches)


apply()

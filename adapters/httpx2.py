"""httpx2 clients behind tickets and a circuit: `httpx2.Client(base_url=…, **bulkhead.options(name="payments"))`.

Each request that reaches a transport is one guarded call, so a redirect or a digest-authentication round trip is
another. The rejections are `httpx2.TransportError`s, with `.request`. `httpx2.get()` and its siblings build a client of
their own and take no options; `adapters.resolve` reaches them.
"""

from __future__ import annotations

from typing import Any

import httpx2

import adapters._patch as patching
from adapters._httpx_clients import Clients, outcomes
from adapters._httpx_transports import GuardedAsync, GuardedAsyncStream, GuardedStream, GuardedSync
from bulkhead.adapter import Adapter, CircuitOpenError, Errors, ResourceBusyError, UnknownTenantError, protects

__all__ = [
    "Httpx2CircuitOpenError",
    "Httpx2ResourceBusyError",
    "Httpx2UnknownTenantError",
    "adapter",
    "apply",
    "driver",
]

driver = patching.Driver("httpx2", "httpx2")


class Httpx2ResourceBusyError(ResourceBusyError, httpx2.TransportError):
    """No ticket was free for the request; nothing was sent."""

    def __init__(self, *facts: Any, request: httpx2.Request | None = None) -> None:  # noqa: ARG002
        self._request = request


class Httpx2CircuitOpenError(CircuitOpenError, httpx2.TransportError):
    """The circuit is open; nothing was sent."""

    def __init__(self, *facts: Any, request: httpx2.Request | None = None) -> None:  # noqa: ARG002
        self._request = request


class Httpx2UnknownTenantError(UnknownTenantError, httpx2.TransportError):
    """The request was made outside any tenant while that is refused; nothing was sent."""

    def __init__(self, *facts: Any, request: httpx2.Request | None = None) -> None:  # noqa: ARG002
        self._request = request


adapter = Adapter(
    "httpx2",
    "http",
    Errors(Httpx2ResourceBusyError, Httpx2CircuitOpenError, Httpx2UnknownTenantError),
    outcomes(httpx2),
)


class ResponseStream(GuardedStream, httpx2.SyncByteStream):
    """The body of a response of a protected client."""

    __slots__ = ()
    _site = adapter.query


class AsyncResponseStream(GuardedAsyncStream, httpx2.AsyncByteStream):
    """The same of an asynchronous client."""

    __slots__ = ()
    _site = adapter.query


class Transport(GuardedSync, httpx2.BaseTransport):
    """Stands in front of a transport of a protected client."""

    driver, site, status_error = driver, adapter.query, httpx2.HTTPStatusError
    stream, streams, leaf = ResponseStream, httpx2.SyncByteStream, httpx2.HTTPTransport


class AsyncTransport(GuardedAsync, httpx2.AsyncBaseTransport):
    """The same of an asynchronous client."""

    driver, site, status_error = driver, adapter.query, httpx2.HTTPStatusError
    stream, streams, leaf = AsyncResponseStream, httpx2.AsyncByteStream, httpx2.AsyncHTTPTransport


clients = Clients(httpx2, adapter, Transport, AsyncTransport)


def _patches() -> None:
    clients.patch()
    protects("httpx2", clients.protect)


def apply() -> None:
    """Patch httpx2. Idempotent; a version that is not supported is left alone."""
    driver.apply(_patches)


apply()

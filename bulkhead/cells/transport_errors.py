"""What the httpx transports for cells raise: `httpx.TransportError`s with `.request`, and ours at the same time.

adapters/httpx.py has such classes too, but adapters stand on bulkhead and not the other way round.
"""

from __future__ import annotations

from typing import Any

import httpx

from bulkhead.adapter import Adapter, CircuitOpenError, Errors, Options, Outcome, ResourceBusyError, UnknownTenantError
from bulkhead.cells.errors import CellUnavailableError, UnsafePathError
from bulkhead.cells.places import KIND


class Native(httpx.TransportError):
    """A constructor that leaves the facts in `args`."""

    def __init__(self, *facts: Any, request: httpx.Request | None = None) -> None:  # noqa: ARG002
        self._request = request


class HttpxCellUnavailableError(CellUnavailableError, Native):
    """The tenant's cell cannot be asked now; nothing was done. `.reason` and `.retry_after` say more."""


class HttpxCellBusyError(ResourceBusyError, Native):
    """No ticket of the cell was free; nothing was sent."""


class HttpxCellCircuitOpenError(CircuitOpenError, Native):
    """The circuit of the cell is open; nothing was sent."""


class HttpxCellTenantError(UnknownTenantError, Native):
    """The request is for no tenant, or for one that no header can name; nothing was sent."""

    def __str__(self) -> str:
        if self.tenant is None:
            return (
                "a request to a cell was made outside any tenant; put the work under bulkhead.tenant(id), or give it "
                'extensions={"tenant": id}'
            )
        return "a request to a cell was made for a tenant whose id begins or ends with a blank, which no header keeps"


class HttpxUnsafePathError(Native, UnsafePathError):
    """The path of the request could lead out of the cell; nothing was sent."""


_SICK = (httpx.NetworkError, httpx.TimeoutException, httpx.ProxyError, httpx.RemoteProtocolError)


def _outcome(error: Exception, options: Options) -> Outcome:  # noqa: ARG001  the form of an outcome function
    """The network and the cell's protocol count; that our own pool is full does not."""
    sick = isinstance(error, _SICK) and not isinstance(error, httpx.PoolTimeout)
    return Outcome.FAILURE if sick else Outcome.IGNORED


adapter = Adapter("httpx", KIND, Errors(HttpxCellBusyError, HttpxCellCircuitOpenError, HttpxCellTenantError), _outcome)

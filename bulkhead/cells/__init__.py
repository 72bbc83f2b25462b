"""Cells: several full deployments of one application, and who finds the tenant's.

router = CellRouter([Cell("eu-1", "https://eu-1.example.com"), Cell("eu-2", "https://eu-2.example.com")])
client = httpx.Client(transport=CellTransport(router), base_url="http://cell.internal")

A router in code is for a start; in production its map is a file or a URL with a version (`FileSource`, `HttpSource`),
and `bulkhead cells` plans, checks and publishes maps. docs/cells.md is the guide. The transports and HttpSource need
the extra `httpx`, the proxy the extra `cells`; both are imported only with what needs them.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from bulkhead.cells.cell import Cell
from bulkhead.cells.errors import CellUnavailableError, MapUnavailableError, UnsafePathError
from bulkhead.cells.http_source import HttpSource
from bulkhead.cells.map_files import load
from bulkhead.cells.map_source import MapSource
from bulkhead.cells.maps import CellMap, MapVersion, Refusal, RetryAfter
from bulkhead.cells.planning import Difference, diff, promote, publish, raise_version, rebalance
from bulkhead.cells.router import CellRouter
from bulkhead.cells.sources import FileSource, FixedSource

if TYPE_CHECKING:
    from bulkhead.cells.proxy import CellProxy
    from bulkhead.cells.transport import AsyncCellTransport, CellTransport
    from bulkhead.cells.transport_errors import (
        HttpxCellBusyError,
        HttpxCellCircuitOpenError,
        HttpxCellTenantError,
        HttpxCellUnavailableError,
        HttpxUnsafePathError,
    )

__all__ = [
    "Cell",
    "CellMap",
    "CellRouter",
    "CellUnavailableError",
    "Difference",
    "FileSource",
    "FixedSource",
    "HttpSource",
    "MapSource",
    "MapUnavailableError",
    "MapVersion",
    "Refusal",
    "RetryAfter",
    "UnsafePathError",
    "diff",
    "load",
    "promote",
    "publish",
    "raise_version",
    "rebalance",
]
# `import *` takes what can be imported here.
if importlib.util.find_spec("httpx") is not None:
    __all__ += [
        "AsyncCellTransport",
        "CellTransport",
        "HttpxCellBusyError",
        "HttpxCellCircuitOpenError",
        "HttpxCellTenantError",
        "HttpxCellUnavailableError",
        "HttpxUnsafePathError",
    ]
if importlib.util.find_spec("aiohttp") is not None:
    __all__ += ["CellProxy"]

_HOMES = {
    "AsyncCellTransport": "transport",
    "CellTransport": "transport",
    "HttpxCellBusyError": "transport_errors",
    "HttpxCellCircuitOpenError": "transport_errors",
    "HttpxCellTenantError": "transport_errors",
    "HttpxCellUnavailableError": "transport_errors",
    "HttpxUnsafePathError": "transport_errors",
    "CellProxy": "proxy",
}


def __getattr__(name: str) -> Any:
    """What stands on a library of an extra, when it is asked for."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"bulkhead.cells.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

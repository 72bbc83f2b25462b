"""A pass-through proxy of a few lines and ours, in one process and on the same HTTP client and server. Run by routing.py.

python proxies.py CELL-URL PORT
"""

from __future__ import annotations

import sys
from typing import Any

import aiohttp
import uvicorn
from yarl import URL

from bulkhead.cells.cell import Cell
from bulkhead.cells.proxy import CellProxy
from bulkhead.cells.router import CellRouter
from bulkhead.console.cells_serving import settings

HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding"}


class Bare:
    """What every such proxy does, and nothing else: no tenant, no check, no limit; one cell."""

    def __init__(self, cell: str) -> None:
        self._cell, self._session = cell, None

    def _client(self) -> Any:
        if self._session is None:
            connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar, auto_decompress=False)
        return self._session

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        url = URL(self._cell + scope["raw_path"].decode(), encoded=True)
        async with self._client().request(scope["method"], url, headers=headers, allow_redirects=False) as response:
            passed = [(name.lower(), value) for name, value in response.raw_headers if name.lower() not in HOP_BY_HOP]
            await send({"type": "http.response.start", "status": response.status, "headers": passed})
            async for part in response.content.iter_any():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    cell, port = sys.argv[1:]
    apps = {"/bare": Bare(cell), "/ours": CellProxy(CellRouter([Cell("one", cell), Cell("two", cell)]))}

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        """The proxy of the request's path."""
        await apps[scope["path"]](scope, receive, send)

    uvicorn.run(serve, port=int(port), lifespan="off", **{**settings(), "timeout_keep_alive": 600})

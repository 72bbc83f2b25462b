"""Cells for tests: an application that says what it was asked, on a real uvicorn, and maps of such cells."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl

from web.asgi_servers import LONG, serving

from bulkhead.cells.cell import Cell
from bulkhead.cells.map_files import toml_text
from bulkhead.cells.maps import CellMap
from bulkhead.cells.router import CellRouter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from web.asgi_servers import Served

NAMES = ("a", "b")


class CellApp:
    """One cell. `tenants`: whom it served; `not_mine`: tenants that it answers 421, with that version of the map."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tenants: list[str] = []
        self.not_mine: dict[str, str] = {}
        self.reset()

    def reset(self) -> None:
        """Forget what was."""
        self.tenants.clear()
        self.not_mine.clear()
        self.asked = self.hung_up = self.waiting = self.received = self.sent = 0
        self.redirect_to = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.asked += 1
        headers = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]]
        tenant = dict(headers).get("x-tenant-id", "")
        if tenant in self.not_mine:
            version = self.not_mine[tenant].encode()
            await reply(send, 421, b"not mine", [(b"x-cell-map-version", version)] if version else [])
            return
        self.tenants.append(tenant)
        last = scope["path"].rsplit("/", 1)[-1]
        query = dict(parse_qsl(scope["query_string"].decode()))
        await getattr(self, f"on_{last}", self.on_who)(scope, receive, send, query, headers)

    async def on_who(self, scope: Any, receive: Any, send: Any, query: dict[str, str], headers: Any) -> None:
        """What was asked."""
        body = b"".join([part async for part in parts(receive)])
        path = scope["raw_path"].decode() + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        told = {"cell": self.name, "method": scope["method"], "path": path, "headers": headers, "body": body.decode()}
        extra = [
            (b"connection", b"x-hop"),
            (b"x-hop", b"1"),
            (b"keep-alive", b"timeout=5"),
            (b"set-cookie", b"a=1"),
            (b"set-cookie", b"b=2"),
        ]
        await reply(send, 200, json.dumps(told).encode(), extra if "hops" in query else [])

    async def on_redirect(self, scope: Any, receive: Any, send: Any, query: dict[str, str], headers: Any) -> None:
        """302 to `redirect_to`."""
        await reply(send, 302, b"", [(b"location", self.redirect_to.encode())])

    async def on_download(self, scope: Any, receive: Any, send: Any, query: dict[str, str], headers: Any) -> None:
        """So many chunks of 64 kB."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(int(query["chunks"])):
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            self.sent += 1
        await send({"type": "http.response.body", "body": b""})

    async def on_upload(self, scope: Any, receive: Any, send: Any, query: dict[str, str], headers: Any) -> None:
        """How much it was."""
        self.received = 0
        async for part in parts(receive):
            self.received += len(part)
        await reply(send, 200, str(self.received).encode())

    async def on_drip(self, scope: Any, receive: Any, send: Any, query: dict[str, str], headers: Any) -> None:
        """The head and a first chunk, then nothing until the client goes; then `hung_up` is counted."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await self.on_hang(scope, receive, send, query, headers)

    async def on_hang(self, scope: Any, receive: Any, send: Any, query: dict[str, str], headers: Any) -> None:
        """No answer, until the client goes; then `hung_up` is counted."""
        self.waiting += 1
        try:
            while (await asyncio.wait_for(receive(), LONG))["type"] != "http.disconnect":
                pass
        finally:
            self.waiting -= 1
        self.hung_up += 1

    async def on_broken(self, scope: Any, receive: Any, send: Any, query: dict[str, str], headers: Any) -> None:
        """Less than it promises."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
        await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def on_quote(self, scope: Any, receive: Any, send: Any, query: dict[str, str], headers: Any) -> None:
        """Reads a chunk, answers it, and so on: a conversation in one request."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async for part in parts(receive):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def parts(receive: Any) -> Any:
    """A request's body."""
    while True:
        message = await receive()
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


async def reply(send: Any, status: int, body: bytes, headers: Any = ()) -> None:
    """A whole answer."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


class Cells:
    """Running cells and the map of them, in a file too."""

    file: Path
    map: CellMap

    def __init__(self, apps: dict[str, CellApp], servers: dict[str, Served], base: str) -> None:
        self.apps, self.servers, self._base = apps, servers, base

    def reset(self, folder: Path) -> None:
        """As at the beginning, with the map's file in this folder."""
        for app in self.apps.values():
            app.reset()
        self.file = folder / "cells.toml"
        self.map = CellMap(CellRouter([Cell(name, one.url + self._base) for name, one in self.servers.items()]))
        self.publish()

    def publish(self, **changes: Any) -> CellMap:
        """A higher version with these changes, written to the file."""
        if changes:
            self.map = self.map.replace(**{"version": self.map.version + 1, **changes})
        self.file.write_text(toml_text(self.map), encoding="utf-8")
        return self.map

    def pinned(self, **pins: str) -> CellRouter:
        return self.map.router.replace(pins=pins)

    def state(self, name: str, state: Literal["active", "draining", "down"]) -> CellRouter:
        """The router with this cell in that state."""
        router = self.map.router
        cells = [
            Cell(one.name, one.url, one.slots, state=state if one.name == name else one.state) for one in router.cells
        ]
        return router.replace(cells=cells)

    def tenant(self, name: str, number: int = 0) -> str:
        """The n-th tenant of a cell."""
        found = (f"tenant-{index}" for index in range(10_000))
        mine = [one for one in found if self.map.router.for_tenant(one).name == name]
        return mine[number]


@contextmanager
def cells(*, base: str = "", names: tuple[str, ...] = NAMES) -> Iterator[Cells]:
    """These cells, each at `base` of a server of its own."""
    with ExitStack() as stack:
        apps = {name: CellApp(name) for name in names}
        servers = {name: stack.enter_context(serving(app, timeout_graceful_shutdown=1)) for name, app in apps.items()}
        yield Cells(apps, servers, base)

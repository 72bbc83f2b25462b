"""A request and its memory cell: the same to its end, and what is over its quota is a 503. On a real uvicorn."""

from __future__ import annotations

import asyncio
import json
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from web.asgi_servers import ask, client, of, serving
from web.uploads import tracked

import bulkhead
from bulkhead.memory import MemoryCell, cells, current_memory_cell
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
from fastapi import FastAPI
from starlette.background import BackgroundTask
from starlette.responses import StreamingResponse
from starlette.websockets import WebSocket  # noqa: TC002  FastAPI looks at annotations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import AsyncEventually

pytestmark = pytest.mark.anyio


async def test_a_request_keeps_the_cell_that_it_first_got_everywhere_in_it(aeventually: AsyncEventually) -> None:
    """Evicted meanwhile: an order for the next request."""
    seen: list[tuple[str, MemoryCell | None]] = []
    first: list[MemoryCell | None] = []
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, source="header")

    def look(where: str) -> None:
        seen.append((where, current_memory_cell()))

    async def parts() -> AsyncIterator[bytes]:
        look("streaming body")
        yield b"a"
        cells.evict("acme")
        look("the next step")
        yield b"b"

    @app.get("/")
    async def everywhere() -> StreamingResponse:
        first.append(current_memory_cell())
        assert cells.evict("acme") is first[-1]
        look("handler")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(look, "thread"))
            group.create_task(asyncio.to_thread(bulkhead.carry(look), "carried"))
        with bulkhead.tenant("other"):
            other = current_memory_cell()
            assert other is not first[-1]
            cells.evict("other")
            assert current_memory_cell() is other
        return StreamingResponse(parts(), background=BackgroundTask(look, "background task"))

    with serving(app) as server:
        async with client(server) as web:
            for _ in range(2):
                seen.clear()
                assert (await web.get("/", headers=of("acme"))).text == "ab"
                await aeventually(lambda: len(seen) == 6)
                assert {cell for _, cell in seen} == {first[-1]}, seen
    assert first[0] is not None
    assert first[1] is not first[0]
    assert current_memory_cell() is None


async def test_what_outlives_a_request_does_not_keep_its_cell(aeventually: AsyncEventually) -> None:
    """As timers, and connections that a request opened in a pool: each has a copy of its context."""
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, source="header")
    seen: list[weakref.ref[MemoryCell]] = []
    left: list[Any] = []

    def look() -> None:
        cell = current_memory_cell()
        assert cell is not None
        seen.append(weakref.ref(cell))

    async def goes_on(ask: asyncio.Event) -> None:
        await ask.wait()
        look()
        await asyncio.Event().wait()

    @app.get("/")
    async def begin() -> None:
        look()
        ask, loop = asyncio.Event(), asyncio.get_running_loop()
        left.extend((loop, ask, asyncio.create_task(goes_on(ask)), loop.call_later(3600, look)))

    with serving(app) as server:
        async with client(server) as web:
            assert (await web.get("/", headers=of("acme"))).status_code == 200
        await aeventually(lambda: cells.evict("acme") is None and seen[0]() is None)
        loop, ask, task, timer = left
        loop.call_soon_threadsafe(ask.set)
        await aeventually(lambda: len(seen) == 2)
        assert seen[1]() is cells.find("acme"), "the tenant's"
        await aeventually(lambda: cells.evict("acme") is None and seen[1]() is None)
        assert not task.done()
        assert not timer.cancelled()
        loop.call_soon_threadsafe(timer.cancel)
        loop.call_soon_threadsafe(task.cancel)
    left.clear()


async def test_what_a_request_left_in_the_cell_is_there_for_the_next() -> None:
    """Charges and scratch are the cell's, not the request's."""
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, source="header")
    kept: list[Any] = []

    @app.post("/")
    async def keep() -> None:
        cell = current_memory_cell()
        assert cell is not None
        kept.append(cell.charge(100))
        cell.scratch["page"] = b"x" * 50

    @app.get("/")
    async def look() -> list[Any]:
        cell = current_memory_cell()
        assert cell is not None
        return [len(cell.scratch["page"]), cell.tracked_bytes > 150]

    with serving(app) as server:
        async with client(server) as web:
            await web.post("/", headers=of("acme"))
            assert (await web.get("/", headers=of("acme"))).json() == [50, True]
            assert (await web.get("/", headers=of("other"))).status_code == 500
    kept.clear()  # FastAPI keeps its functions, and with them this, for good


async def test_a_handler_over_the_quota_is_a_503() -> None:
    cells.configure(quota_bytes=1000)
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, source="header", retry_after=3)

    @app.get("/{size}")
    async def use(size: int) -> int:
        cell = current_memory_cell()
        assert cell is not None
        with cell.charge(size):
            return cell.tracked_bytes

    with serving(app) as server:
        async with client(server) as web:
            assert (await web.get("/1000", headers=of("acme"))).json() == 1000
            refused = await web.get("/1001", headers=of("acme"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "3")
            assert refused.json()["reason"] == "quota"
            assert "connection" not in refused.headers  # nothing is unread
            for hidden in ("acme", "1001", "1000"):
                assert hidden not in refused.text
    assert tracked("acme") == 0


async def test_in_process_requests_leave_no_cell_behind_in_the_task_that_made_them() -> None:
    """A client without a server runs the application in its own task and context."""
    assert (await ask({"X-Tenant-ID": "acme"}, source="header")).tenant == "acme"
    with bulkhead.tenant("acme"):
        before = current_memory_cell()
        cells.evict("acme")
        assert current_memory_cell() is not before


async def test_a_websocket_keeps_its_cell_and_its_messages_are_not_charged() -> None:
    websockets = pytest.importorskip("websockets")
    cells.configure(quota_bytes=1000, charge_bodies=True)
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, source="header")

    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        first = current_memory_cell()
        assert first is not None
        for _ in range(2):
            size = len(await socket.receive_bytes())
            same = current_memory_cell() is first
            await socket.send_json([size, first.tracked_bytes, same])
            cells.evict("acme")
        await socket.close()

    app.add_api_websocket_route("/", echo)
    with serving(app) as server:
        async with websockets.connect(server.ws, additional_headers=of("acme")) as web:
            for _ in range(2):
                await web.send(b"a" * 2000)
                assert json.loads(await web.recv()) == [2000, 0, True]

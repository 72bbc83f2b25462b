"""Bodies over the quota where frameworks read them, or stand between: Starlette's middlewares, FastAPI's parameters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from web.asgi_servers import client, of, serving
from web.uploads import without_end

import bulkhead
from bulkhead.memory import cells, current_memory_cell
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
from fastapi import Body, FastAPI, File, Form, Request, UploadFile
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse, Response, StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from conftest import AsyncEventually
    from web.asgi_servers import Served

pytestmark = pytest.mark.anyio

QUOTA = 1_000_000
LARGE = 2 * QUOTA


class Passing(BaseHTTPMiddleware):
    """Lets the request pass, in a task group of its own."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        return response


class Reading(BaseHTTPMiddleware):
    """Reads the body before the application does."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        await request.body()
        response: Response = await call_next(request)
        return response


class Answering(BaseHTTPMiddleware):
    """Has an answer of its own for whatever is raised."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        try:
            response: Response = await call_next(request)
        except Exception:  # noqa: BLE001  that is its purpose
            return PlainTextResponse("sorry", 500)
        return response


def application(*inside: Any, outside: tuple[Any, ...] = ()) -> FastAPI:
    """`inside`: middlewares between ours and the application, `outside`: around ours."""
    app = FastAPI()
    for one in inside:
        app.add_middleware(one)
    app.add_middleware(TenancyMiddleware, source="header")
    for one in outside:
        app.add_middleware(one)

    @app.post("/body")
    async def body(request: Request) -> int:
        return len(await request.body())

    @app.post("/stream")
    async def stream(request: Request) -> int:
        return sum([len(part) async for part in request.stream()])

    @app.post("/json")
    async def json_(data: Annotated[list[int], Body()]) -> int:
        return len(data)

    @app.post("/form")
    async def form(a: Annotated[str, Form()]) -> int:
        return len(a)

    @app.post("/file")
    async def file(a: UploadFile) -> int:
        return len(await a.read())

    @app.post("/file-bytes")
    async def file_bytes(a: Annotated[bytes, File()]) -> int:
        return len(a)

    @app.post("/group")
    async def group(request: Request) -> int:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(request.body())
        return len(reading.result())

    @app.post("/caught-and-streamed")
    async def caught_and_streamed(request: Request) -> Response:
        try:
            await request.body()
        except bulkhead.QuotaExceeded:
            return StreamingResponse(on_and_on())
        return PlainTextResponse("all of it")

    @app.get("/charges")
    async def charges() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(charge(QUOTA + 1))

    async def charge(size: int) -> None:
        cell = current_memory_cell()
        assert cell is not None
        cell.charge(size)

    async def on_and_on() -> AsyncIterator[bytes]:
        while True:
            yield b"on and on\n"
            await asyncio.sleep(0)

    return app


LAYERS: dict[str, Any] = {
    "plain": ((), ()),
    "two inside": ((Passing, Passing), ()),
    "one that reads inside": ((Reading,), ()),
    "one that answers inside": ((Answering,), ()),
    "BaseHTTPMiddleware outside": ((), (Passing,)),
    "gzip": ((GZipMiddleware,), (GZipMiddleware,)),
}


PARSED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("/json", {"json": [1_000_000] * (QUOTA // 7)}, {"json": [1, 2, 3]}),
    ("/form", {"data": {"a": "b" * LARGE}}, {"data": {"a": "bcd"}}),
    ("/file", {"files": {"a": b"b" * LARGE}}, {"files": {"a": b"bcd"}}),
    ("/file-bytes", {"files": {"a": b"b" * LARGE}}, {"files": {"a": b"bcd"}}),
]
"""Handlers that get what FastAPI made of the body; a request that is over the quota, and one that is not."""


@pytest.fixture(params=LAYERS)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    inside, outside = LAYERS[request.param]
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    with serving(application(*inside, outside=outside)) as running:
        yield running


def tracked() -> int:
    """Bytes in use, of the cell that the tenant has now."""
    cell = cells.find("noisy")
    return 0 if cell is None else cell.tracked_bytes


async def everything_is_back(aeventually: AsyncEventually) -> None:
    await aeventually(lambda: tracked() == 0)


async def test_whoever_stands_between_the_client_is_refused_and_then_served(
    server: Served, aeventually: AsyncEventually
) -> None:
    for path in ("/body", "/stream", "/group", "/caught-and-streamed"):
        found = await asyncio.to_thread(without_end, server.port, path, "noisy")
        assert (found.status, found.headers["connection"]) == (503, "close"), (path, found)
        await everything_is_back(aeventually)
    async with client(server) as web:
        for path in ("/body", "/stream", "/group"):
            answer = await web.post(path, content=b"a" * 1000, headers=of("noisy"))
            assert (answer.status_code, answer.text) == (200, "1000")
        for path, large, small in PARSED:
            answer = await web.post(path, **large, headers=of("noisy"))
            assert answer.status_code == 503, (path, answer.text)
            answer = await web.post(path, **small, headers=of("noisy"))
            assert (answer.status_code, answer.text) == (200, "3"), path
    await everything_is_back(aeventually)


@pytest.mark.parametrize("server", ["plain", "two inside", "BaseHTTPMiddleware outside"], indirect=True)
async def test_a_charge_in_a_task_group_that_is_over_the_quota_is_a_503(
    server: Served, aeventually: AsyncEventually
) -> None:
    async with client(server) as web:
        found = await web.get("/charges", headers=of("noisy"))
    assert (found.status_code, found.json()["reason"]) == (503, "quota")
    await everything_is_back(aeventually)

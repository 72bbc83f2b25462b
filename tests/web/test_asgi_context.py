"""The tenant of a request is there wherever its code runs, and nowhere else."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from web.asgi_servers import Gate, client, of, serving

import bulkhead
from bulkhead import metrics
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
from fastapi import BackgroundTasks, Depends, FastAPI
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request  # noqa: TC002  FastAPI looks at annotations
from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from conftest import AsyncEventually

pytestmark = pytest.mark.anyio

now = bulkhead.current_tenant


async def test_the_tenant_is_there_in_all_code_of_a_request() -> None:
    seen: dict[str, str | None] = {}
    app = FastAPI()

    async def inner(request: Request, call_next: Any) -> Any:
        seen["middleware inside"] = now()
        return await call_next(request)

    async def outer(request: Request, call_next: Any) -> Any:
        seen["middleware outside"] = now()
        response = await call_next(request)
        seen["middleware outside, after"] = now()
        seen["scope"] = request.scope["bulkhead.tenant"]
        return response

    app.add_middleware(BaseHTTPMiddleware, dispatch=inner)
    app.add_middleware(TenancyMiddleware, max_concurrent_requests=1)
    app.add_middleware(BaseHTTPMiddleware, dispatch=outer)

    def dependency() -> Iterator[None]:
        seen["dependency"] = now()
        yield
        seen["dependency, after"] = now()

    def in_background() -> None:
        seen["background"] = now()

    async def parts() -> AsyncIterator[bytes]:
        for number in range(2):
            seen[f"part {number}"] = now()
            yield b"part"

    @app.get("/plain", dependencies=[Depends(dependency)])
    def plain(tasks: BackgroundTasks) -> None:
        seen["plain function"] = now()
        tasks.add_task(in_background)

    async def child() -> None:
        seen["task"] = now()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        seen["coroutine"] = now()
        await asyncio.create_task(child())
        seen["thread"] = await asyncio.to_thread(now)
        return StreamingResponse(parts())

    with serving(app) as server:
        async with client(server) as web:
            assert (await web.get("/plain", headers=of("acme"))).status_code == 200
            assert (await web.get("/stream", headers=of("acme"))).status_code == 200
    assert seen.pop("middleware outside") is None
    assert seen.pop("middleware outside, after") is None
    assert len(seen) == 11
    assert set(seen.values()) == {"acme"}


async def test_requests_of_two_tenants_in_one_loop_do_not_see_each_other(aeventually: AsyncEventually) -> None:
    """Known fault 60: a tenant in threading.local leaks between the tasks of one loop."""
    gate = Gate()
    app = FastAPI()

    @app.get("/")
    async def ask() -> list[str | None]:
        before = now()
        await gate.wait()
        await asyncio.sleep(0)
        return [before, now()]

    app.add_middleware(TenancyMiddleware, source="header")
    with serving(app) as server:
        async with client(server) as web:
            tenants = [f"tenant-{number % 5}" for number in range(20)]
            asking = [asyncio.create_task(web.get("/", headers=of(one))) for one in tenants]
            await aeventually(lambda: gate.waiting == len(tenants))
            gate.open()
            answers = [(await one).json() for one in asking]
    assert answers == [[one, one] for one in tenants]


async def test_work_given_to_threads_is_the_tenants_with_the_helpers_and_nobodys_without() -> None:
    """Known fault 61: a context variable is lost in run_in_executor and ThreadPoolExecutor."""
    guarded = bulkhead.resource("call61", tenant_tickets=5)
    pool = ThreadPoolExecutor(1)
    carrying = bulkhead.CarryingExecutor(pool)
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, source="header")

    def who() -> str | None:
        with guarded.permit():
            return now()

    @app.get("/")
    async def ask() -> dict[str, str | None]:
        loop = asyncio.get_running_loop()
        return {
            "lost": await loop.run_in_executor(pool, now),
            "carry": await loop.run_in_executor(pool, bulkhead.carry(who)),
            "executor": await asyncio.wrap_future(carrying.submit(who)),
            "to_thread": await asyncio.to_thread(who),
        }

    @app.get("/unknown")
    async def unknown() -> None:
        await asyncio.get_running_loop().run_in_executor(pool, who)

    with serving(app) as server, carrying:
        async with client(server) as web:
            told = (await web.get("/", headers=of("acme"))).json()
            assert told == {"lost": None, "carry": "acme", "executor": "acme", "to_thread": "acme"}
            bulkhead.unknown_tenant("reject")
            assert (await web.get("/unknown", headers=of("acme"))).status_code == 503
            assert guarded.totals()["rejections", "unknown_tenant"] == 1


async def test_ten_thousand_refused_tenants_add_no_series_and_stay_bounded() -> None:
    """Known fault 58: a tenant id as metric label. Ids are the client's choice: neither labels nor memory grow."""
    registry = CollectorRegistry()
    metrics.register(registry=registry)
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/wait":
            await gate.wait()
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    def scope(number: int, path: str = "/") -> dict[str, Any]:
        return {"type": "http", "path": path, "headers": [(b"x-tenant-id", b"tenant-%d" % number)]}

    gate = Gate()
    middleware = TenancyMiddleware(app, max_concurrent_requests=1, server_max_concurrent_requests=2, hold="body")
    held = [asyncio.create_task(middleware(scope(one, "/wait"), receive, send)) for one in (1, 2)]
    await asyncio.sleep(0)
    before = generate_latest(registry).decode()
    for number in range(10_000):
        await middleware(scope(number), receive, send)
    after = generate_latest(registry).decode()
    assert statuses.count(503) == 10_000
    series = [{line.rpartition(" ")[0] for line in text.splitlines()} for text in (before, after)]
    assert len(series[1] - series[0]) <= 10
    assert "tenant-" not in after
    resource = bulkhead.find("server:requests")
    assert resource is not None
    assert len(resource.tenants) <= resource.options.maximum_tenants
    gate.open()
    await asyncio.gather(*held)
    del held
    gc.collect()
    assert resource.in_use == 0


async def test_the_context_of_the_caller_is_as_it_was() -> None:
    """In-process clients (httpx.ASGITransport, test clients) run the application in their own task."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert now() == scope["bulkhead.tenant"] == "acme"
        if scope["path"] == "/raise":
            raise LookupError

    middleware = TenancyMiddleware(app, source="header")
    headers = [(b"x-tenant-id", b"acme")]
    with bulkhead.tenant("caller"):
        await middleware({"type": "http", "path": "/", "headers": headers}, _none, _none)
        assert now() == "caller"
        with pytest.raises(LookupError):
            await middleware({"type": "http", "path": "/raise", "headers": headers}, _none, _none)
        assert now() == "caller"


async def _none(_: Any = None) -> Any: ...

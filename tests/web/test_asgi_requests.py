"""How many requests of each tenant are under way: real FastAPI and Starlette applications on a real uvicorn."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from web.asgi_servers import Gate, client, in_use, of, serving

import bulkhead
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import Request  # noqa: TC002  FastAPI and tests look at annotations
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import AsyncEventually

pytestmark = pytest.mark.anyio


def fast_api(gate: Gate, **options: Any) -> Any:
    """`/wait` and `/thread` stand at the gate, `/` does not."""
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, **options)

    @app.get("/")
    async def hello() -> dict[str, str | None]:
        return {"tenant": bulkhead.current_tenant()}

    @app.get("/wait")
    async def wait() -> dict[str, str | None]:
        await gate.wait()
        return {"tenant": bulkhead.current_tenant()}

    @app.get("/thread")
    def thread() -> dict[str, str | None]:
        gate.wait_in_thread()
        return {"tenant": bulkhead.current_tenant()}

    return app


def starlette(gate: Gate, **options: Any) -> Starlette:
    """The same."""

    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse(str(bulkhead.current_tenant()))

    async def wait(request: Request) -> PlainTextResponse:
        await gate.wait()
        return await hello(request)

    def thread(_: Request) -> PlainTextResponse:
        gate.wait_in_thread()
        return PlainTextResponse(str(bulkhead.current_tenant()))

    app = Starlette(routes=[Route("/", hello), Route("/wait", wait), Route("/thread", thread)])
    app.add_middleware(TenancyMiddleware, **options)
    return app


@pytest.mark.parametrize(("make", "http"), [(fast_api, "h11"), (fast_api, "httptools"), (starlette, "httptools")])
@pytest.mark.parametrize("path", ["/wait", "/thread"])
async def test_a_tenant_over_its_limit_gets_503_at_once_and_the_others_are_served(
    make: Any, http: str, path: str, aeventually: AsyncEventually
) -> None:
    gate = Gate()
    with serving(make(gate, max_concurrent_requests=2), http=http) as server:
        async with client(server) as web:
            noisy = [asyncio.create_task(web.get(path, headers=of("noisy"))) for _ in range(2)]
            await aeventually(lambda: gate.waiting == 2)
            refused = await web.get("/", headers=of("noisy"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.headers["content-type"] == "application/problem+json"
            assert (await web.get("/", headers=of("quiet"))).status_code == 200
            assert in_use() == 2
            gate.open()
            assert [one.status_code for one in await asyncio.gather(*noisy)] == [200, 200]
            assert (await web.get("/", headers=of("noisy"))).status_code == 200
    assert gate.tenants == ["noisy", "noisy"]
    assert in_use() == 0


async def test_limits_may_differ_by_a_table_whose_default_holds_for_the_others(aeventually: AsyncEventually) -> None:
    gate = Gate()
    limits = {"gold": 2, "free": 0, "default": 1}
    with serving(fast_api(gate, max_concurrent_requests=limits)) as server:
        async with client(server) as web:
            tenants = ["gold", "gold", "plain", *["free"] * 5]
            held = [asyncio.create_task(web.get("/wait", headers=of(one))) for one in tenants]
            await aeventually(lambda: gate.waiting == len(held))
            answers = {one: (await web.get("/", headers=of(one))).status_code for one in ("gold", "plain", "other")}
            assert answers == {"gold": 503, "plain": 503, "other": 200}
            assert (await web.get("/", headers=of("free"))).status_code == 200  # 0 is no limit
            gate.open()
            assert {one.status_code for one in await asyncio.gather(*held)} == {200}


async def test_limits_may_come_from_a_function(aeventually: AsyncEventually) -> None:
    gate, asked = Gate(), []

    def limit(tenant: str) -> int:
        asked.append(tenant)
        return 1 if tenant == "small" else 0

    with serving(fast_api(gate, max_concurrent_requests=limit)) as server:
        async with client(server) as web:
            held = [asyncio.create_task(web.get("/wait", headers=of(one))) for one in ("small", "large", "large")]
            await aeventually(lambda: gate.waiting == 3)
            assert (await web.get("/", headers=of("small"))).status_code == 503
            assert (await web.get("/", headers=of("large"))).status_code == 200
            gate.open()
            await asyncio.gather(*held)
    assert set(asked) == {"small", "large"}


async def test_a_function_that_fails_limits_nothing_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def limit(tenant: str) -> int:
        raise LookupError(tenant)

    with serving(fast_api(Gate(), max_concurrent_requests=limit)) as server:
        async with client(server) as web:
            for tenant in ("acme-secret", "other"):
                assert (await web.get("/", headers=of(tenant))).status_code == 200
    told = [one.getMessage() for one in caplog.records if "LookupError" in one.getMessage()]
    assert len(told) == 1
    assert "acme-secret" not in told[0]


async def test_the_server_limit_comes_after_the_tenants_so_a_noisy_one_fills_only_its_share(
    aeventually: AsyncEventually,
) -> None:
    gate = Gate()
    app = fast_api(gate, max_concurrent_requests=1, server_max_concurrent_requests=2)
    with serving(app) as server:
        async with client(server) as web:
            held = [asyncio.create_task(web.get("/wait", headers=of("noisy")))]
            await aeventually(lambda: gate.waiting == 1)
            assert [(await web.get("/", headers=of("noisy"))).status_code for _ in range(5)] == [503] * 5
            held.append(asyncio.create_task(web.get("/wait", headers=of("second"))))
            await aeventually(lambda: gate.waiting == 2)
            assert (await web.get("/", headers=of("third"))).status_code == 503
            resource = bulkhead.find("server:requests")
            assert resource is not None
            assert resource.totals()["rejections", "tenant"] == 5
            assert resource.totals()["rejections", "resource"] == 1
            gate.open()
            await asyncio.gather(*held)
            assert (await web.get("/", headers=of("third"))).status_code == 200


@pytest.mark.parametrize("limit", [3, {"default": 1, "vip": 3}])
def test_a_tenant_limit_that_is_not_below_the_servers_is_warned_about(
    limit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "bulkhead"):
        TenancyMiddleware(_nothing, max_concurrent_requests=limit, server_max_concurrent_requests=3)
    assert "one tenant can take every place" in caplog.text


def test_a_tenant_limit_below_the_servers_is_fine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bulkhead"):
        TenancyMiddleware(_nothing, max_concurrent_requests={"default": 1}, server_max_concurrent_requests=3)
        TenancyMiddleware(_nothing, max_concurrent_requests=2, server_max_concurrent_requests=0)
    assert not caplog.records


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application."""


# ---- how long a permit is held


def streaming(gate: Gate, **options: Any) -> Any:
    """`/stream` sends one part, stands at the gate, sends another."""
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, **options)
    app.state.in_background = []

    async def parts() -> AsyncIterator[bytes]:
        yield f"begin {bulkhead.current_tenant()}\n".encode()
        await gate.wait()
        yield f"end {bulkhead.current_tenant()}\n".encode()

    async def afterwards() -> None:
        app.state.in_background.append(bulkhead.current_tenant())
        await gate.wait()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(parts())

    @app.get("/background")
    async def background() -> PlainTextResponse:
        from starlette.background import BackgroundTask  # noqa: PLC0415

        return PlainTextResponse("done", background=BackgroundTask(afterwards))

    @app.get("/")
    async def hello() -> str:
        return "hello"

    return app


@pytest.mark.parametrize(("hold", "held"), [("head", 0), ("body", 1)])
async def test_a_long_stream_holds_its_permit_to_the_head_or_to_the_end_of_the_body(
    hold: str, held: int, aeventually: AsyncEventually
) -> None:
    gate = Gate()
    with serving(streaming(gate, max_concurrent_requests=1, hold=hold)) as server:
        async with client(server) as web, web.stream("GET", "/stream", headers=of("acme")) as response:
            assert response.status_code == 200
            body = response.aiter_lines()
            assert await anext(body) == "begin acme"
            await aeventually(lambda: gate.waiting == 1)
            assert in_use() == held
            other = await web.get("/", headers=of("acme"))
            assert other.status_code == (503 if held else 200)
            gate.open()
            assert await anext(body) == "end acme"
            assert [line async for line in body] == []
            assert in_use() == 0
            assert (await web.get("/", headers=of("acme"))).status_code == 200


@pytest.mark.parametrize("hold", ["head", "body"])
async def test_background_tasks_work_for_the_tenant_and_hold_no_permit(hold: str, aeventually: AsyncEventually) -> None:
    gate = Gate()
    app = streaming(gate, max_concurrent_requests=1, hold=hold)
    with serving(app) as server:
        async with client(server) as web:
            assert (await web.get("/background", headers=of("acme"))).text == "done"
            await aeventually(lambda: gate.waiting == 1)
            assert in_use() == 0
            assert (await web.get("/", headers=of("acme"))).status_code == 200
            gate.open()
    assert app.state.in_background == ["acme"]


@pytest.mark.parametrize("hold", ["head", "body"])
async def test_a_client_that_goes_away_gives_everything_back(hold: str, aeventually: AsyncEventually) -> None:
    gate = Gate()
    with serving(streaming(gate, max_concurrent_requests=5, hold=hold)) as server:
        async with client(server) as web:
            for _ in range(5):
                async with web.stream("GET", "/stream", headers=of("acme")) as response:
                    lines = response.aiter_lines()  # kept: its end would be that of the connection
                    assert await anext(lines) == "begin acme"
                    await aeventually(lambda: gate.waiting == 1)
                await aeventually(lambda: gate.waiting == 0)  # cancelled, by the framework
            await aeventually(lambda: in_use() == 0)
            assert (await web.get("/", headers=of("acme"))).status_code == 200
    assert gate.cancelled == 5


async def test_a_handler_whose_client_went_holds_its_permit_until_it_ends(aeventually: AsyncEventually) -> None:
    """It still works for the tenant: a client that hangs up and asks again must not double its share."""
    gate = Gate()
    with serving(fast_api(gate, max_concurrent_requests=1)) as server:
        async with client(server) as web:
            asking = asyncio.create_task(web.get("/wait", headers=of("acme")))
            await aeventually(lambda: gate.waiting == 1)
            asking.cancel()
            await asyncio.wait([asking])
            assert (await web.get("/", headers=of("acme"))).status_code == 503
            gate.open()
            await aeventually(lambda: in_use() == 0)
            assert (await web.get("/", headers=of("acme"))).status_code == 200


async def test_a_server_that_stops_cancels_handlers_and_everything_comes_back(aeventually: AsyncEventually) -> None:
    gate = Gate()
    with serving(fast_api(gate, max_concurrent_requests=1), timeout_graceful_shutdown=0) as server:
        async with client(server) as web:
            asking = asyncio.create_task(web.get("/wait", headers=of("acme")))
            await aeventually(lambda: gate.waiting == 1)
            assert in_use() == 1
    (ended,) = await asyncio.gather(asking, return_exceptions=True)
    assert isinstance(ended, httpx.TransportError) or (isinstance(ended, httpx.Response) and ended.is_error)
    assert gate.cancelled == 1
    assert in_use() == 0


async def test_the_lifespan_passes_untouched() -> None:
    seen: list[str] = []

    async def lifespan(_: Any) -> AsyncIterator[dict[str, str]]:
        seen.append(f"up {bulkhead.current_tenant()}")
        yield {"key": "value"}
        seen.append("down")

    from contextlib import asynccontextmanager  # noqa: PLC0415

    app = FastAPI(lifespan=asynccontextmanager(lifespan))
    app.add_middleware(TenancyMiddleware, max_concurrent_requests=1, server_max_concurrent_requests=1)

    @app.get("/")
    async def hello(request: Request) -> str:
        return str(request.state.key)

    with serving(app) as server:
        async with client(server) as web:
            assert (await web.get("/", headers=of("acme"))).json() == "value"
        assert seen == ["up None"]
    assert seen == ["up None", "down"]


async def test_two_middlewares_in_one_stack_count_a_request_once() -> None:
    app = fast_api(Gate(), max_concurrent_requests=1)
    app.add_middleware(TenancyMiddleware, max_concurrent_requests=1)
    with serving(app) as server:
        async with client(server) as web:
            assert [(await web.get("/", headers=of("acme"))).status_code for _ in range(3)] == [200] * 3


async def test_when_all_is_over_nothing_is_held_whatever_happened_to_the_requests(aeventually: AsyncEventually) -> None:
    """Successes, refusals, errors and hang-ups in a jumble, of three tenants."""
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, max_concurrent_requests=4, server_max_concurrent_requests=8)

    @app.get("/{what}")
    async def any_of(what: int) -> Any:
        await asyncio.sleep(0)
        if what % 4 == 1:
            raise HTTPException(418)
        if what % 4 == 2:
            return StreamingResponse(iter([b"a" * 1000] * 50))
        return {"tenant": bulkhead.current_tenant()}

    async def ask(web: httpx.AsyncClient, number: int) -> int | None:
        try:
            async with asyncio.timeout(0.001 if number % 7 == 0 else 30):
                return (await web.get(f"/{number}", headers=of("abc"[number % 3]))).status_code
        except TimeoutError:
            return None

    with serving(app) as server:
        async with client(server, limits=httpx.Limits(max_connections=20)) as web:
            codes = await asyncio.gather(*(ask(web, number) for number in range(120)))
        await aeventually(lambda: in_use() == 0)
    assert {200, 418} <= set(codes) <= {200, 418, 503, None}
    resource = bulkhead.find("server:requests")
    assert resource is not None
    assert resource.top_tenants() == []

"""Rejections that the application raises, and cancellations by clients that went: on a real uvicorn."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from web.asgi_servers import Gate, client, in_use, of, serving

import bulkhead
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
from fastapi import FastAPI
from starlette.requests import Request  # noqa: TC002  FastAPI looks at annotations
from starlette.responses import JSONResponse, StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from conftest import AsyncEventually

pytestmark = pytest.mark.anyio

SECRET = "password=hunter2"


def busy() -> Exception:
    return bulkhead.ResourceBusyError("sql:payments", "acme", "tenant")


def circuit_open(seconds: float | None) -> Exception:
    error = bulkhead.CircuitOpenError("sql:payments", "acme", seconds)
    error.__cause__ = ConnectionError(SECRET)
    return error


def wrapped(error: Exception) -> Exception:
    """As a framework does it."""
    outer = RuntimeError(SECRET)
    outer.__cause__ = error
    return outer


def orig(error: Exception) -> Exception:
    """As SQLAlchemy does it."""
    outer = RuntimeError(SECRET)
    outer.orig = error  # type: ignore[attr-defined]
    return outer


RAISED: dict[str, tuple[Callable[[], Exception], str, str]] = {
    "busy": (busy, "1", "busy"),
    "open": (lambda: circuit_open(2.1), "3", "circuit_open"),
    "open, just over": (lambda: circuit_open(0.0), "1", "circuit_open"),
    "open by hand": (lambda: circuit_open(None), "1", "circuit_open"),
    "no tenant": (lambda: bulkhead.UnknownTenantError("sql:payments", None), "1", "unavailable"),
    "quota": (lambda: bulkhead.QuotaExceeded(SECRET), "1", "quota"),
    "a cause": (lambda: wrapped(busy()), "1", "busy"),
    "SQLAlchemy's": (lambda: orig(circuit_open(7)), "7", "circuit_open"),
    "a group": (lambda: ExceptionGroup(SECRET, [ValueError(SECRET), wrapped(circuit_open(1.5))]), "2", "circuit_open"),
}


def made(name: str) -> Exception:
    return RAISED[name][0]()


def app_that_raises(**options: Any) -> Any:
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, max_concurrent_requests=1, **options)

    @app.get("/raise/{name}")
    async def fail(name: str) -> None:
        raise made(name)

    @app.get("/late")
    async def late() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begin\n"
            raise busy()

        return StreamingResponse(parts())

    @app.get("/own")
    async def own() -> None:
        raise ValueError(SECRET)

    return app


async def test_a_rejection_becomes_503_with_the_seconds_to_wait_and_without_any_detail_of_ours() -> None:
    with serving(app_that_raises()) as server:
        async with client(server) as web:
            for name, (_, seconds, reason) in RAISED.items():
                answer = await web.get(f"/raise/{name}", headers=of("acme"))
                assert (answer.status_code, answer.headers["retry-after"]) == (503, seconds), name
                problem = answer.json()
                assert problem["type"] == "about:blank"
                assert (problem["title"], problem["status"]) == ("Service Unavailable", 503)
                assert (problem["reason"], problem["retry_after"]) == (reason, int(seconds)), name
                for hidden in ("hunter2", "acme", "payments", "Traceback", "Error"):
                    assert hidden not in answer.text
    assert in_use() == 0


async def test_retry_after_without_a_number_of_its_own_is_the_settings() -> None:
    with serving(app_that_raises(retry_after=4)) as server:
        async with client(server) as web:
            assert (await web.get("/raise/busy", headers=of("acme"))).headers["retry-after"] == "4"
            assert (await web.get("/raise/open", headers=of("acme"))).headers["retry-after"] == "3"


async def test_a_rejection_after_the_head_goes_on_as_it_was_and_gives_everything_back() -> None:
    with serving(app_that_raises()) as server:
        async with client(server) as web:
            with pytest.raises(httpx.RemoteProtocolError):  # the body breaks off
                await web.get("/late", headers=of("acme"))
            assert (await web.get("/raise/busy", headers=of("acme"))).status_code == 503
    assert in_use() == 0


async def test_other_errors_are_the_applications_and_give_everything_back() -> None:
    with serving(app_that_raises()) as server:
        async with client(server) as web:
            for _ in range(3):
                answer = await web.get("/own", headers=of("acme") | {"Connection": "close"})
                assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert in_use() == 0
    resource = bulkhead.find("server:requests")
    assert resource is not None
    assert resource.totals()["calls", "failure"] == 0  # what a handler raises says nothing about the limit


async def test_an_exception_handler_of_the_application_comes_first() -> None:
    app = app_that_raises()

    async def own(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, bulkhead.Rejected)
        return JSONResponse({"sorry": error.identifier}, 429)

    app.add_exception_handler(bulkhead.Rejected, own)
    with serving(app) as server:
        async with client(server) as web:
            answer = await web.get("/raise/busy", headers=of("acme"))
            assert (answer.status_code, answer.json()) == (429, {"sorry": "sql:payments"})


async def test_a_text_is_sent_where_the_client_would_rather_have_one() -> None:
    with serving(app_that_raises()) as server:
        async with client(server) as web:
            browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
            answer = await web.get("/raise/open", headers=of("acme") | {"Accept": browser})
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert answer.text == (
                "503 Service Unavailable\nWhat this request needs is not available. Try again in 3 seconds.\n"
            )
            problem = await web.get("/raise/open", headers=of("acme") | {"Accept": "application/json"})
            assert problem.headers["content-type"] == "application/problem+json"
            assert json.loads(problem.text)["detail"].endswith("Try again in 3 seconds.")


# ---- a client that goes is no failure of what the request was waiting for


def waiting_app(gate: Gate, dependency: bulkhead.Resource) -> Any:
    """`/stream` and `/poll` wait inside a guarded call, `/deadline` is cancelled there by a time-out of its own."""
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, max_concurrent_requests=5)

    async def parts() -> AsyncIterator[bytes]:
        yield b"begin\n"
        async with dependency.permit():
            await gate.wait()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(parts())

    @app.get("/poll")
    async def poll(request: Request) -> None:
        async def work() -> None:
            async with dependency.permit():
                await gate.wait()

        task = asyncio.create_task(work())  # a task of the request: it carries its context
        while not await request.is_disconnected():  # noqa: ASYNC110  the only way to ask
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])

    @app.get("/deadline")
    async def deadline() -> str:
        try:
            async with asyncio.timeout(0.05), dependency.permit():
                await gate.wait()
        except TimeoutError:
            return "late"
        return "in time"

    return app


@pytest.mark.parametrize("path", ["/stream", "/poll"])
async def test_a_cancellation_that_the_client_caused_is_no_failure(path: str, aeventually: AsyncEventually) -> None:
    gate = Gate()
    dependency = bulkhead.resource("slow", tickets=9, cancel_counts_after=0.001)
    with serving(waiting_app(gate, dependency)) as server:
        async with client(server) as web:

            async def ask() -> None:
                async with web.stream("GET", path, headers=of("acme")) as response:
                    async for _ in response.aiter_lines():
                        pass

            asking = asyncio.create_task(ask())
            await aeventually(lambda: gate.waiting == 1)
            await asyncio.sleep(0.01)  # longer than cancel_counts_after
            asking.cancel()
            await asyncio.wait([asking])
            await aeventually(lambda: gate.cancelled == 1 and not dependency.in_use)
            assert dependency.totals()["calls", "failure"] == 0
            assert dependency.totals()["calls", "ignored"] == 1


async def test_a_cancellation_that_the_client_did_not_cause_is_one(aeventually: AsyncEventually) -> None:
    gate = Gate()
    dependency = bulkhead.resource("slow", tickets=9, cancel_counts_after=0.001)
    with serving(waiting_app(gate, dependency)) as server:
        async with client(server) as web:
            assert (await web.get("/deadline", headers=of("acme"))).json() == "late"
    assert dependency.totals()["calls", "failure"] == 1


async def test_what_one_client_did_says_nothing_about_the_next_request_in_the_same_task() -> None:
    """In-process clients run requests one after another in one task, and one context."""
    dependency = bulkhead.resource("slow", tickets=9, cancel_counts_after=0.001)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/gone":
            assert (await receive())["type"] == "http.disconnect"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), dependency.permit():
                await asyncio.sleep(30)

    async def went() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None: ...

    middleware = TenancyMiddleware(app, missing="allow")
    for path, failures in (("/gone", 0), ("/", 1), ("/gone", 1), ("/", 2)):
        await middleware({"type": "http", "path": path, "headers": []}, went, send)
        assert dependency.totals()["calls", "failure"] == failures

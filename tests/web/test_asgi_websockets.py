"""WebSockets under their limits, with a real client, on each of uvicorn's implementations that are there."""

from __future__ import annotations

import asyncio
import importlib
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from web.asgi_servers import Gate, in_use, of, serving

import bulkhead
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
pytest.importorskip("websockets")
from fastapi import FastAPI
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

if TYPE_CHECKING:
    from conftest import AsyncEventually

SOCKETS = "server:websockets"


def sockets(gate: Gate, **options: Any) -> Any:
    """Sockets that echo; `/slow` is accepted when the gate opens, `/refused` never, `/broken…` raise."""
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, **options)

    @app.websocket("/echo")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(str(bulkhead.current_tenant()))
        try:
            while True:
                await socket.send_text(await socket.receive_text())
        except WebSocketDisconnect:
            await gate.wait()  # a handler that goes on after its client went

    @app.websocket("/slow")
    async def slow(socket: WebSocket) -> None:
        await gate.wait()
        await socket.accept()
        await socket.receive_text()

    @app.websocket("/refused")
    async def refused(socket: WebSocket) -> None:
        await socket.close(4000)
        await gate.wait()

    @app.websocket("/bye")
    async def bye(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close(4001)
        await gate.wait()

    @app.websocket("/broken")
    async def broken(socket: WebSocket) -> None:
        raise LookupError

    @app.websocket("/rejected")
    async def rejected(socket: WebSocket) -> None:
        raise bulkhead.CircuitOpenError("sql:payments", None, 2.5)

    @app.websocket("/rejected-late")
    async def rejected_late(socket: WebSocket) -> None:
        await socket.accept()
        raise bulkhead.CircuitOpenError("sql:payments", None, 2.5)

    @app.get("/")
    async def hello() -> None: ...

    return app


def as_(tenant: str) -> dict[str, Any]:
    return {"additional_headers": of(tenant), "proxy": None, "open_timeout": 30}


def _there(module: str) -> bool:
    """Is this implementation of uvicorn's to be had, with these versions?"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module(f"uvicorn.protocols.websockets.{module}")
        except (ImportError, AttributeError):
            return False
    return True


IMPLEMENTATIONS = [
    name
    for name, module in {
        "websockets": "websockets_impl",
        "websockets-sansio": "websockets_sansio_impl",
        "wsproto": "wsproto_impl",
    }.items()
    if _there(module)
]


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


pytestmark = [
    pytest.mark.anyio,
    # Of uvicorn's older implementation, which is built on that of websockets.
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:(websockets|uvicorn).*"),
]


async def test_a_tenant_has_so_many_sockets_open_and_no_more(implementation: str, aeventually: AsyncEventually) -> None:
    gate = Gate()
    with serving(sockets(gate, max_websockets=2), ws=implementation) as server:
        async with connect(f"{server.ws}/echo", **as_("noisy")) as first, connect(f"{server.ws}/echo", **as_("noisy")):
            assert await first.recv() == "noisy"
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{server.ws}/echo", **as_("noisy"))
            answer = refused.value.response
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert answer.headers["Content-Type"] == "application/problem+json"
            async with connect(f"{server.ws}/echo", **as_("quiet")) as other:
                assert await other.recv() == "quiet"
                await other.send("still there")
                assert await other.recv() == "still there"
            await aeventually(lambda: in_use(SOCKETS) == 2)
        # Both are closed, though their handlers go on.
        await aeventually(lambda: gate.waiting == 3 and in_use(SOCKETS) == 0)
        async with connect(f"{server.ws}/echo", **as_("noisy")) as again:
            assert await again.recv() == "noisy"
        gate.open()


async def test_a_socket_is_a_request_until_it_is_accepted_and_no_longer(
    implementation: str, aeventually: AsyncEventually
) -> None:
    gate = Gate()
    with serving(sockets(gate, max_concurrent_requests=1), ws=implementation) as server:
        async with connect(f"{server.ws}/echo", **as_("acme")) as one, connect(f"{server.ws}/echo", **as_("acme")):
            assert await one.recv() == "acme"
            assert in_use() == 0
            slow = asyncio.create_task(_open(f"{server.ws}/slow", "acme"))
            await aeventually(lambda: gate.waiting == 1)
            assert in_use() == 1
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{server.ws}/echo", **as_("acme"))
            assert refused.value.response.status_code == 503
            gate.open()
            socket = await slow
            assert in_use() == 0
            await socket.close()


async def _open(url: str, tenant: str) -> Any:
    return await connect(url, **as_(tenant))


@pytest.mark.parametrize("path", ["/refused", "/bye", "/broken", "/rejected", "/rejected-late"])
async def test_however_a_socket_ends_everything_comes_back(
    path: str, implementation: str, aeventually: AsyncEventually
) -> None:
    gate = Gate()
    app = sockets(gate, max_concurrent_requests=1, max_websockets=1)
    with serving(app, ws=implementation) as server:
        for _ in range(3):
            with pytest.raises((InvalidStatus, ConnectionClosed)) as caught:
                async with connect(f"{server.ws}{path}", **as_("acme")) as socket:
                    await socket.recv()
            if path == "/rejected":
                assert isinstance(caught.value, InvalidStatus)
                answer = caught.value.response
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "3")
            await aeventually(lambda: in_use() == in_use(SOCKETS) == 0)
        gate.open()


async def test_a_client_that_gives_up_during_the_handshake_gives_everything_back(
    implementation: str, aeventually: AsyncEventually
) -> None:
    gate = Gate()
    app = sockets(gate, max_concurrent_requests=1, max_websockets=1)
    with serving(app, ws=implementation) as server:
        asking = asyncio.create_task(_open(f"{server.ws}/slow", "acme"))
        await aeventually(lambda: gate.waiting == 1)
        asking.cancel()
        await asyncio.wait([asking])
        gate.open()
        await aeventually(lambda: in_use() == in_use(SOCKETS) == 0)


async def test_a_socket_without_a_tenant_is_refused_and_a_public_one_is_not_counted(
    aeventually: AsyncEventually,
) -> None:
    gate = Gate()
    gate.open()
    app = sockets(gate, max_websockets=1, public_paths=["/echo"])
    with serving(app) as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{server.ws}/bye", proxy=None)
        assert refused.value.response.status_code == 400
        async with connect(f"{server.ws}/echo", proxy=None) as one, connect(f"{server.ws}/echo", proxy=None):
            assert await one.recv() == "None"
            assert in_use(SOCKETS) == 0


@pytest.mark.parametrize(("options", "code"), [({"max_websockets": {"acme": 1}}, 1013), ({"missing": "reject"}, 1008)])
async def test_a_server_that_cannot_answer_a_handshake_closes(options: dict[str, Any], code: int) -> None:
    """Without the extension websocket.http.response there is only a close."""
    sent: list[dict[str, Any]] = []
    inner: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inner.append("called")
        await middleware({**asking, "headers": headers}, _connect, _append(sent))

    async def _connect() -> dict[str, str]:
        return {"type": "websocket.connect"}

    asking: dict[str, Any] = {"type": "websocket", "path": "/", "headers": []}
    headers = [(b"x-tenant-id", b"acme")] if code == 1013 else []
    middleware = TenancyMiddleware(app, source="header", **options)
    await middleware({**asking, "headers": headers}, _connect, _append(sent))
    assert sent == [{"type": "websocket.close", "code": code, "reason": sent[0]["reason"]}]
    assert sent[0]["reason"] in ("Service Unavailable", "Bad Request")
    assert len(inner) == (1 if code == 1013 else 0)
    assert in_use(SOCKETS) == 0


def _append(sent: list[dict[str, Any]]) -> Any:
    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    return send


async def test_a_socket_whose_client_went_is_no_failure_of_what_it_waited_for(
    implementation: str, aeventually: AsyncEventually
) -> None:
    gate = Gate()
    dependency = bulkhead.resource("slow", tickets=9, cancel_counts_after=0.001)
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, max_websockets=1)

    @app.websocket("/")
    async def socket(socket: WebSocket) -> None:
        async def work() -> None:
            async with dependency.permit():
                await gate.wait()

        await socket.accept()
        task = asyncio.create_task(work())
        with pytest.raises(WebSocketDisconnect):
            await socket.receive_text()
        task.cancel()
        await asyncio.wait([task])

    with serving(app, ws=implementation) as server:
        async with connect(server.ws, **as_("acme")):
            await aeventually(lambda: gate.waiting == 1)
            await asyncio.sleep(0.01)  # longer than cancel_counts_after
        await aeventually(lambda: gate.cancelled == 1 and not dependency.in_use)
    assert dependency.totals()["calls", "failure"] == 0
    assert dependency.totals()["calls", "ignored"] == 1

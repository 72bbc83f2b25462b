"""Memory cells of requests, and bodies that are charged to them: real applications on a real uvicorn."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from web.asgi_servers import Gate, client, in_use, of, serving
from web.uploads import answer, chunk, uploading, without_end

import bulkhead
from bulkhead import settings
from bulkhead.memory import MemoryCell, cells, current_memory_cell
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
from fastapi import Body, FastAPI, Request
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.websockets import WebSocket  # noqa: TC002  FastAPI looks at annotations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import AsyncEventually
    from web.uploads import Answer

pytestmark = pytest.mark.anyio

QUOTA = 1_000_000
PART = 33  # sys.getsizeof(b""): what a bytes object has beside its bytes, in CPython on 64 bits


def tracked(tenant: str) -> int:
    cell = cells.find(tenant)
    return 0 if cell is None else cell.tracked_bytes


def is_refusal(found: Answer) -> bool:
    assert found.status == 503, found
    assert found.headers["connection"] == "close"
    assert found.headers["retry-after"] == "1"
    assert found.headers["content-type"] == "application/problem+json"
    assert json.loads(found.body)["reason"] == "quota"
    return True


class Uploads:
    """An application that takes uploads, in all the ways that frameworks have."""

    def __init__(self, **options: Any) -> None:
        self.begun: list[str] = []
        self.gate = Gate()
        self.app = app = FastAPI()
        app.add_middleware(TenancyMiddleware, **{"source": "header", **options})

        @app.post("/body")
        async def body(request: Request) -> int:
            self.begun.append("body")
            return len(await request.body())

        @app.post("/bytes")
        async def parameter(data: Annotated[bytes, Body()]) -> int:
            self.begun.append("bytes")  # FastAPI has read the body before; an error while it does is a 400
            return len(data)

        @app.post("/stream")
        async def stream(request: Request) -> int:
            self.begun.append("stream")
            return sum([len(part) async for part in request.stream()])

        @app.post("/caught")
        async def caught(request: Request) -> Response:
            try:
                await request.body()
            except bulkhead.QuotaExceeded:
                return PlainTextResponse("my own answer", 413)
            return PlainTextResponse("all of it")

        @app.post("/caught-and-streamed")
        async def caught_and_streamed(request: Request) -> Response:
            try:
                await request.body()
            except bulkhead.QuotaExceeded:
                return StreamingResponse(self.without_end())
            return PlainTextResponse("all of it")

        @app.post("/other-error")
        async def other_error(request: Request) -> None:
            try:
                await request.body()
            except bulkhead.QuotaExceeded:
                raise ValueError("something else") from None

        @app.post("/held")
        async def held(request: Request) -> int:
            data = await request.body()
            await self.gate.wait()
            return len(data)

        @app.get("/")
        async def hello() -> str:
            return f"hello {bulkhead.current_tenant()}"

    async def without_end(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"on and on\n"
                await asyncio.sleep(0)
        finally:
            self.begun.append("ended")


async def upload(server: Any, path: str, tenant: str, length: int | None = None) -> Answer:
    return await asyncio.to_thread(without_end, server.port, path, tenant, length=length)


@pytest.mark.parametrize("http", ["h11", "httptools"])
@pytest.mark.parametrize("path", ["/body", "/bytes", "/stream", "/caught", "/caught-and-streamed", "/other-error"])
async def test_a_tenant_that_uploads_without_end_gets_503_and_the_others_are_served(
    http: str, path: str, aeventually: AsyncEventually
) -> None:
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    uploads = Uploads()
    with serving(uploads.app, http=http) as server:
        async with client(server) as web:
            assert is_refusal(await upload(server, path, "noisy"))
            assert (await web.post(path, content=b"a" * 1000, headers=of("quiet"))).status_code == 200
            await aeventually(lambda: tracked("noisy") == tracked("quiet") == 0)
            assert (await web.post(path, content=b"a" * 1000, headers=of("noisy"))).status_code == 200
            noisy = cells.find("noisy")
            assert noisy is not None
            assert 0 < noisy.peak_bytes <= QUOTA
            await aeventually(lambda: in_use() == 0)
    assert path != "/caught-and-streamed" or uploads.begun == ["ended"]  # though nobody read what it streamed


@pytest.mark.parametrize("hold", ["head", "body"])
async def test_others_are_served_while_the_noisy_tenant_is_at_its_quota(
    hold: str, aeventually: AsyncEventually
) -> None:
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    uploads = Uploads(max_concurrent_requests=2, hold=hold)
    with serving(uploads.app) as server:
        async with client(server) as web:
            held = asyncio.create_task(web.post("/held", content=b"a" * 900_000, headers=of("noisy")))
            await aeventually(lambda: uploads.gate.waiting == 1)
            assert tracked("noisy") > 900_000
            assert is_refusal(await upload(server, "/body", "noisy"))
            assert (await web.post("/body", content=b"a" * 900_000, headers=of("quiet"))).text == "900000"
            uploads.gate.open()
            assert (await held).text == "900000"
            await aeventually(lambda: tracked("noisy") == 0)
            await aeventually(lambda: in_use() == 0)


async def test_a_client_that_is_gone_before_the_refusal_makes_no_error() -> None:
    """On a server whose `send` raises then, as version 2.4 of ASGI has it."""
    cells.configure(quota_bytes=1000, charge_bodies=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    class Gone(Driven):
        async def _send(self, message: Any) -> None:
            raise OSError("the client is gone")

    await Gone(app, b"a" * 2000).run()
    assert tracked("acme") == 0


async def test_a_body_whose_length_is_over_the_quota_is_refused_before_any_of_it_is_read() -> None:
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    uploads = Uploads()
    with serving(uploads.app) as server:
        for path in ("/body", "/stream"):
            refused = await upload(server, path, "noisy", QUOTA + 1)
            assert is_refusal(refused)
        with uploading(server.port, "/body", "noisy", length=QUOTA + 1, expect=True) as connection:
            assert is_refusal(await asyncio.to_thread(answer, connection))  # and not "100 Continue" first
        with uploading(server.port, "/body", "noisy", length=10, expect=True) as connection:
            assert await asyncio.to_thread(connection.recv, 100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert uploads.begun == ["body"]  # the last one
    noisy = cells.find("noisy")
    assert noisy is not None
    assert noisy.peak_bytes < 100


async def test_a_connection_after_a_refusal_is_a_new_one_and_works() -> None:
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    with serving(Uploads().app) as server:
        async with client(server) as web:
            for _ in range(3):
                refused = await web.post("/body", content=b"a" * (2 * QUOTA), headers=of("noisy"))
                assert (refused.status_code, refused.headers["connection"]) == (503, "close")
                assert (await web.get("/", headers=of("noisy"))).json() == "hello noisy"


async def test_an_upload_that_the_client_breaks_off_gives_every_byte_back(aeventually: AsyncEventually) -> None:
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    with serving(Uploads().app) as server:
        for path in ("/body", "/bytes", "/stream"):
            with uploading(server.port, path, "acme") as connection:
                connection.sendall(chunk(b"a" * 10_000))
                await aeventually(lambda: tracked("acme") >= 10_000)
            await aeventually(lambda: tracked("acme") == 0)


async def test_bodies_are_not_charged_unless_that_is_switched_on(aeventually: AsyncEventually) -> None:
    cells.configure(quota_bytes=QUOTA)
    uploads = Uploads()
    with serving(uploads.app) as server:
        async with client(server) as web:
            assert (await web.post("/body", content=b"a" * (2 * QUOTA), headers=of("acme"))).text == str(2 * QUOTA)
            assert cells.find("acme") is None
            cells.configure(charge_bodies=True)  # at run time
            assert (await web.post("/body", content=b"a" * (2 * QUOTA), headers=of("acme"))).status_code == 503
            cells.configure(enabled=False)
            assert (await web.post("/body", content=b"a" * (2 * QUOTA), headers=of("acme"))).status_code == 200


async def test_settings_switch_it_on_and_change_quotas_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic_settings")
    settings.load()
    uploads = Uploads()
    with serving(uploads.app) as server:
        async with client(server) as web:
            codes = []
            for quota in ("0", "1000", "5000", "1000"):
                monkeypatch.setenv("BULKHEAD_MEMORY__CHARGE_BODIES", "true")
                monkeypatch.setenv("BULKHEAD_MEMORY__QUOTA_BYTES", quota)
                settings.reload()
                codes.append((await web.post("/body", content=b"a" * 2000, headers=of("acme"))).status_code)
            assert codes == [200, 503, 200, 503]


async def test_requests_without_a_body_without_a_tenant_and_to_public_paths_make_no_cell() -> None:
    cells.configure(quota_bytes=1000, charge_bodies=True)
    uploads = Uploads(missing="share", public_paths=["/bytes"])
    with serving(uploads.app) as server:
        async with client(server) as web:
            assert (await web.get("/", headers=of("acme"))).status_code == 200
            assert (await web.post("/body", content=b"a" * 2000)).text == "2000"
            assert (await web.post("/bytes", content=b"a" * 2000, headers=of("acme"))).text == "2000"
    assert len(cells) == 0


# ---- without a server: what is charged when


class Driven:
    """A request in the hands of the test."""

    def __init__(self, app: Any, *parts: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self._app = TenancyMiddleware(app, source="header")
        self._parts = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        self._headers = [(b"x-tenant-id", b"acme"), *headers]
        self.sent: list[Any] = []
        self.received = 0

    async def run(self) -> list[Any]:
        await self._app({"type": "http", "path": "/", "headers": self._headers}, self._receive, self._send)
        return self.sent

    async def _receive(self) -> Any:
        self.received += 1
        return self._parts.pop(0) if self._parts else {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def ok(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_each_part_is_charged_with_its_real_size_before_the_application_has_it() -> None:
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with bulkhead.tenant("somebody else"):  # whoever reads: the body is the request's
            for _ in range(3):
                await receive()
                seen.append(tracked("acme"))
        await ok(send)
        seen.append(tracked("acme"))

    await Driven(app, b"a" * 1000, b"b" * 500).run()
    assert seen == [1000 + PART, 1500 + 2 * PART, 1500 + 2 * PART, 1500 + 2 * PART]
    assert tracked("acme") == 0
    assert cells.find("somebody else") is None
    assert sys.getsizeof(b"") == PART


async def test_a_body_may_reach_the_quota_exactly_and_not_pass_it_by_one_byte() -> None:
    cells.configure(quota_bytes=2000 + 2 * PART, charge_bodies=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await ok(send)

    assert (await Driven(app, b"a" * 1000, b"b" * 1000).run())[0]["status"] == 200
    assert (await Driven(app, b"a" * 1000, b"b" * 1001).run())[0]["status"] == 503
    assert (await Driven(app, b"a" * 1000, b"b" * 1000).run())[0]["status"] == 200


async def test_a_refused_body_is_refused_again_and_no_more_of_it_is_read() -> None:
    cells.configure(quota_bytes=1000, charge_bodies=True)
    raised = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            try:
                await receive()
            except bulkhead.QuotaExceeded as error:
                raised.append((error.tenant, error.requested, error.in_use, error.quota, driven.received))
        await ok(send)
        assert (await receive())["type"] == "http.disconnect"
        await ok(send)

    driven = Driven(app, b"a" * 2000)
    sent = await driven.run()
    assert raised == [("acme", 2000 + PART, 0, 1000, 1)] * 3
    assert [one["type"] for one in sent] == ["http.response.start", *["http.response.body"] * 2]
    assert sent[0]["status"] == 503
    assert [one.get("more_body", False) for one in sent[1:]] == [True, False]


async def test_over_the_quota_after_the_response_began_the_response_is_the_applications() -> None:
    cells.configure(quota_bytes=1000, charge_bodies=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()

    driven = Driven(app, b"a" * 2000)
    with pytest.raises(bulkhead.QuotaExceeded):
        await driven.run()
    assert [one["status"] for one in driven.sent] == [200]
    assert tracked("acme") == 0


async def test_an_application_that_is_cancelled_gives_every_byte_back() -> None:
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert tracked("acme") == 1000 + PART
        raise asyncio.CancelledError

    driven = Driven(app, b"a" * 1000)
    with pytest.raises(asyncio.CancelledError):
        await driven.run()
    assert tracked("acme") == 0
    assert driven.sent == []


async def test_http_2_has_no_connection_header() -> None:
    cells.configure(quota_bytes=1000, charge_bodies=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["http_version"] = "2"
        await receive()

    driven = Driven(app, b"a" * 2000)
    start = (await driven.run())[0]
    assert start["status"] == 503
    assert b"connection" not in dict(start["headers"])


@pytest.mark.parametrize("length", ["", "x", "-5", "1e3", "9" * 5000, "0"])
async def test_a_length_that_says_nothing_is_no_refusal(length: str) -> None:
    cells.configure(quota_bytes=1000, charge_bodies=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)

    driven = Driven(app, headers=((b"content-length", length.encode()),))
    assert (await driven.run())[0]["status"] == 200


# ---- a request and its cell


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

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)

    await Driven(app).run()
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


# ---- settings that make no sense


def warnings(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [
        getattr(one, "bulkhead_setting", None)
        for one in caplog.records
        if getattr(one, "bulkhead_event", "") == "settings_warning"
    ]


@pytest.mark.parametrize(
    ("options", "memory", "warned"),
    [
        ({"source": "header"}, {"max_cells": 0}, ["memory.max_cells"]),
        ({"source": "subdomain", "domain": "example.com"}, {"max_cells": 0}, ["memory.max_cells"]),
        ({"source": lambda scope: None}, {"max_cells": 0}, []),
        ({"source": "header"}, {"max_cells": 0, "enabled": False}, []),
        ({"source": "header"}, {"max_cells": 1000}, []),
        ({"source": "header"}, {"charge_bodies": True}, ["memory.charge_bodies"]),
        ({"source": "header"}, {"charge_bodies": True, "quota_bytes": 1}, []),
        ({"source": "header"}, {"charge_bodies": True, "tenant_quota_bytes": {"acme": 1}}, []),
        ({"source": "header"}, {"charge_bodies": True, "tenant_quota_bytes": len}, []),
        ({"enabled": False}, {"charge_bodies": True, "max_cells": 0}, []),
    ],
)
def test_what_bounds_nothing_is_said_once(
    options: dict[str, Any], memory: dict[str, Any], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "bulkhead")
    cells.configure(**memory)
    middleware = TenancyMiddleware(lambda *_: None, **options)  # type: ignore[arg-type]
    cells.configure(idle_ttl_secs=5.0)  # a change: the plan is made anew
    assert warnings(caplog) == warned
    assert middleware is not None

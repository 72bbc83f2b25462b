"""Bodies that are charged to memory cells: FastAPI on a real uvicorn."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from web.asgi_servers import Gate, client, in_use, of, serving
from web.uploads import answer, chunk, tracked, uploading, without_end

import bulkhead
from bulkhead import settings
from bulkhead.memory import cells
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
from fastapi import Body, FastAPI, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import AsyncEventually
    from web.uploads import Answer

pytestmark = pytest.mark.anyio

QUOTA = 1_000_000


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

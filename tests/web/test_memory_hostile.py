"""Requests that clients should not make, and charged bodies: raw HTTP against a real uvicorn, byte by byte."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest
from web.asgi_servers import Gate, serving
from web.uploads import LONG, answer, chunk, tracked, uploading

import bulkhead
from bulkhead.memory import cells
from bulkhead.web.asgi import TenancyMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import AsyncEventually
    from web.asgi_servers import Served

pytestmark = pytest.mark.anyio

QUOTA = 100_000
OVER = b"x" * (QUOTA + 1)
TENANT = b"Host: localhost\r\nX-Tenant-ID: noisy\r\n"
CHUNKED = TENANT + b"Transfer-Encoding: chunked\r\n"
LENGTH = TENANT + b"Content-Length: %d\r\n" % len(OVER)


class Application:
    """Reads to the end, or as its paths say."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.received = 0  # bytes of bodies

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size = 0
        if scope["path"] == "/twice":
            for _ in range(2):
                try:
                    size += await self.read(receive)
                except bulkhead.QuotaExceeded:
                    size += 1
        elif scope["path"] != "/unread":
            size = await self.read(receive)
        if scope["path"] == "/held":
            await self.gate.wait()
        body = str(size).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def read(self, receive: Any) -> int:
        size, more = 0, True
        while more:
            message = await receive()
            part = message.get("body", b"")
            size += len(part)
            self.received += len(part)
            more = message.get("more_body", False)
        return size


class Place:
    """What the servers serve: whatever a test puts here."""

    served: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self.served(scope, receive, send)


@pytest.fixture(scope="module", params=["h11", "httptools"])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[Served, Place]]:
    place = Place()
    with serving(place, http=request.param) as server:
        yield server, place


@pytest.fixture
def app() -> Application:
    return Application()


@pytest.fixture
def server(running: tuple[Served, Place], app: Application) -> Served:
    server, place = running
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    place.served = TenancyMiddleware(app, source="header")
    return server


def exchange(port: int, data: bytes, *, ends: bool = True) -> bytes:
    """Send this, and what comes back until the server closes the connection. `ends`: the client sends no more."""
    with socket.create_connection(("127.0.0.1", port), LONG) as connection:
        connection.sendall(data)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(65_536):
            found += part
        return found


async def talk(server: Served, data: bytes, *, ends: bool = True) -> bytes:
    return await asyncio.to_thread(exchange, server.port, data, ends=ends)


async def test_a_refusal_is_the_last_answer_of_its_connection_whatever_the_request_was_like(
    server: Served, aeventually: AsyncEventually
) -> None:
    whole = chunk(OVER) + chunk(b"")
    for data in (
        b"HEAD / HTTP/1.1\r\n" + LENGTH + b"\r\n" + OVER,
        b"HEAD / HTTP/1.1\r\n" + CHUNKED + b"\r\n" + whole,
        b"GET / HTTP/1.1\r\n" + CHUNKED + b"\r\n" + whole,
        b"POST / HTTP/1.0\r\n" + LENGTH + b"\r\n" + OVER,
        b"POST / HTTP/1.0\r\n" + LENGTH + b"Connection: keep-alive\r\n\r\n" + OVER,
        b"POST /unread HTTP/1.1\r\n" + LENGTH + b"\r\n" + OVER,
        b"POST /twice HTTP/1.1\r\n" + CHUNKED + b"\r\n" + whole,
        # What was sent behind it is no request any more.
        b"POST / HTTP/1.1\r\n" + LENGTH + b"\r\n" + OVER + b"GET / HTTP/1.1\r\n" + TENANT + b"\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"\r\n" + whole + b"GET / HTTP/1.1\r\n" + TENANT + b"\r\n",
    ):
        found = await talk(server, data, ends=False)
        assert found.startswith(b"HTTP/1.1 503 "), (data[:100], found)
        assert found.count(b"HTTP/1.1") == 1
        assert b"connection: close" in found.lower()
        assert found.endswith(b"\r\n\r\n") is data.startswith(b"HEAD")
    await aeventually(lambda: tracked("noisy") == 0)


async def test_a_client_that_waits_for_100_continue_is_refused_without_it(server: Served) -> None:
    found = await talk(server, b"POST / HTTP/1.1\r\n" + LENGTH + b"Expect: 100-continue\r\n\r\n", ends=False)
    assert found.startswith(b"HTTP/1.1 503 ")
    small = TENANT + b"Content-Length: 3\r\nConnection: close\r\nExpect: 100-continue\r\n\r\nabc"
    found = await talk(server, b"POST / HTTP/1.1\r\n" + small, ends=False)
    assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    assert found.endswith(b"\r\n\r\n3")


async def test_a_length_that_makes_no_sense_is_the_servers_to_refuse_and_nothing_stays_charged(
    server: Served, aeventually: AsyncEventually
) -> None:
    for lengths in ([b"3", b"2000000"], [b"-3"], [b"abc"], [b"\xb2"], [b""], [b"3 3"], [b"+3"]):
        head = b"".join(b"Content-Length: %s\r\n" % each for each in lengths)
        found = await talk(server, b"POST / HTTP/1.1\r\n" + TENANT + head + b"\r\nabc")
        assert b" 500 " not in found.partition(b"\r\n")[0]
    await aeventually(lambda: tracked("noisy") == 0)


async def test_a_length_that_nobody_can_send_is_over_every_quota(server: Served) -> None:
    for length in (b"9223372036854775807", b"9223372036854775808", b"9999999999999999999"):
        found = await talk(server, b"POST / HTTP/1.1\r\n" + TENANT + b"Content-Length: %s\r\n\r\n" % length)
        assert found.startswith(b"HTTP/1.1 503 ")


async def test_requests_that_follow_on_the_same_connection_are_served(
    server: Served, aeventually: AsyncEventually
) -> None:
    small = TENANT + b"Content-Length: 3\r\n"
    one = b"POST / HTTP/1.1\r\n" + small + b"\r\nabc"
    # 0 bytes of body, with and without a length; parts of one byte; one that nobody reads.
    empty = b"POST / HTTP/1.1\r\n" + TENANT + b"Content-Length: 0\r\n\r\n" + b"GET / HTTP/1.1\r\n" + TENANT + b"\r\n"
    parts = b"POST / HTTP/1.1\r\n" + CHUNKED + b"\r\n" + chunk(b"x") * 1000 + chunk(b"")
    unread = b"POST /unread HTTP/1.1\r\n" + CHUNKED + b"\r\n" + chunk(OVER) + chunk(b"")
    last = b"POST / HTTP/1.1\r\n" + small + b"Connection: close\r\n\r\nabc"
    found = await talk(server, one * 2 + empty + parts + unread + last, ends=False)
    assert [each[:3] for each in found.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 7
    assert [each.partition(b"HTTP")[0] for each in found.split(b"\r\n\r\n")[1:]] == [
        *(b"3", b"3", b"0", b"0", b"1000", b"0", b"3")
    ]
    await aeventually(lambda: tracked("noisy") == 0)


async def test_wherever_the_client_hangs_up_every_byte_comes_back_and_no_object_stays(
    server: Served, aeventually: AsyncEventually
) -> None:
    data = b"POST / HTTP/1.1\r\n" + CHUNKED + b"\r\n" + chunk(b"x" * 60_000) + chunk(b"y" * 60_000) + chunk(b"")
    seen = len(data)
    for cut in (10, 60, 90, 100, 200, 30_000, 60_110, 60_120, 110_000, seen - 5, seen - 3, seen):
        with socket.create_connection(("127.0.0.1", server.port), LONG) as connection:
            connection.sendall(data[:cut])
    assert (await talk(server, data, ends=False)).startswith(b"HTTP/1.1 503 ")
    await aeventually(lambda: tracked("noisy") == 0)
    cell = cells.evict("noisy")
    assert cell is not None
    assert not cell.ledger.owed
    gone = ref(cell)
    del cell

    def nobody_keeps_it() -> bool:
        gc.collect()  # the server's objects are circles
        return gone() is None

    await aeventually(nobody_keeps_it)


async def test_an_order_to_evict_leaves_an_upload_its_cell_and_the_next_one_has_a_quota_of_its_own(
    server: Served, app: Application, aeventually: AsyncEventually
) -> None:
    body, head = b"x" * 70_000, b"POST / HTTP/1.1\r\n" + TENANT + b"Connection: close\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with uploading(server.port, "/held", "noisy", length=len(body)) as connection:
        connection.sendall(body)
        await aeventually(lambda: app.gate.waiting == 1)
        assert (await talk(server, request, ends=False)).startswith(b"HTTP/1.1 503 ")
        held = cells.evict("noisy")
        assert held is not None
        assert (await talk(server, request, ends=False)).startswith(b"HTTP/1.1 200 ")
        assert held.tracked_bytes > len(body)
        await aeventually(lambda: tracked("noisy") == 0)
        app.gate.open()
        found = await asyncio.to_thread(answer, connection)
        assert (found.status, found.body) == (200, b"70000")
    await aeventually(lambda: held.tracked_bytes == 0)


async def test_a_body_on_its_way_is_charged_as_it_was_when_its_request_began(
    server: Served, app: Application, aeventually: AsyncEventually
) -> None:
    body = b"x" * 70_000
    with uploading(server.port, "/held", "noisy") as before:
        before.sendall(chunk(body))
        await aeventually(lambda: tracked("noisy") > len(body))
        cells.configure(charge_bodies=False)
        before.sendall(chunk(b"x") + chunk(b""))
        with uploading(server.port, "/held", "noisy") as between:
            between.sendall(chunk(OVER))
            await aeventually(lambda: app.received == len(body) + 1 + len(OVER))
            cells.configure(charge_bodies=True)
            between.sendall(chunk(OVER) + chunk(b""))
            await aeventually(lambda: app.gate.waiting == 2)
            assert len(body) < tracked("noisy") <= QUOTA
            app.gate.open()
            for connection, size in ((before, len(body) + 1), (between, 2 * len(OVER))):
                found = await asyncio.to_thread(answer, connection)
                assert (found.status, found.body) == (200, str(size).encode())
    await aeventually(lambda: tracked("noisy") == 0)

"""ASGI requests in the hands of the test: which part of a body is charged when, and what the client gets. No server."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest
from web.uploads import PART, tracked

import bulkhead
from bulkhead import request
from bulkhead.memory import cells
from bulkhead.web.asgi import TenancyMiddleware

pytestmark = pytest.mark.anyio

QUOTA = 1_000_000


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


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_a_part_of_any_kind_is_charged_with_what_it_shows(kind: Any) -> None:
    """Servers hand on bytes; what stands between may make something else of them."""
    cells.configure(quota_bytes=10_000, charge_bodies=True)
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            seen.append(tracked())
        await ok(send)

    assert (await Driven(app, kind(bytes(9000))).run())[0]["status"] == 200
    assert 9000 < seen[0] <= 10_000
    assert (await Driven(app, kind(bytes(10_000))).run())[0]["status"] == 503


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
    raised: list[Any] = []
    after: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            try:
                await receive()
            except bulkhead.QuotaExceeded as error:
                raised.append((error.tenant, error.requested, error.in_use, error.quota, driven.received))
        assert not request.client_gone()
        await ok(send)
        after.append(request.client_gone())
        after.append((await receive())["type"])
        await ok(send)

    driven = Driven(app, b"a" * 2000)
    sent = await driven.run()
    assert raised == [("acme", 2000 + PART, 0, 1000, 1)] * 3
    assert after == [True, "http.disconnect"], "nobody waits for what is done from here on"
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


async def test_an_application_that_streams_its_answer_to_a_refusal_is_told_that_nobody_reads_it() -> None:
    cells.configure(quota_bytes=1000, charge_bodies=True)
    ended: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(bulkhead.QuotaExceeded):
            await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with pytest.raises(OSError, match="nobody reads this response"):
            await send({"type": "http.response.body", "body": b"on and on", "more_body": True})
        ended.append("ended")

    assert (await Driven(app, b"a" * 2000).run())[0]["status"] == 503
    assert ended == ["ended"]


async def test_after_a_refusal_so_much_is_read_on_and_charged_to_nobody() -> None:
    cells.configure(quota_bytes=1000, charge_bodies=True)
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    class Endless(Driven):
        async def _receive(self) -> Any:
            self.received += 1
            assert self.received < 100, "it is read without end"
            seen.append(tracked())
            return {"type": "http.request", "body": bytes(2**20), "more_body": True}

    driven = Endless(app)
    assert (await driven.run())[0]["status"] == 503
    assert (driven.received, set(seen)) == (1 + 16, {0})


async def test_after_a_refusal_a_client_that_sends_no_more_is_waited_for_two_seconds() -> None:
    cells.configure(quota_bytes=1000, charge_bodies=True)
    waiting: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            try:
                await receive()
            except bulkhead.QuotaExceeded:
                waiting.append(tracked())

    class Slow(Driven):
        async def _receive(self) -> Any:
            if not self._parts:
                waiting.append(tracked())
                await asyncio.Event().wait()
            return self._parts.pop(0)

    began = time.monotonic()
    sent = await Slow(app, b"a" * 500, b"a" * 1000).run()
    assert 1.5 < time.monotonic() - began < 10
    assert waiting == [500 + PART, 0], "what was charged is given back before"
    assert [one.get("more_body", False) for one in sent] == [False, True, False]


async def test_a_client_that_waits_to_be_told_that_it_may_send_is_not_waited_for() -> None:
    cells.configure(quota_bytes=1000, charge_bodies=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)

    driven = Driven(app, headers=((b"content-length", b"2000"), (b"expect", b"100-continue")))
    assert (await driven.run())[0]["status"] == 503
    assert driven.received == 0


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

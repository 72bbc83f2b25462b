"""What becomes of a body's charges where the request's end, cancellation or nonsense comes in between; no server."""

from __future__ import annotations

import asyncio
import io
import threading
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from counts import often
from web.uploads import tracked

import bulkhead
from bulkhead.memory import cells
from bulkhead.web.asgi import TenancyMiddleware
from bulkhead.web.bodies import Upload, content_length
from bulkhead.web.wsgi import TenancyMiddleware as WsgiMiddleware
from bulkhead.web.wsgi_body import ChargedInput

QUOTA = 100_000


@pytest.mark.parametrize(
    "text", ["", None, "x", "-5", "+5", "1e3", "5 5", " 5", "²", "٣", "9" * 5000, b"", b"-5", b"\xb2"]
)
def test_a_length_that_says_nothing_is_0(text: Any) -> None:
    assert content_length(text) == 0


def test_a_length_is_a_number_of_bytes() -> None:
    assert [content_length(text) for text in ("0", "17", b"17", "007", str(2**63 - 1))] == [0, 17, 17, 7, 2**63 - 1]


def test_a_length_is_no_more_than_can_be_charged() -> None:
    assert [content_length(text) for text in (str(2**63), "9" * 19)] == [2**63 - 1] * 2


def test_a_wsgi_server_that_passes_on_any_length_breaks_nothing() -> None:
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        try:
            size = len(environ["wsgi.input"].read())
        except bulkhead.QuotaExceeded:
            size = -1
        start_response("200 OK", [])
        return [str(size).encode()]

    served = WsgiMiddleware(app, source="header", max_concurrent_requests=1)
    for length in ("²", "-1", "x", "", "٣", "9" * 30):
        for body, status, text in ((b"abc", "200 OK", b"3"), (b"x" * (QUOTA + 1), "503 Service Unavailable", None)):
            environ: dict[str, Any] = {"HTTP_X_TENANT_ID": "acme", "CONTENT_LENGTH": length}
            environ["wsgi.input"] = io.BytesIO(body)
            setup_testing_defaults(environ)
            begun: list[str] = []
            found = served(environ, lambda status, *_, begun=begun: begun.append(status))
            assert begun == [status]
            assert text is None or list(found) == [text]
    assert tracked() == 0


def test_a_request_whose_input_is_missing_holds_nothing() -> None:
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    served = WsgiMiddleware(lambda _, __: [], source="header", max_concurrent_requests=1)
    found: list[Any] = []
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            served({"HTTP_X_TENANT_ID": "acme", "REQUEST_METHOD": "POST"}, lambda *_: print)
        found.append(caught)  # with all its frames
    requests = bulkhead.find("server:requests")
    assert requests is not None
    assert requests.in_use == 0


def test_a_part_that_is_charged_as_the_request_ends_is_charged_to_nobody() -> None:
    upload = Upload("acme")

    def quota(_: str) -> int:  # runs in the middle of each charge after a change
        upload.end()
        return QUOTA

    cells.configure(tenant_quota_bytes=quota)
    upload.take(1000)
    assert tracked() == 0

    upload = Upload("acme")
    upload.take(1000)  # was asked already
    assert tracked() == 1000
    cells.configure(quota_bytes=1)
    upload.take(1000)
    assert tracked() == 0
    upload.take(1000)
    assert (tracked(), upload.over) == (0, None)


def test_a_thread_that_reads_on_as_the_request_ends_is_told_nothing_and_keeps_nothing() -> None:
    for _ in range(often(50, 2000)):
        upload = Upload("acme")
        begun = threading.Event()
        faults: list[BaseException] = []

        def read(upload: Upload = upload, begun: threading.Event = begun, faults: list[Any] = faults) -> None:
            try:
                for _ in range(200):
                    upload.take(10)
                    begun.set()
            except BaseException as error:  # noqa: BLE001  for the test
                faults.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        begun.wait()
        upload.end()
        reading.join()
        assert faults == []
        assert tracked() == 0


@pytest.mark.anyio
async def test_an_answer_whose_sender_is_cancelled_is_sent_all_the_same() -> None:
    """Frameworks stream in one task and listen for the client in another; whoever is done first cancels the other."""
    cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    sent: list[Any] = []
    waiting = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(bulkhead.QuotaExceeded):
            await receive()
        sending = asyncio.create_task(send({"type": "http.response.start", "status": 200, "headers": []}))
        await waiting.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * QUOTA, "more_body": False}

    async def send(message: Any) -> None:
        if not waiting.is_set():  # as a server does while the client reads slowly
            waiting.set()
            await asyncio.Event().wait()
        sent.append(message)

    scope = {"type": "http", "path": "/", "headers": [(b"x-tenant-id", b"acme")]}
    await TenancyMiddleware(app, source="header")(scope, receive, send)
    assert [(one["type"], one.get("status"), one.get("more_body", False)) for one in sent] == [
        ("http.response.start", 503, False),
        ("http.response.body", None, True),
        ("http.response.body", None, False),
    ]
    assert tracked() == 0


@pytest.mark.parametrize("seekable", [True, False])
def test_a_body_that_was_collected_before_tells_its_length_without_a_charge(seekable: bool) -> None:  # noqa: FBT001
    """As Django 6.1 asks for it."""
    collected = io.BytesIO(bytes(1000))
    plain = io.BufferedReader(type("Pipe", (io.RawIOBase,), {"readable": lambda _: True})())
    upload = Upload("acme")
    body = ChargedInput(collected if seekable else plain, upload)
    assert body.seekable() is seekable
    if seekable:
        assert body.seek(0, io.SEEK_END) == 1000
        assert body.seek(0) == 0
        assert cells.total_tracked_bytes == 0
        assert len(body.read()) == 1000
        assert cells.total_tracked_bytes > 1000
    upload.end()
    assert cells.total_tracked_bytes == 0

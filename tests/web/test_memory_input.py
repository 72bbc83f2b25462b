"""The file that a WSGI application reads a charged body from. No server."""

from __future__ import annotations

import io
from typing import Any
from wsgiref.util import setup_testing_defaults

import httpx
import pytest
from web.uploads import PART, tracked

import bulkhead
from bulkhead.memory import cells
from bulkhead.web.bodies import Upload
from bulkhead.web.wsgi import TenancyMiddleware
from bulkhead.web.wsgi_body import ChargedInput


@pytest.fixture
def charged() -> Any:
    """`charged(body)`: a ChargedInput, and what a middleware has for its request."""

    def make(body: bytes, quota: int = 0) -> tuple[ChargedInput, Upload]:
        cells.configure(quota_bytes=quota)
        upload = Upload("acme")
        return ChargedInput(io.BytesIO(body), upload), upload

    return make


BODY = b"one\ntwo\n" + b"3" * 200_000 + b"\nfour"


@pytest.mark.parametrize(
    "how",
    [
        lambda file: [file.read()],
        lambda file: [file.read(-1)],
        lambda file: [file.read(None)],
        lambda file: [file.read(0), file.read(3), file.read(10**9), file.read(5), file.read()],
        lambda file: [file.readline(), file.readline(2), file.readline(-1), file.readline(None), *file.readlines()],
        lambda file: [*file],
        lambda file: file.readlines(),
        lambda file: [*file.readlines(1), *file.readlines(5), file.read(), *file.readlines()],
        lambda file: [
            file.readline(70_000),
            file.readline(),
            file.readline(70_000),
            file.readline(70_000),
            file.read(),
        ],
    ],
)
def test_a_charged_input_gives_what_the_file_would(how: Any, charged: Any) -> None:
    file, upload = charged(BODY)
    plain = how(io.BytesIO(BODY))
    assert how(file) == plain
    assert tracked() == sum(len(part) + PART for part in plain if part)
    upload.end()
    assert tracked() == 0


def test_a_charged_input_fills_buffers(charged: Any) -> None:
    file, _ = charged(BODY)
    buffer = bytearray(10)
    assert [file.readinto(buffer), bytes(buffer)] == [10, BODY[:10]]
    assert file.readinto(memoryview(buffer)[:4]) == 4
    assert bytes(buffer[:4]) == BODY[10:14]
    assert file.readinto(bytearray(10**6)) == len(BODY) - 14
    assert file.readinto(buffer) == 0


@pytest.mark.parametrize("name", ["read", "readline", "readlines"])
def test_what_is_read_raises_before_more_than_a_block_beyond_the_quota_is_held(name: str, charged: Any) -> None:
    file, upload = charged(b"x" * 10_000_000, 100_000)
    inner = file._inner
    for _ in range(2):
        with pytest.raises(bulkhead.QuotaExceeded) as caught:
            getattr(file, name)()
    assert caught.value.tenant == "acme"
    assert inner.tell() <= 2 * 65_536
    assert tracked() <= 100_000
    upload.end()
    assert tracked() == 0


def test_many_small_parts_cost_one_charge(charged: Any) -> None:
    file, upload = charged(b"x\n" * 1000)
    assert len([*file]) == 1000
    assert tracked() == 1000 * (2 + PART)
    upload.end()
    assert tracked() == 0


def test_what_is_read_after_the_request_is_charged_to_nobody(charged: Any) -> None:
    file, upload = charged(BODY)
    upload.end()
    assert file.read() == BODY
    assert tracked() == 0


def test_what_is_read_after_the_request_is_refused_to_nobody(charged: Any) -> None:
    file, upload = charged(BODY, 1000)
    upload.end()
    assert file.read() == BODY
    assert (upload.over, tracked()) == (None, 0)


@pytest.mark.parametrize(("left", "read"), [(2**20, 2**20), (2**20 + 1, 0)])
def test_of_a_refused_body_a_mebibyte_is_read_on_and_nothing_of_a_longer_one(left: int, read: int) -> None:
    """So that the answer is not lost to a connection that is reset."""
    cells.configure(quota_bytes=1000, charge_bodies=True)
    body = io.BytesIO(b"x" * left)
    environ: dict[str, Any] = {"HTTP_X_TENANT_ID": "acme", "CONTENT_LENGTH": str(left), "wsgi.input": body}
    setup_testing_defaults(environ)
    begun: list[str] = []
    TenancyMiddleware(lambda *_: [], source="header")(environ, lambda status, *_: begun.append(status))  # type: ignore[arg-type]
    assert (begun, body.tell()) == (["503 Service Unavailable"], read)
    assert tracked() == 0


def test_without_charge_bodies_the_input_is_the_servers_own() -> None:
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(environ["wsgi.input"])
        start_response("200 OK", [])
        return [b""]

    with httpx.Client(
        transport=httpx.WSGITransport(TenancyMiddleware(app, source="header")), base_url="http://x"
    ) as web:
        web.post("/", content=b"abc", headers={"X-Tenant-ID": "acme"})
        cells.configure(quota_bytes=1000, charge_bodies=True)
        web.post("/", content=b"abc", headers={"X-Tenant-ID": "acme"})
    assert [isinstance(one, ChargedInput) for one in seen] == [False, True]

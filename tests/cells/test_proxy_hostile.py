"""What a client, or a cell, sends that is wrong on purpose: none of it makes one request into two, or another tenant's."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from cells.cell_servers import cells
from polling import until

pytest.importorskip("aiohttp")
from cells.proxying import Proxied, RawCell, proxy

import bulkhead
from bulkhead.cells.cell import Cell
from bulkhead.cells.proxy import CellProxy
from bulkhead.cells.router import CellRouter

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LINES = ("Host: shop.example", "X-Tenant-ID: acme")


def router_of(cell: RawCell, name: str = "one") -> CellRouter:
    return CellRouter([Cell(name, cell.url)])


@pytest.fixture(scope="module")
def _running() -> Iterator[tuple[RawCell, Proxied]]:
    with (
        RawCell(OK, b"/silent") as cell,
        proxy(router_of(cell), error_threshold=1000, error_timeout=1, success_threshold=1) as server,
    ):
        assert server.get("/first").text == "ok"  # from here on its resource is there
        yield cell, server
    for name in ("cell:one", "cell:two"):
        bulkhead.unregister(name)


@pytest.fixture
def cell(_running: tuple[RawCell, Proxied]) -> RawCell:
    """A cell that answers 200 whatever it is asked, but for /silent."""
    found = _running[0]
    found.reset(OK)
    return found


@pytest.fixture
def server(cell: RawCell, _running: tuple[RawCell, Proxied]) -> Proxied:
    """The proxy in front of it."""
    return _running[1]


def counted(name: str = "cell:one") -> tuple[float, int]:
    """Failures of the cell so far, and tickets that are out."""
    resource = bulkhead.find(name)
    assert resource is not None
    return resource.totals()["calls", "failure"], resource.in_use


def status(server: Proxied, *lines: str, body: bytes = b"", path: str = "/x") -> int:
    """What a request written by hand is answered."""
    with server.raw(f"POST {path} HTTP/1.1", *LINES, *lines, body=body) as asked, asked.makefile("rb") as read:
        return int(read.readline().split()[1])


@pytest.mark.parametrize(
    ("lines", "body", "told"),
    [
        (["Content-Length: 4", "Transfer-Encoding: chunked"], b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n", 400),
        (["Transfer-Encoding: chunked", "Content-Length: 4"], b"0\r\n\r\n", 400),
        (["Transfer-Encoding: xchunked"], b"0\r\n\r\n", 400),
        (["Transfer-Encoding: chunked, identity"], b"0\r\n\r\n", 400),
        (["Transfer-Encoding : chunked"], b"0\r\n\r\n", 400),
        (["Transfer-Encoding: gzip, chunked"], b"2\r\nab\r\n0\r\n\r\n", 501),
        (["Content-Length: 2", "Content-Length: 3"], b"abc", 400),
        (["Content-Length: 2, 2"], b"ab", 400),
        (["Content-Length: +2"], b"ab", 400),
        (["X-A: b", " X-Tenant-ID: other"], b"", 400),
        (["X-A: b\rX-Tenant-ID: other"], b"", 400),
        (["X-A: b\0c"], b"", 400),
        (["Host: other.example"], b"", 400),
        (["Connection: Upgrade", "Upgrade: h2c", "Content-Length: 2"], b"ab", 501),
        (["X-Tenant-ID: other"], b"", 400),
    ],
)
def test_what_could_be_read_in_two_ways_is_not_passed_on(
    cell: RawCell, server: Proxied, lines: list[str], body: bytes, told: int
) -> None:
    assert status(server, *lines, body=body) == told
    assert cell.text == b""


def test_a_trailer_of_the_request_is_no_header(cell: RawCell, server: Proxied) -> None:
    status(server, "Transfer-Encoding: chunked", body=b"2\r\nab\r\n0\r\nX-Tenant-ID: other\r\n\r\n")
    assert b"other" not in cell.text


def test_names_with_underscores_are_nobodys_way_around_a_header(cell: RawCell, server: Proxied) -> None:
    """CGI, and so WSGI, spells X_Tenant_ID and X-Tenant-ID alike."""
    names = ("X_Tenant_ID", "x-tenant_id", "X_Forwarded_For", "X_Cell", "Content_Length", "Transfer_Encoding")
    assert status(server, *(f"{name}: 9" for name in names), "X_Own: 1", "Content-Length: 2", body=b"ab") == 200
    assert b"x_own: 1" in cell.text
    assert not [name for name in names if name.lower().encode() + b":" in cell.text]
    assert cell.text.count(b"x-tenant-id: acme") == 1


def test_connection_cannot_take_away_what_the_proxy_says(cell: RawCell, server: Proxied) -> None:
    assert status(server, "Connection: X-Tenant-ID, Via, X-Forwarded-For, Host, ,X-Own", "X-Own: 1") == 200
    for said in (b"x-tenant-id: acme", b"via: ", b"x-forwarded-for: 127.0.0.1", b"host: shop.example"):
        assert said in cell.text
    assert b"x-own" not in cell.text


@pytest.mark.parametrize(
    ("lines", "body"),
    [(["Content-Length: 10"], b"12345"), (["Transfer-Encoding: chunked"], b"5\r\n12345\r\n")],
    ids=["length", "chunked"],
)
def test_a_connection_whose_request_was_not_ended_is_not_used_again(lines: list[str], body: bytes) -> None:
    """Else the next request would be the rest of that body: for the cell, of another tenant."""
    with RawCell(OK, b"/silent") as cell, proxy(router_of(cell, "two")) as server:
        with server.raw("POST /early HTTP/1.1", *LINES, *lines, body=body) as asked, asked.makefile("rb") as read:
            assert b"200" in read.readline()  # before the body was there
            assert server.get("/next").text == "ok"
            asked.sendall(b"67890")
        with server.raw("POST /silent HTTP/1.1", *LINES, *lines, body=body):
            until(lambda: any(seen.endswith(body) and b"/silent" in seen for seen in cell.seen))
        until(lambda: cell.closed == 2)
        assert server.get("/next").text == "ok"
        last = [seen[seen.index(b"POST ") :] for seen in cell.seen if b"POST " in seen]
        assert [one.count(b" HTTP/1.1") for one in last] == [1, 1]
        assert not any(b"67890" in seen for seen in cell.seen)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX-A: b\rSet-Cookie: c\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 700 Odd\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX-A: " + b"y" * 100_000 + b"\r\nContent-Length: 2\r\n\r\nok",
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
    ids=["101", "both lengths", "two lengths", "CR", "700", "huge header", "no HTTP", "coding"],
)
def test_an_answer_that_cannot_be_passed_on_is_502_and_counts_against_the_cell(
    cell: RawCell, server: Proxied, answer: bytes
) -> None:
    cell.answer, before = answer, counted()[0]
    assert server.get("/x").status_code == 502
    assert counted() == (before + 1, 0)


def test_bytes_behind_an_answer_are_not_the_next_one(cell: RawCell, server: Proxied) -> None:
    cell.answer = OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    assert [server.get("/x").text for _ in range(3)] == ["ok"] * 3


@pytest.mark.parametrize("status", [b"304 Not Modified", b"204 No Content"])
def test_an_answer_without_a_body_has_none_whatever_its_length_says(
    cell: RawCell, server: Proxied, status: bytes
) -> None:
    cell.answer = b'HTTP/1.1 %s\r\nETag: "a"\r\nContent-Length: 200\r\n\r\n' % status
    with server.raw("GET /x HTTP/1.1", *LINES) as asked, asked.makefile("rb") as read:
        for _ in range(2):  # the connection is kept
            lines = list(iter(read.readline, b"\r\n"))
            assert lines[0] == b"HTTP/1.1 %s\r\n" % status
            assert b'etag: "a"\r\n' in lines
            asked.sendall("\r\n".join(["GET /y HTTP/1.1", *LINES, "", ""]).encode())


class Hand:
    """CellProxy as another server would call it: one request whose messages are given."""

    def __init__(self, *messages: dict[str, Any], version: str = "2", lost: bool = False) -> None:
        self._messages, self._lost = list(messages), lost
        self.sent: list[dict[str, Any]] = []
        self.scope = {
            "type": "http", "http_version": version, "method": "POST", "scheme": "http", "path": "/x", "raw_path": b"/x",
            "query_string": b"", "headers": [(b"host", b"x"), (b"x-tenant-id", b"acme")], "client": ("127.0.0.1", 1),
        }  # fmt: skip

    async def receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self._lost:
            raise BrokenPipeError
        self.sent.append(dict(message))

    async def run(self, app: CellProxy) -> None:
        await app(self.scope, self.receive, self.send)
        if app._client is not None:
            await app._client.close()


def part(body: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_of_http2_that_no_header_announces_is_passed_on() -> None:
    with cells(names=("two",)) as two:
        routes = CellRouter([Cell("two", two.servers["two"].url)])
        for messages, body in (
            ([part(b"ab", more=True), part(b"c")], "abc"),
            ([part(b"ab")], "ab"),
            ([part(more=True), part(b"a")], "a"),
            ([part()], ""),
        ):
            hand = Hand(*messages)
            asyncio.run(hand.run(CellProxy(routes)))
            told = json.loads(b"".join(message.get("body", b"") for message in hand.sent))
            assert told["body"] == body
            assert ("transfer-encoding" in dict(told["headers"])) == bool(body)


def test_a_server_that_says_by_an_error_that_the_client_is_gone_says_nothing_about_the_cell(cell: RawCell) -> None:
    asyncio.run(Hand(version="1.1", lost=True).run(CellProxy(router_of(cell, "two"))))
    cell.answer = b"no HTTP\r\n\r\n"
    asyncio.run(Hand(version="1.1", lost=True).run(CellProxy(router_of(cell, "two"))))
    assert counted("cell:two") == (1, 0), "the second answer"

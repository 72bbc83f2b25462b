"""Locations of a cell as clients of our proxy and of HAProxy see them: below the router's address, and never elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import pytest
from cells.haproxy_servers import Connection, Router
from hypothesis import example, given
from hypothesis import strategies as st

from bulkhead.cells.cell import Cell
from bulkhead.cells.maps import CellMap
from bulkhead.cells.places import local
from bulkhead.cells.router import CellRouter

pytest.importorskip("aiohttp")
from cells.proxying import RawCell, proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEN = [  # what a cell says, and what its clients see; {cell} is the cell's host and port, {base} its base path
    ("http://{cell}{base}", "/"),
    ("http://{cell}{base}/", "/"),
    ("http://{cell}{base}?q=/x", "/?q=/x"),
    ("http://{cell}{base}#part", "/#part"),
    ("http://{cell}{base}/x/y?next=http://{cell}{base}/", "/x/y?next=http://{cell}{base}/"),
    ("HTTPS://{cell}{base}/x", "/x"),
    ("//{cell}{base}/x", "/x"),
    ("http://{cell}{base}//evil.example/x", "/.//evil.example/x"),
    ("http://{cell}{base}/\\evil.example/x", "/./\\evil.example/x"),
    ("//evil.example{base}/x", "//evil.example{base}/x"),
    ("http://{cell}0{base}/x", "http://{cell}0{base}/x"),
    ("http://user@{cell}{base}/x", "http://user@{cell}{base}/x"),
    ("https://elsewhere.example{base}/x", "https://elsewhere.example{base}/x"),
    ("{base}/x", "/x"),
    ("x/y", "x/y"),
    ("?q", "?q"),
]
BELOW = [  # with a base path only
    ("{base}", "/"),
    ("{base}?q", "/?q"),
    ("{base}x/y", "{base}x/y"),
    ("/other", "/other"),
    ("http://{cell}/other", "http://{cell}/other"),
    ("{base}//evil.example/x", "/.//evil.example/x"),
    ("{base}/\\evil.example/x", "/./\\evil.example/x"),
]


@pytest.fixture(scope="module")
def cell() -> Iterator[RawCell]:
    with RawCell(b"") as found:
        yield found


def cases(cell: RawCell, base: str) -> Iterator[tuple[str, str]]:
    """What the cell says, and what is to be seen; the cell answers so when the next one is asked for."""
    host = cell.url.removeprefix("http://")
    for said, seen in SEEN + (BELOW if base else []):
        location = said.format(cell=host, base=base)
        cell.reset(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n" % location.encode())
        yield location, seen.format(cell=host, base=base)


@pytest.mark.parametrize("base", ["", "/app", "/a+b/c"])
def test_our_proxy_brings_redirects_of_the_cell_back_to_itself(cell: RawCell, base: str) -> None:
    with proxy(CellRouter([Cell("one", cell.url + base)])) as server:
        for location, seen in cases(cell, base):
            assert server.get("/x").headers["location"] == seen, location


@pytest.mark.parametrize("base", ["", "/app", "/a+b/c"])
def test_haproxy_brings_redirects_of_the_cell_back_to_itself(cell: RawCell, base: str) -> None:
    with Router(CellMap(CellRouter([Cell("one", cell.url + base)]))) as router:
        connection = Connection(router.port)
        for location, seen in cases(cell, base):
            assert connection.get("acme").headers["location"] == seen, location
        connection.close()


@pytest.mark.parametrize(
    ("base", "location"),
    [
        ("http://Cell.example/app", "http://cell.EXAMPLE:80/app/x"),
        ("https://cell.example:443/app", "https://cell.example/app/x"),
        ("http://cell.example:8080/app", "//cell.example:8080/app/x"),
    ],
)
def test_a_host_is_the_same_in_any_case_and_with_the_port_that_it_has_anyway(base: str, location: str) -> None:
    assert local(location, Cell("one", base), "http://cell.internal") == "http://cell.internal/x"


PIECES = (
    "/",
    "\\",
    "//",
    "app",
    "/app",
    "cell.example",
    "evil.example",
    "http:",
    "https://",
    "?",
    "#",
    ".",
    "..",
    "@",
    ":80",
)


@pytest.mark.no_cover
@given(st.sampled_from(("", "/app")), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
@example("/app", "/app//evil.example")
@example("", "http://cell.example//evil.example")
def test_no_redirect_within_a_cell_becomes_one_to_another_host(base: str, location: str) -> None:
    """As browsers see it, for which a back-slash is a slash."""
    cell, there = "http://cell.example" + base, "http://shop.example"
    seen = local(location, Cell("one", cell), "")
    if urlsplit(urljoin(cell + "/", location.replace("\\", "/"))).netloc == "cell.example":
        assert urlsplit(urljoin(there, seen.replace("\\", "/"))).netloc in ("shop.example", "cell.example")
    if seen != location:
        assert urlsplit(urljoin(there, seen.replace("\\", "/"))).netloc == "shop.example"

"""What a newcomer gives first: each wrong argument is an error that names it and says what to give instead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import bulkhead
from bulkhead.cells import (
    AsyncCellTransport,
    Cell,
    CellMap,
    CellRouter,
    CellTransport,
    FileSource,
    FixedSource,
    HttpSource,
    MapSource,
    publish,
)
from bulkhead.cells.haproxy import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROUTER = CellRouter([Cell("a", "http://a")])
MAP = CellMap(ROUTER)


@pytest.fixture(autouse=True)
def _no_resources_left() -> Iterator[None]:
    yield
    for identifier in bulkhead.resources():
        if identifier.startswith("cell:"):
            bulkhead.unregister(identifier)


def source(fetch: Any) -> MapSource:
    return MapSource(fetch, "store")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: CellTransport("cells.toml"), "routes must be a CellRouter, a CellMap or a source, not 'cells.toml'; File"),  # type: ignore[arg-type]
        (lambda: CellTransport(None), "routes must be a CellRouter, a CellMap or a source, not None"),  # type: ignore[arg-type]
        (lambda: FixedSource(ROUTER), "cell_map must be a CellMap, not <CellRouter"),  # type: ignore[arg-type]
        (lambda: CellRouter({"a": "http://x"}), "cells must be Cell(name, url) each, not 'a'"),  # type: ignore[dict-item]
        (lambda: CellRouter([{"name": "a"}]), "cells must be Cell(name, url) each, not {'name': 'a'}"),  # type: ignore[list-item]
        (lambda: CellRouter(Cell("a", "http://a")), "cells must be several"),  # type: ignore[arg-type]
        (lambda: CellRouter([Cell("a", "http://a")], pins=["acme"]), "pins must be a mapping"),  # type: ignore[arg-type]
        (lambda: CellMap("cells.toml"), "router must be a CellRouter, not 'cells.toml'"),  # type: ignore[arg-type]
        (lambda: CellMap(ROUTER, tenants=["acme"]), "tenants must be a mapping"),  # type: ignore[arg-type]
        (lambda: CellMap(ROUTER, retry_after=5), "retry_after must be a RetryAfter, not 5"),  # type: ignore[arg-type]
        (lambda: source(lambda: 3), "store: fetch must give a CellMap or None, not int"),
        (lambda: source(MAP), "fetch must be a function that gives a CellMap, not CellMap"),
        (lambda: HttpSource("ftp://u:hunter2@x/y", None), "url: give an http(s) URL, not 'ftp://***@x/y'"),
        (lambda: HttpSource(7, None), "url: give an http(s) URL, not 7"),  # type: ignore[arg-type]
        (lambda: HttpSource("http://x", None, timeout=0), "timeout: must be a number of seconds, above 0, not 0"),
        (lambda: MapSource(lambda: MAP, "x", minimum_interval=math.nan), "minimum_interval: must be a number of seconds"),
        (lambda: MapSource(lambda: MAP, "x", patience=0), "patience: must be a number of seconds, above 0"),
        (lambda: source(lambda: MAP).start("x"), "interval: must be a number of seconds, 0.05 or more, not 'x'"),  # type: ignore[arg-type]
        (lambda: source(lambda: MAP).start(math.inf), "interval: must be a number of seconds, 0.05 or more, not inf"),
        (lambda: CellTransport(MAP, tenant_header="é"), "tenant_header: 'é' is no name of a header"),
        (lambda: CellTransport(MAP, tenant_header="a b"), "tenant_header: 'a b' is no name of a header"),
        (lambda: CellTransport(MAP, tenant_header="host"), "tenant_header: 'host' has a meaning of its own"),
        (lambda: CellTransport(MAP, tenant_header="Transfer-Encoding"), "'Transfer-Encoding' has a meaning of its own"),
        (lambda: files(MAP, tenant_header="X-Cell-Map-Version"), "'X-Cell-Map-Version' has a meaning of its own"),
        (lambda: files(MAP, cell_header="x-tenant-id"), "cell_header: 'x-tenant-id' is the header of the tenant already"),
        (lambda: CellTransport(MAP, placeholder="a b"), "placeholder: 'a b' is no name of a host"),
        (lambda: CellTransport(MAP, placeholder="http://x"), "placeholder: 'http://x' is no name of a host"),
        (lambda: CellTransport(MAP, placeholder=""), "placeholder: '' is no name of a host"),
        (lambda: CellTransport(MAP, transport=httpx.AsyncHTTPTransport()), "AsyncHTTPTransport is no transport of httpx.Cl"),  # type: ignore[arg-type]
        (lambda: AsyncCellTransport(MAP, transport=httpx.HTTPTransport()), "no transport of httpx.AsyncClient"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_wrong_argument_is_an_error_that_names_it(make: Callable[[], object], says: str) -> None:
    with pytest.raises(bulkhead.ConfigurationError) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"read_timeout": 0}, "read_timeout: must be a number of seconds, above 0, not 0"),
        ({"read_timeout": -1}, "read_timeout: must"),
        ({"connect_timeout": math.nan}, "connect_timeout: must be a number of seconds, above 0, not nan"),
        ({"connect_timeout": "5"}, "connect_timeout: must"),
        ({"header": "é"}, "header: 'é' is no name of a header, of letters, digits and -"),
        ({"tenant_header": "a b"}, "tenant_header: 'a b' is no name"),
        ({"cell_header": "X_Cell"}, "cell_header: 'X_Cell' is no name"),
        ({"header": "Connection"}, "header: 'Connection' has a meaning of its own between clients, routers and cells"),
        ({"tenant_header": "X-Forwarded-For"}, "tenant_header: 'X-Forwarded-For' has a meaning of its own"),
        ({"header": "X-Cell"}, "cell_header: 'X-Cell' is the header of the tenant already"),
        ({"cell_header": "x-tenant-id"}, "cell_header: 'x-tenant-id' is the header of the tenant already"),
        ({"domain": "example.com"}, 'domain is read with source="subdomain" only'),
        ({"trusted": ["foo"]}, "trusted: 'foo' is no network, such as 10.0.0.0/8"),
        ({"trusted": "10.0.0.0/8"}, "trusted takes several networks, ['10.0.0.0/8'], not one text"),
    ],
)
def test_an_option_of_the_proxy_that_would_break_every_request_is_refused(options: dict[str, Any], says: str) -> None:
    pytest.importorskip("aiohttp")
    from bulkhead.cells import CellProxy  # noqa: PLC0415  an extra

    with pytest.raises(bulkhead.ConfigurationError) as caught:
        CellProxy(MAP, **options)
    assert says in str(caught.value)


@pytest.mark.parametrize("host", ["cell.internal", "Cells", "größe.example", "10.0.0.1", "my_cells"])
def test_what_the_host_of_a_url_can_be_can_be_a_placeholder(host: str) -> None:
    seen: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return httpx.Response(200)

    transport = CellTransport(MAP, placeholder=host, transport=httpx.MockTransport(answer))
    with httpx.Client(transport=transport) as client, bulkhead.tenant("acme"):
        client.get(f"http://{host}/x")
    assert seen == [httpx.URL("http://a/x")]


def test_a_map_that_cannot_be_put_there_is_an_error_with_the_file(tmp_path: Path) -> None:
    for file in (tmp_path / "none" / "cells.toml", tmp_path / "file" / "cells.toml"):
        (tmp_path / "file").touch()
        with pytest.raises(bulkhead.ConfigurationError, match=rf"^{file}: cannot be written: No"):
            publish(MAP, file)


def test_reprs_are_short_and_say_the_version(tmp_path: Path) -> None:
    file = tmp_path / "cells.toml"
    publish(MAP.replace(version=7), file)
    assert repr(MAP) == "<CellMap 0.1, 1 cells>"
    assert repr(CellTransport(MAP)) == "<CellTransport of <FixedSource, map 0.1>>"
    assert repr(AsyncCellTransport(FileSource(file))) == f"<AsyncCellTransport of <FileSource {file}, map 0.7>>"


def test_other_options_for_a_cell_that_has_some_are_told_what_can_be_done_about_it() -> None:
    first = CellTransport(MAP, tickets=4)
    with pytest.raises(bulkhead.ConfigurationError) as caught:
        CellTransport(MAP, tickets=5)
    assert "Give all clients of cells in a process the same options" in str(caught.value)
    assert "name=" not in str(caught.value)
    first.close()

"""Real HAProxy with the files that we write, beside our own router: the same cell for everybody, and the same refusals."""

from __future__ import annotations

import subprocess
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from cells import haproxy_servers
from cells.haproxy_servers import Connection, Router, request
from cells.proxying import RawCell

import bulkhead
from bulkhead.cells.cell import Cell
from bulkhead.cells.haproxy import files
from bulkhead.cells.map_files import toml_text
from bulkhead.cells.maps import CellMap, RetryAfter
from bulkhead.cells.router import CellRouter
from bulkhead.cli import main
from bulkhead.testing import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("a", "b", "c.d_e-f")
ODD = ("Größe", "two words", "# no comment", "x" * 256, "a,b", '"quoted"', "7", "'", "\\", "%41")


@pytest.fixture(scope="module")
def upstream() -> Iterator[haproxy_servers.Cells]:
    with haproxy_servers.Cells(NAMES) as cells:
        yield cells


def router_of(upstream: haproxy_servers.Cells, base: str = "", **states: str) -> CellRouter:
    cells = [
        Cell(name, f"http://127.0.0.1:{port}{base}", state=states.get(name, "active"))  # type: ignore[arg-type]
        for name, port in upstream.ports.items()
    ]
    return CellRouter(cells)


def test_it_chooses_the_same_cell_for_10000_tenants(upstream: haproxy_servers.Cells) -> None:
    """Pins, moving and frozen tenants and a cell that is down included."""
    tenants = (
        [f"tenant-{number}" for number in range(9_000)]
        + [str(number) for number in range(1_000 - len(ODD))]
        + list(ODD)
    )
    plain = router_of(upstream, b="down")
    pins = {tenant: NAMES[number % 3] for number, tenant in enumerate((*tenants[:90], *ODD[:6]))}
    states = dict.fromkeys((*tenants[90:120], *ODD[6:8]), "moving") | dict.fromkeys(tenants[120:150], "frozen")
    now = CellMap(plain.replace(pins=pins), 7, 2, states, RetryAfter(moving=2, frozen=30, down=9))  # type: ignore[arg-type]
    with Router(now) as router:
        connection = Connection(router.port)
        answers = connection.ask([request(tenant) for tenant in tenants])
        connection.close()
    seen: set[object] = set()
    for tenant, answer in zip(tenants, answers, strict=True):
        cell, refused = now.route(tenant)
        assert answer.headers["x-cell-map-version"] == "2.7"
        if refused is None:
            assert (answer.status, answer.body) == (200, f"{cell.name} {tenant.encode().hex().upper()} /x"), tenant
        else:
            assert (answer.status, answer.headers["retry-after"]) == (503, str(int(refused.retry_after))), tenant
            assert answer.headers["content-type"] == "application/problem+json"
        seen.add(refused and refused.reason)
    assert seen == {None, "moving", "frozen", "down"}
    assert len(tenants) == 10_000


def test_the_tenant_has_to_be_named_once(upstream: haproxy_servers.Cells) -> None:
    with Router(CellMap(router_of(upstream))) as router:
        connection = Connection(router.port)
        assert connection.get("acme", X_Tenant_ID="other").status == 400
        assert connection.get("").status == 400
        assert connection.get("x" * 257).status == 400
        assert connection.ask([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])[0].status == 400
        assert connection.get("acme").status == 200
        connection.close()


def test_no_path_leads_out_of_the_base_path(upstream: haproxy_servers.Cells) -> None:
    with Router(CellMap(router_of(upstream, "/app'(1)%20"))) as router:
        connection = Connection(router.port)
        assert connection.get("acme", "/x?y=/../z").body.endswith(" /app'(1)%20/x")
        assert connection.get("acme", "http://shop.example/x").body.endswith(" /app'(1)%20/x")
        for path in (
            "/../x",
            "/%2e%2e/x",
            "/x/..",
            "/x/%2E./y",
            "/x/%252e%252e/y",
            "/x/..%2fy",
            "/x/..;/y",
            "/%2%65%2e/",
            "/x%5c..%5cy",
            "/%zz/../x",
            "/%e0%80%ae%e0%80%ae/x",
        ):
            assert connection.get("acme", path).status == 400, path
        for path in ("/x..y", "/...", "/a../b", "/..a"):
            assert connection.get("acme", path).status == 200, path
        connection.close()


def test_only_trusted_callers_choose_the_cell(upstream: haproxy_servers.Cells) -> None:
    now = CellMap(router_of(upstream), tenants={"acme": "moving"})
    for trusted, status in (["127.0.0.0/8"], 200), (["10.0.0.0/8"], 503), ([], 503):
        with Router(now, trusted=trusted) as router:  # type: ignore[arg-type]
            connection = Connection(router.port)
            for name in NAMES:
                answer = connection.get("acme", X_Cell=name)
                assert answer.status == status
                assert status == 503 or answer.body.startswith(f"{name} ")
            assert connection.get("acme", X_Cell="none").status == (400 if status == 200 else 503)
            connection.close()


def test_names_with_underscores_are_nobodys_way_around_a_header() -> None:
    """See test_proxy_hostile.py."""
    names = ("X_Tenant_ID", "x-tenant_id", "X_Forwarded_For", "X_Cell", "X-Cell", "Forwarded")
    with RawCell(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as cell:
        with Router(CellMap(CellRouter([Cell("one", cell.url)]))) as router:
            connection = Connection(router.port)
            lines = "".join(f"{name}: other\r\n" for name in (*names, "X_Own"))
            asked = f"GET / HTTP/1.1\r\nHost: x\r\nX-Tenant-ID: acme\r\n{lines}\r\n"
            assert connection.ask([asked.encode()])[0].body == "ok"
            connection.close()
        (seen,) = cell.seen
    assert seen.count(b": other\r\n") == 1
    assert b"x_own: other\r\n" in seen
    assert b"x-tenant-id: acme\r\n" in seen


def test_421_of_a_cell_is_503_with_retry_after(upstream: haproxy_servers.Cells) -> None:
    with Router(CellMap(router_of(upstream))) as router:
        connection = Connection(router.port)
        answer = connection.get("acme", "/not-mine")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        connection.close()


def test_a_cell_that_cannot_be_reached_is_503_with_retry_after_for_its_tenants_only(
    upstream: haproxy_servers.Cells,
) -> None:
    cells = [Cell("gone", f"http://127.0.0.1:{free_port()}"), Cell("a", f"http://127.0.0.1:{upstream.ports['a']}")]
    now = CellMap(CellRouter(cells), retry_after=RetryAfter(down=7))
    with Router(now) as router:
        connection = Connection(router.port)
        for tenant in map(str, range(20)):
            answer, there = connection.get(tenant), now.router.for_tenant(tenant).name
            assert (answer.status, answer.headers.get("retry-after")) == (
                (503, "7") if there == "gone" else (200, None)
            )
        connection.close()


def test_a_reload_drops_no_request(upstream: haproxy_servers.Cells) -> None:
    tenant, ended = "acme", threading.Event()
    now = CellMap(router_of(upstream))
    versions: list[str] = []
    lost: list[object] = []

    def arrived(version: str) -> bool:
        return version in versions[-20:] or bool(lost)

    def ask(port: int, *, keep: bool) -> None:
        connection = Connection(port)
        while not ended.is_set():
            try:
                answer = connection.get(tenant, "/x", **({} if keep else {"Connection": "close"}))
            except OSError as error:
                lost.append(error)
                return
            if answer.status != 200:
                lost.append(answer.status)
            versions.append(answer.headers["x-cell-map-version"])
            if answer.headers.get("connection") == "close":
                connection.close()
                connection = Connection(port)
        connection.close()

    with Router(now) as router:
        threads = [
            threading.Thread(target=ask, args=(router.port,), kwargs={"keep": keep}) for keep in (True, True, False)
        ]
        for thread in threads:
            thread.start()
        try:
            for version in range(2, 5):
                now = now.replace(version=version, router=now.router.replace(pins={tenant: NAMES[version % 3]}))
                router.reload(now, partial(arrived, str(now.stamp)))
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    assert not lost
    assert {"0.1", "0.2", "0.3", "0.4"} == set(versions)


def test_the_command_writes_files_that_haproxy_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary, _ = haproxy_servers.found()
    cells = [
        Cell("a", "http://[::1]:8001/x"),
        Cell("b", "https://b.invalid/y"),
        Cell("c", "https://127.0.0.1", state="draining"),
    ]
    (tmp_path / "cells.toml").write_text(toml_text(CellMap(CellRouter(cells), 3)), encoding="utf-8")
    assert main(["cells", "haproxy", str(tmp_path / "cells.toml"), "--out", str(tmp_path / "out")]) == 0
    assert "version 0.3, 3 cells" in capsys.readouterr().out
    checked = subprocess.run(
        [binary, "-c", "-f", tmp_path / "out" / "haproxy.cfg"], capture_output=True, text=True, check=False, timeout=30
    )
    assert checked.returncode == 0, checked.stderr
    assert main(["cells", "haproxy", str(tmp_path / "none.toml"), "--out", str(tmp_path)]) == 2


def test_what_haproxy_cannot_do_is_an_error() -> None:
    cells = [Cell("a", "http://127.0.0.1")]
    with pytest.raises(bulkhead.ConfigurationError, match="fnv1a64"):
        files(CellMap(CellRouter(cells, "fnv1a64")))
    now = CellMap(CellRouter(cells))
    for wrong in (
        {"bind": ":80\n    stats"},
        {"tenant_header": "X Y"},
        {"tenant_header": "X'Y"},
        {"cell_header": "X_Cell"},
        {"trusted": ["here"]},
        {"stats_socket": "/x level admin'"},
    ):
        with pytest.raises(bulkhead.ConfigurationError):
            files(now, **wrong)

"""The reverse proxy for cells on a real uvicorn, in front of real cells: what passes, what does not, and who is told what."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import httpx
import pytest
from polling import until

pytest.importorskip("aiohttp")
from cells.proxying import first_line, proxy

import bulkhead
from bulkhead.cells.cell import Cell
from bulkhead.cells.proxy import CellProxy
from bulkhead.cells.router import CellRouter
from bulkhead.cells.sources import FileSource
from bulkhead.testing.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cells.cell_servers import Cells

    from bulkhead.testing import HttpServer

LOCAL = ["127.0.0.0/8"]


def test_a_request_reaches_the_cell_of_its_tenant(two: Cells) -> None:
    with proxy(two.map) as server:
        for name in ("a", "b"):
            answer = server.get("/orders/a%2Fb%20c?x=%C3%A9&y=1", two.tenant(name), method="POST", content=b"hello")
            told = answer.json()
            assert (told["cell"], told["method"], told["body"]) == (name, "POST", "hello")
            assert told["path"] == "/app/orders/a%2Fb%20c?x=%C3%A9&y=1"
            assert answer.headers["x-cell-map-version"] == "0.1"
            assert "x-cell" not in answer.headers


def test_the_cell_is_told_who_the_client_is(two: Cells) -> None:
    evil = {
        "X-Forwarded-For": "1.2.3.4",
        "Forwarded": "for=1.2.3.4",
        "X-Forwarded-Host": "evil",
        "X-Forwarded-Proto": "https",
    }
    with proxy(two.map) as server:
        told = server.told("/who", headers={**evil, "Host": "shop.example"})
        assert told["x-tenant-id"] == ["acme"]
        assert told["host"] == told["x-forwarded-host"] == ["shop.example"]
        assert (told["x-forwarded-for"], told["x-forwarded-proto"]) == (["127.0.0.1"], ["http"])
        assert "forwarded" not in told
        assert told["via"] == ["1.1 bulkhead"]
        assert told["user-agent"][0].startswith("python-httpx")
    with proxy(two.map, trusted=LOCAL) as server:
        told = server.told("/who", headers=evil)
        assert (told["x-forwarded-for"], told["x-forwarded-proto"]) == (["1.2.3.4, 127.0.0.1"], ["https"])
        assert (told["x-forwarded-host"], told["forwarded"]) == (["evil"], ["for=1.2.3.4"])


def test_hop_by_hop_headers_end_here(two: Cells) -> None:
    hops = {
        "Connection": "X-Own, Host, X-Tenant-ID, Content-Length",
        "X-Own": "1",
        "Keep-Alive": "5",
        "TE": "trailers",
        "Trailer": "x",
        "Proxy-Authorization": "Basic x",
        "Proxy-Connection": "keep-alive",
    }
    with proxy(two.map) as server:
        told = server.told("/who?hops=1", method="POST", content=b"body", headers=hops)
        assert not {"x-own", "keep-alive", "te", "trailer", "proxy-authorization", "proxy-connection"} & told.keys()
        assert (told["x-tenant-id"], told["content-length"]) == (["acme"], ["4"])
        answer = server.get("/who?hops=1")
        assert "x-hop" not in answer.headers
        assert "keep-alive" not in answer.headers
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]


def test_a_request_without_a_tenant_is_refused(two: Cells) -> None:
    with proxy(two.map) as server:
        for headers, reason in (
            ([], "tenant_missing"),
            ([("X-Tenant-ID", "a"), ("X-Tenant-ID", "b")], "tenant_invalid"),
            ([("X-Tenant-ID", "x" * 300)], "tenant_invalid"),
        ):
            answer = server.web.get("/who", headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (400, reason)
            assert answer.headers["x-cell-map-version"] == "0.1"
    assert two.apps["a"].asked == two.apps["b"].asked == 0


def test_the_tenant_may_come_from_the_subdomain(two: Cells) -> None:
    with proxy(two.map, source="subdomain", domain="shop.example") as server:
        told = server.told("/who", "evil", headers={"Host": "acme.shop.example:8080"})
        assert (told["x-tenant-id"], told["host"]) == (["acme"], ["acme.shop.example:8080"])


def test_no_path_climbs_out_of_the_base_path(two: Cells) -> None:
    with proxy(two.map) as server:
        for path in ["/../x", "/%2e%2e/x", "/x/%252E%252e%2fy", "/x/..%5cy"]:
            with server.raw(f"GET {path} HTTP/1.1", "Host: x", "X-Tenant-ID: acme", "Connection: close") as asked:
                assert first_line(asked).startswith("HTTP/1.1 400"), path
    assert two.apps["a"].asked == two.apps["b"].asked == 0


def test_no_target_leads_to_another_host(two: Cells) -> None:
    targets = ["//evil.example/x", "http://evil.example/x", "/http://evil.example/x", "/@evil.example/x"]
    with proxy(two.map) as server:
        for target in targets:
            with server.raw(f"GET {target} HTTP/1.1", "Host: x", "X-Tenant-ID: acme", "Connection: close") as asked:
                assert first_line(asked).startswith("HTTP/1.1 200"), target
    assert two.apps["a"].asked + two.apps["b"].asked == len(targets)


def test_upgrades_and_tunnels_are_answered_501(two: Cells) -> None:
    websocket = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    )
    with proxy(two.map) as server:
        with server.raw("GET /who HTTP/1.1", "Host: x", "X-Tenant-ID: acme", *websocket) as asked:
            assert first_line(asked).startswith("HTTP/1.1 501")
        with server.raw(
            "GET /who HTTP/1.1", "Host: x", "X-Tenant-ID: acme", "Connection: close, Upgrade", "Upgrade: h2c"
        ) as asked:
            assert first_line(asked).startswith("HTTP/1.1 200"), "an offer that may be ignored"
    assert two.apps["a"].asked + two.apps["b"].asked == 1


def test_down_moving_and_frozen_are_503_for_whom_it_concerns(two: Cells) -> None:
    """Known faults 86 and 90: a tenant that moves is 503, others are served, and a 404 of a cell stays one."""
    moving, frozen, other = (two.tenant("a", number) for number in range(3))
    with proxy(two.map.replace(tenants={moving: "moving", frozen: "frozen"})) as server:
        for tenant, seconds in ((moving, "1"), (frozen, "60")):
            answer = server.get("/who", tenant)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, seconds)
            assert answer.headers["content-type"] == "application/problem+json"
            assert tenant not in answer.text
        assert server.get("/who", other).status_code == 200
    with proxy(two.state("a", "down")) as server:
        answer = server.get("/who", other)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert server.get("/who", two.tenant("b")).json()["cell"] == "b"


def test_only_trusted_callers_choose_the_cell(two: Cells) -> None:
    tenant = two.tenant("a")
    routes = two.map.replace(tenants={tenant: "moving"})
    with proxy(routes, trusted=LOCAL) as server:
        answer = server.get("/who", tenant, headers={"X-Cell": "b"})
        assert (answer.json()["cell"], answer.headers["x-cell"]) == ("b", "b")
        assert "x-cell" not in {name for name, _ in answer.json()["headers"]}
        assert server.get("/who", tenant, headers={"X-Cell": "none"}).json()["reason"] == "cell"
    with proxy(two.map, trusted=["10.0.0.0/8"]) as server:
        answer = server.get("/who", tenant, headers={"X-Cell": "b"})
        assert answer.json()["cell"] == "a"
        assert "x-cell" not in {name for name, _ in answer.json()["headers"]}
    with pytest.raises(bulkhead.ConfigurationError, match="trusted: 'localhost' is no network"):
        CellProxy(two.map, trusted=["localhost"])


def test_421_leads_to_the_newest_map(two: Cells) -> None:
    tenant = two.tenant("a")
    with proxy(FileSource(two.file)) as server:
        two.publish(router=two.pinned(**{tenant: "b"}))
        two.apps["a"].not_mine[tenant] = "0.2"
        answer = server.get("/who", tenant)
        assert (answer.json()["cell"], answer.headers["x-cell-map-version"]) == ("b", "0.2")
        two.apps["b"].not_mine[tenant] = ""
        answer = server.get("/who", tenant, method="POST", content=b"once")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_a_redirect_of_the_cell_stays_with_the_proxy(two: Cells) -> None:
    name = two.map.router.for_tenant("acme").name
    with proxy(two.map) as server:
        for there, here in (
            (two.servers[name].url + "/app/x?y", "/x?y"),
            ("/app/x", "/x"),
            ("https://elsewhere.example/app/x", "https://elsewhere.example/app/x"),
        ):
            two.apps[name].redirect_to = there
            assert server.get("/redirect").headers["location"] == here


def test_methods_pass(two: Cells) -> None:
    with proxy(two.map) as server:
        for method in ["HEAD", "OPTIONS", "DELETE", "PUT"]:
            answer = server.get("/who", method=method)
            assert answer.status_code == 200
            assert method == "HEAD" or answer.json()["method"] == method
            assert int(answer.headers["content-length"]) > 0


def test_a_conversation_streams_both_ways(two: Cells) -> None:
    lines = ("POST /quote HTTP/1.1", "Host: x", "X-Tenant-ID: acme", "Transfer-Encoding: chunked")
    with proxy(two.map) as server, server.raw(*lines) as asked, asked.makefile("rb") as read:
        for word in (b"first", b"second"):
            asked.sendall(b"%x\r\n%s\r\n" % (len(word), word))
            while word not in (line := read.readline()):
                assert line, "the answer ended"
        asked.sendall(b"0\r\n\r\n")


@pytest.mark.parametrize("path", ["hang", "drip"])
def test_a_client_that_hangs_up_ends_the_request_at_the_cell(two: Cells, path: str) -> None:
    name = two.map.router.for_tenant("acme").name
    with proxy(two.map, tickets=1) as server:
        with server.raw(f"GET /{path} HTTP/1.1", "Host: x", "X-Tenant-ID: acme"):
            until(lambda: two.apps[name].waiting == 1)
        until(lambda: two.apps[name].hung_up == 1)
        resource = bulkhead.find(f"cell:{name}")
        assert resource is not None
        until(lambda: resource.in_use == 0)
        assert server.get("/who").status_code == 200
        assert resource.totals()["calls", "failure"] == 0


def test_a_client_that_hangs_up_in_its_body_says_nothing_about_the_cell(two: Cells) -> None:
    name = two.map.router.for_tenant("acme").name
    with proxy(two.map, tickets=1) as server:
        with server.raw(
            "POST /upload HTTP/1.1", "Host: x", "X-Tenant-ID: acme", "Content-Length: 1000", body=b"x" * 10
        ):
            until(lambda: two.apps[name].asked == 1)
        resource = bulkhead.find(f"cell:{name}")
        assert resource is not None
        until(lambda: resource.in_use == 0)
        assert resource.totals()["calls", "failure"] == 0


def test_a_response_that_breaks_off_breaks_off_for_the_client(http_server: HttpServer) -> None:
    with proxy(CellRouter([Cell("a", http_server.url)])) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            server.get("/broken")
        assert server.get("/status?code=404").status_code == 404, "what the cell says is not touched"
        resource = bulkhead.find("cell:a")
        assert resource is not None
        assert (resource.totals()["calls", "failure"], resource.in_use) == (1, 0)


def test_a_cell_that_cannot_be_reached_is_502_then_503(two: Cells) -> None:
    router = CellRouter([Cell("gone", f"http://127.0.0.1:{free_port()}"), Cell("b", two.servers["b"].url)])
    gone = next(one for one in map(str, range(100)) if router.for_tenant(one).name == "gone")
    well = next(one for one in map(str, range(100)) if router.for_tenant(one).name == "b")
    with proxy(router, error_threshold=2, error_timeout=60, success_threshold=1) as server:
        assert [server.get("/who", gone).status_code for _ in range(3)] == [502, 502, 503]
        answer = server.get("/who", gone, headers={"Accept": "text/plain"})
        assert (answer.headers["retry-after"], answer.headers["content-type"]) == ("60", "text/plain; charset=utf-8")
        assert server.get("/who", well).status_code == 200


def test_a_cell_that_hangs_is_504_then_503_for_its_tenants_only(two: Cells, http_server: HttpServer) -> None:
    router = CellRouter([Cell("sick", http_server.url), Cell("b", two.servers["b"].url)])
    sick = next(one for one in map(str, range(100)) if router.for_tenant(one).name == "sick")
    well = next(one for one in map(str, range(100)) if router.for_tenant(one).name == "b")
    with (
        proxy(router, read_timeout=1.0, error_threshold=2, error_timeout=60, success_threshold=1) as server,
        http_server.paused(),
    ):
        assert [server.get("/ok", sick).status_code for _ in range(3)] == [504, 504, 503]
        assert server.get("/who", well).status_code == 200


def test_a_cell_that_takes_no_more_of_a_body_is_504_and_counts(http_server: HttpServer) -> None:
    router = CellRouter([Cell("sick", http_server.url)])
    with proxy(router, read_timeout=0.3, tickets=1, error_threshold=2, error_timeout=60, success_threshold=1) as server:
        assert server.get("/ok").status_code == 200
        resource = bulkhead.find("cell:sick")
        assert resource is not None
        with http_server.paused():
            for status in (504, 504, 503):
                assert server.get("/ok", method="POST", content=bytes(32 << 20)).status_code == status
                until(lambda: resource.in_use == 0)
        assert resource.totals()["calls", "failure"] == 2


def test_a_client_may_take_longer_for_its_body_than_a_cell_for_a_part_of_it(two: Cells) -> None:
    paced = threading.Event()

    def body() -> Iterator[bytes]:
        for _ in range(5):
            paced.wait(0.2)  # a slow client
            yield b"x" * 1000

    with proxy(two.map, read_timeout=0.3) as server:
        assert server.get("/upload", method="POST", content=body()).text == "5000"


def test_call_timeout_is_a_time_out_of_the_cell(two: Cells) -> None:
    with proxy(two.map, call_timeout=0.2) as server:
        assert server.get("/hang").status_code == 504


def test_other_options_for_the_same_cells_are_found_at_construction(two: Cells) -> None:
    CellProxy(two.map, tickets=1)
    with pytest.raises(bulkhead.ConfigurationError, match="tickets"):
        CellProxy(two.map, tickets=2)


def test_no_free_ticket_is_503(two: Cells) -> None:
    name = two.map.router.for_tenant("acme").name
    with proxy(two.map, tickets=1) as server, server.raw("GET /hang HTTP/1.1", "Host: x", "X-Tenant-ID: acme"):
        until(lambda: two.apps[name].waiting == 1)
        answer = server.get("/who")
        assert (answer.status_code, answer.json()["reason"]) == (503, "busy")

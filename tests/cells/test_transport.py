"""The httpx transports for cells against real HTTP servers: who is asked, with which headers, in whose name."""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import pytest

import bulkhead
from bulkhead.cells.cell import Cell
from bulkhead.cells.maps import CellMap
from bulkhead.cells.router import CellRouter
from bulkhead.cells.sources import FileSource
from bulkhead.cells.transport import AsyncCellTransport, CellTransport
from bulkhead.cells.transport_errors import (
    HttpxCellCircuitOpenError,
    HttpxCellTenantError,
    HttpxCellUnavailableError,
    HttpxUnsafePathError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cells.cell_servers import Cells

    from bulkhead.testing import HttpServer

LONG = 30.0


class Asking:
    """A plain and an asynchronous client behind one interface."""

    def __init__(self, kind: str, routes: Any, **options: Any) -> None:
        self.kind = kind
        client_options: dict[str, Any] = {
            "timeout": options.pop("timeout", LONG),
            "base_url": "http://cell.internal",
            "trust_env": False,
        }
        if kind == "sync":
            self.transport: Any = CellTransport(routes, transport=httpx.HTTPTransport(verify=False), **options)
            self.client: Any = httpx.Client(transport=self.transport, **client_options)
        else:
            self.transport = AsyncCellTransport(routes, transport=httpx.AsyncHTTPTransport(verify=False), **options)
            self.client = httpx.AsyncClient(transport=self.transport, **client_options)
            self.loop = asyncio.new_event_loop()

    def ask(self, method: str, url: str, tenant: Any = None, **options: Any) -> httpx.Response:
        if tenant is not None:
            options["extensions"] = {"tenant": tenant}
        asked = self.client.request(method, url, **options)
        answer: httpx.Response = asked if self.kind == "sync" else self.loop.run_until_complete(asked)
        return answer

    def get(self, url: str, tenant: Any = None, **options: Any) -> httpx.Response:
        return self.ask("GET", url, tenant, **options)

    def close(self) -> None:
        if self.kind == "sync":
            self.client.close()
        else:
            self.loop.run_until_complete(self.client.aclose())
            self.loop.close()


@pytest.fixture(params=["sync", "async"])
def asking(request: pytest.FixtureRequest) -> Iterator[Callable[..., Asking]]:
    """Makes clients of either kind."""
    made: list[Asking] = []

    def make(routes: Any, **options: Any) -> Asking:
        made.append(Asking(request.param, routes, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def headers_of(answer: httpx.Response, name: str) -> list[str]:
    return [value for key, value in answer.json()["headers"] if key == name]


def test_a_request_goes_to_the_cell_of_its_tenant(two: Cells, asking: Callable[..., Asking]) -> None:
    client = asking(two.map.router)
    for name in ("a", "b"):
        answer = client.get("/orders/17?limit=2", two.tenant(name))
        assert answer.json()["cell"] == name
        assert answer.json()["path"] == "/app/orders/17?limit=2"
        assert answer.extensions["cell"] == name
        assert answer.extensions["cell_map_version"] == "0.1"
        assert str(answer.url) == "http://cell.internal/orders/17?limit=2"
        assert headers_of(answer, "host") == [two.servers[name].url.removeprefix("http://")]


def test_the_tenant_comes_from_the_context_or_the_extension(two: Cells, asking: Callable[..., Asking]) -> None:
    client = asking(two.map)
    with bulkhead.tenant("acme"):
        assert headers_of(client.get("/who"), "x-tenant-id") == ["acme"]
        assert headers_of(client.get("/who", "other"), "x-tenant-id") == ["other"]
        assert bulkhead.current_tenant() == "acme"
    assert headers_of(client.get("/who", 7), "x-tenant-id") == ["7"]
    who = UUID(int=7)
    assert headers_of(client.get("/who", who), "x-tenant-id") == [str(who)]
    assert headers_of(client.get("/who", "Größe"), "x-tenant-id") == ["Größe".encode().decode("latin-1")]


def test_the_tenant_header_of_the_caller_is_replaced(two: Cells, asking: Callable[..., Asking]) -> None:
    client = asking(two.map, tenant_header="X-Customer")
    answer = client.get("/who", "acme", headers=[("x-customer", "evil"), ("X-CUSTOMER", "evil"), ("Host", "vhost")])
    assert headers_of(answer, "x-customer") == ["acme"]
    assert headers_of(answer, "host") == ["vhost"]


def test_without_a_tenant_nothing_is_sent(two: Cells, asking: Callable[..., Asking]) -> None:
    client = asking(two.map)
    with pytest.raises(HttpxCellTenantError, match=r"outside any tenant.*extensions") as caught:
        client.get("/who", headers={"X-Tenant-ID": "acme"})
    assert isinstance(caught.value, httpx.HTTPError)
    assert isinstance(caught.value, bulkhead.UnknownTenantError)
    assert caught.value.request.url.path == "/who"
    for blank in (" acme", "acme "):
        with pytest.raises(HttpxCellTenantError, match="blank"):
            client.get("/who", blank)
    with pytest.raises(bulkhead.ConfigurationError):
        client.get("/who", "a\nb")
    assert two.apps["a"].asked == two.apps["b"].asked == 0


def test_other_hosts_are_asked_without_the_tenant_header(
    two: Cells, asking: Callable[..., Asking], http_server: HttpServer
) -> None:
    client = asking(two.map)
    answer = client.get(http_server.url + "/echo", "acme", headers={"X-Tenant-ID": "acme", "X-Other": "1"})
    told = {name.lower() for name in answer.json()["headers"]}
    assert "x-other" in told
    assert "x-tenant-id" not in told
    assert "cell" not in answer.extensions


def test_a_redirect_to_another_host_does_not_carry_the_tenant(
    two: Cells, asking: Callable[..., Asking], http_server: HttpServer
) -> None:
    client = asking(two.map)
    for app in two.apps.values():
        app.redirect_to = http_server.url + "/echo"
    answer = client.get("/redirect", "acme", headers={"x-tenant-id": "mine"}, follow_redirects=True)
    assert answer.url == http_server.url + "/echo"
    assert "x-tenant-id" not in {name.lower() for name in answer.json()["headers"]}


@pytest.mark.parametrize("form", ["{base}/who?x=1", "/app/who?x=1", "http://cell.internal/who?x=1"])
def test_a_redirect_within_the_cell_is_followed_there(two: Cells, asking: Callable[..., Asking], form: str) -> None:
    client = asking(two.map)
    name = two.map.router.for_tenant("acme").name
    two.apps[name].redirect_to = form.format(base=two.servers[name].url + "/app")
    answer = client.get("/redirect", "acme", follow_redirects=True)
    assert (answer.json()["cell"], answer.json()["path"]) == (name, "/app/who?x=1")
    assert headers_of(answer, "x-tenant-id") == ["acme"]


def test_no_path_leads_out_of_the_base_path(two: Cells, asking: Callable[..., Asking]) -> None:
    client = asking(two.map)
    for path in ("/%2e%2e/admin", "/x/..%2fadmin", "/x/%252e%252e/admin"):
        with pytest.raises(HttpxUnsafePathError) as caught:
            client.get(f"http://cell.internal{path}", "acme")
        assert isinstance(caught.value, httpx.HTTPError)
    for path in ("//evil.example/x", "/@evil.example/x", "/http://evil.example/"):
        assert client.get(f"http://cell.internal{path}", "acme").json()["path"].startswith("/app/")


def test_a_cell_that_is_down_is_not_asked_and_others_are(two: Cells, asking: Callable[..., Asking]) -> None:
    """Known fault 90: health never sends a tenant to a cell without its data."""
    client = asking(CellMap(two.state("a", "down")))
    with pytest.raises(HttpxCellUnavailableError) as caught:
        client.get("/who", two.tenant("a"))
    assert (caught.value.reason, caught.value.retry_after, caught.value.identifier) == ("down", 5.0, "cell:a")
    assert isinstance(caught.value, httpx.TransportError)
    assert bulkhead.rejection(caught.value) is caught.value
    assert client.get("/who", two.tenant("b")).json()["cell"] == "b"
    assert two.apps["a"].asked == 0
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert str(again) == str(caught.value)


def test_a_tenant_that_is_moving_is_refused_alone(two: Cells, asking: Callable[..., Asking]) -> None:
    """Known fault 86."""
    moving, other = two.tenant("a"), two.tenant("a", 1)
    client = asking(two.map.replace(tenants={moving: "moving"}))
    with pytest.raises(HttpxCellUnavailableError) as caught:
        client.get("/who", moving)
    assert (caught.value.reason, caught.value.retry_after) == ("moving", 1.0)
    assert client.get("/who", other).status_code == 200


def test_a_draining_cell_is_routed_as_an_active_one(two: Cells, asking: Callable[..., Asking]) -> None:
    client = asking(two.state("a", "draining"))
    assert client.get("/who", two.tenant("a")).json()["cell"] == "a"


def test_bodies_are_streamed_both_ways(two: Cells) -> None:
    chunks = 0

    def body() -> Iterator[bytes]:
        nonlocal chunks
        for _ in range(50):
            chunks += 1
            yield bytes(10_000)

    with httpx.Client(transport=CellTransport(two.map), base_url="http://cell.internal", timeout=LONG) as client:
        assert client.post("/upload", content=body(), extensions={"tenant": "acme"}).text == "500000"
        with client.stream("GET", "/drip", extensions={"tenant": "acme"}) as answer:
            assert next(answer.iter_raw()) == b"first"
            assert bulkhead.find(f"cell:{answer.extensions['cell']}") is not None
    assert chunks == 50


def test_each_cell_has_a_resource_and_its_tickets_come_back(two: Cells, asking: Callable[..., Asking]) -> None:
    client = asking(two.map, tickets=2, tenant_tickets=1)
    for number in range(5):
        assert client.get("/who", two.tenant("a", number)).status_code == 200
    resource = bulkhead.find("cell:a")
    assert resource is not None
    assert (resource.limit, resource.in_use) == (2, 0)


def test_options_with_a_name_are_refused(two: Cells) -> None:
    with pytest.raises(bulkhead.ConfigurationError, match="cell:<name>"):
        CellTransport(two.map, name="cells")


def test_a_cell_that_hangs_fails_fast_for_its_tenants_only(
    http_server: HttpServer, two: Cells, asking: Callable[..., Asking]
) -> None:
    router = CellRouter([Cell("sick", http_server.url), Cell("well", two.servers["b"].url)])
    sick = next(one for one in map(str, range(100)) if router.for_tenant(one).name == "sick")
    well = next(one for one in map(str, range(100)) if router.for_tenant(one).name == "well")
    client = asking(
        router, error_threshold=2, error_timeout=60, success_threshold=1, timeout=httpx.Timeout(LONG, read=1.0)
    )
    assert client.get("/ok", sick).status_code == 200
    with http_server.paused():
        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                client.get("/ok", sick)
        for _ in range(20):
            with pytest.raises(HttpxCellCircuitOpenError) as caught:
                client.get("/ok", sick)
        assert isinstance(caught.value, httpx.HTTPError)
        assert client.get("/who", well).status_code == 200


def test_call_timeout_holds_until_the_headers_are_there(two: Cells, asking: Callable[..., Asking]) -> None:
    client = asking(two.map, call_timeout=1.0)
    with pytest.raises(httpx.ReadTimeout):
        client.get("/hang", "acme")


def test_421_leads_to_the_newest_map_and_to_one_more_try(two: Cells, asking: Callable[..., Asking]) -> None:
    """Known fault 89: the answer "not my tenant" drops what was known about the tenant."""
    tenant = two.tenant("a")
    source = FileSource(two.file)
    client = asking(source)
    assert client.get("/who", tenant).json()["cell"] == "a"
    two.publish(router=two.pinned(**{tenant: "b"}))
    two.apps["a"].not_mine[tenant] = "0.2"
    answer = client.ask("POST", "/who", tenant, content=b"again")
    assert (answer.json()["cell"], answer.json()["body"]) == ("b", "again")
    assert answer.extensions["cell_map_version"] == "0.2"
    assert client.get("/who", tenant).json()["cell"] == "b"
    assert source.refreshes == 1


def test_421_of_a_body_that_is_gone_is_a_rejection(two: Cells) -> None:
    tenant = two.tenant("a")
    with httpx.Client(transport=CellTransport(FileSource(two.file)), base_url="http://cell.internal") as client:
        two.publish(router=two.pinned(**{tenant: "b"}))
        two.apps["a"].not_mine[tenant] = ""
        with pytest.raises(HttpxCellUnavailableError) as caught:
            client.post("/who", content=iter([b"once"]), extensions={"tenant": tenant})
        assert (caught.value.reason, caught.value.retry_after) == ("misdirected", 1.0)
        again = client.post("/who", content=iter([b"once"]), extensions={"tenant": tenant})
    assert (again.json()["cell"], again.json()["body"]) == ("b", "once")


@pytest.mark.anyio
async def test_100_answers_421_cause_at_most_two_look_ups(two: Cells) -> None:
    tenant = two.tenant("a")
    source = FileSource(two.file)
    two.apps["a"].not_mine[tenant] = "0.9"

    async def ask(client: httpx.AsyncClient) -> str:
        try:
            await client.get("/who", extensions={"tenant": tenant})
        except HttpxCellUnavailableError as error:
            return error.reason
        return "answered"

    async with httpx.AsyncClient(
        transport=AsyncCellTransport(source), base_url="http://cell.internal", timeout=LONG
    ) as client:
        assert await asyncio.gather(*(ask(client) for _ in range(100))) == ["misdirected"] * 100
    assert source.refreshes <= 2


def test_a_map_that_goes_backwards_changes_nothing(
    two: Cells, asking: Callable[..., Asking], caplog: pytest.LogCaptureFixture
) -> None:
    tenant = two.tenant("a")
    two.publish(router=two.pinned(**{tenant: "b"}))
    source = FileSource(two.file)
    client = asking(source)
    two.publish(router=two.pinned(), version=1)
    with caplog.at_level(logging.ERROR, "bulkhead"):
        source.refresh()
    assert client.get("/who", tenant).json()["cell"] == "b"
    assert "older" in caplog.text


def test_the_last_good_map_serves_while_its_source_is_gone_and_after_a_restart(
    two: Cells, asking: Callable[..., Asking], tmp_path: Path
) -> None:
    """Known fault 89b: a look-up that fails is no "not found"."""
    tenant = two.tenant("a")
    two.publish(router=two.pinned(**{tenant: "b"}))
    source = FileSource(two.file, keep=tmp_path / "kept.toml")
    two.file.unlink()
    source.refresh()
    assert asking(source).get("/who", tenant).json()["cell"] == "b"
    restarted = FileSource(two.file, keep=tmp_path / "kept.toml")
    assert asking(restarted).get("/who", tenant).json()["cell"] == "b"


def test_it_can_be_one_of_several_mounts(two: Cells, http_server: HttpServer) -> None:
    mounts = {"http://cell.internal": CellTransport(two.map)}
    with httpx.Client(mounts=mounts, timeout=LONG) as client, bulkhead.tenant("acme"):
        assert client.get("http://cell.internal/who").json()["cell"] in ("a", "b")
        assert client.get(http_server.url + "/ok").text == "ok"


@pytest.mark.anyio
async def test_a_cancelled_request_gives_its_ticket_back(two: Cells, aeventually: Any) -> None:
    name = two.map.router.for_tenant("acme").name
    async with httpx.AsyncClient(
        transport=AsyncCellTransport(two.map, tickets=1), base_url="http://cell.internal", timeout=LONG
    ) as client:
        task = asyncio.create_task(client.get("/hang", extensions={"tenant": "acme"}))
        await aeventually(lambda: two.apps[name].waiting == 1, LONG)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.get("/who", extensions={"tenant": "acme"})).status_code == 200
        await aeventually(lambda: two.apps[name].hung_up == 1, LONG)


def test_with_the_adapter_a_request_counts_once_at_the_cell(two: Cells) -> None:
    import adapters.httpx  # noqa: F401, PLC0415  it patches

    seen: list[str | None] = []
    with (
        bulkhead.subscribe(lambda event: seen.append(event.identifier)),
        httpx.Client(transport=CellTransport(two.map), base_url="http://cell.internal") as client,
    ):
        client.get("/who", extensions={"tenant": "acme"})
    assert seen.count(f"cell:{two.map.router.for_tenant('acme').name}") == 1
    assert not [one for one in seen if one and one.startswith("http:")]

"""httpx: which resource a request belongs to, in every form of options, and clients that exist already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drivers.httpx_harness import each_library, errors_of

import bulkhead
from bulkhead.testing import HttpServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import RunPython

    from bulkhead.adapter import Resource

pytestmark = each_library


def found(name: str) -> Resource:
    resource = bulkhead.find(f"http:{name}")
    assert resource is not None, sorted(bulkhead.resources())
    return resource


@pytest.fixture(scope="module")
def other_server() -> Iterator[HttpServer]:
    with HttpServer() as server:
        yield server


def test_hosts_and_ports_have_circuits_of_their_own(
    library: Any, http_server: HttpServer, other_server: HttpServer
) -> None:
    """NH-25."""
    with library.Client(**bulkhead.options(tickets=2)) as client:
        for server in (http_server, other_server):
            assert client.get(f"{server.url}/ok").text == "ok"
        found(http_server.address).open()
        with pytest.raises(errors_of(library).open):
            client.get(f"{http_server.url}/ok")
        assert client.get(f"{other_server.url}/ok").text == "ok"


def test_a_redirect_to_another_host_is_a_call_on_that_host(
    library: Any, http_server: HttpServer, other_server: HttpServer
) -> None:
    """NH-25, also where the client has a base URL."""
    options = bulkhead.options(tickets=1)
    with library.Client(base_url=http_server.url, follow_redirects=True, **options) as client:
        assert bulkhead.find(f"http:{other_server.address}") is None
        assert client.get("/redirect", params={"to": f"{other_server.url}/ok"}).text == "ok"
        found(other_server.address).open()
        with pytest.raises(errors_of(library).open) as caught:
            client.get("/redirect", params={"to": f"{other_server.url}/ok"})
        assert caught.value.identifier == f"http:{other_server.address}"
        assert client.get("/ok").text == "ok"


def test_a_name_combines_hosts(library: Any, http_server: HttpServer, other_server: HttpServer) -> None:
    """NH-18."""
    with library.Client(**bulkhead.options(name="both", tickets=2)) as client:
        for server in (http_server, other_server):
            client.get(f"{server.url}/ok")
        found("both").open()
        for server in (http_server, other_server):
            with pytest.raises(errors_of(library).open):
                client.get(f"{server.url}/ok")


def test_the_default_port_of_the_scheme_is_part_of_the_name(library: Any) -> None:
    options = bulkhead.options(tickets=2)
    for url, name in {
        "https://origin.test/v1": "origin.test:443",
        "http://origin.test": "origin.test:80",
        "http://[::1]:8080": "[::1]:8080",
    }.items():
        library.Client(base_url=url, **options).close()
        assert found(name).limit == 2


def test_a_look_up_table_decides_by_host_and_port(
    library: Any, http_server: HttpServer, other_server: HttpServer
) -> None:
    """NH-12, NH-14, NH-15, NH-19: an entry, a default name, nothing."""
    asked: list[Any] = []
    table: dict[Any, Any] = {("127.0.0.1", http_server.port): {"name": "listed", "tickets": 3}}

    def ask(driver: str, host: str | None, port: int | None, extra: Any) -> Any:
        asked.append((driver, host, port, extra["scheme"]))
        return table.get((host, port), default)

    default: Any = None
    with library.Client(bulkhead=ask) as client:
        for _ in range(3):
            client.get(f"{http_server.url}/ok")
            client.get(f"{other_server.url}/ok")
    assert asked == [(library.__name__, "127.0.0.1", one.port, "http") for one in (http_server, other_server)]
    assert found("listed").limit == 3
    assert bulkhead.find(f"http:{other_server.address}") is None
    default = {"name": "fallback", "tickets": 4}
    with library.Client(bulkhead=ask) as client:
        client.get(f"{other_server.url}/ok")
    assert found("fallback").limit == 4


def test_a_flag_on_one_client_switches_it_off(library: Any, http_server: HttpServer) -> None:
    """NH-16, NH-17."""
    options = bulkhead.options(name="flagged", tickets=2)
    with (
        library.Client(base_url=http_server.url, **options) as on,
        library.Client(base_url=http_server.url, bulkhead=False) as off,
    ):
        on.get("/ok")
        found("flagged").open()
        with pytest.raises(errors_of(library).open):
            on.get("/ok")
        assert off.get("/ok").text == "ok"
        assert type(off._transport) is library.HTTPTransport


def test_dynamic_options_choose_a_resource_for_each_call(library: Any, http_server: HttpServer) -> None:
    """NH-28."""
    shard = "one"

    def ask(driver: str, host: str | None, port: int | None, extra: Any) -> Any:
        return None if shard == "none" else {"name": f"shard-{shard}", "tickets": 2, "dynamic": True}

    with library.Client(base_url=http_server.url, bulkhead=ask) as client:
        client.get("/ok")
        found("shard-one").open()
        with pytest.raises(errors_of(library).open):
            client.get("/ok")
        shard = "two"
        assert client.get("/ok").text == "ok"
        assert found("shard-two").state == "closed"
        shard = "none"
        found("shard-two").open()
        assert client.get("/ok").text == "ok"


def test_the_environment_disables_and_identifiers_still_work(
    library: Any, http_server: HttpServer, run_python: RunPython
) -> None:
    """NH-27."""
    source = f"""
import sys, bulkhead
bulkhead.install()
import {library.__name__} as library
with library.Client(base_url=sys.argv[1], **bulkhead.options(name="env", tickets=1)) as client:
    bulkhead.find("http:env").open()
    print(client.get("/ok").text, bulkhead.find("http:env").identifier)
"""
    done = run_python(source, http_server.url, env={"BULKHEAD_DISABLED": "1"})
    assert done.stdout.split() == ["ok", "http:env"]


def test_a_client_remembers_a_bounded_number_of_hosts(library: Any) -> None:
    """Known fault 55: URLs from users must not fill the memory."""
    answer = library.MockTransport(lambda request: library.Response(200, text="ok"))
    with library.Client(transport=answer, **bulkhead.options(tickets=2)) as client:
        for number in range(600):
            client.get(f"http://host-{number}.test/")
        assert len(client._transport.choice._known) <= 256


def test_protect_takes_a_client_that_exists(library: Any, http_server: HttpServer) -> None:
    with library.Client(base_url=http_server.url) as client:
        assert client.get("/ok").text == "ok"
        assert bulkhead.protect(client, name="existing", tickets=1) is client
        assert type(client) is library.Client
        with client.stream("GET", "/ok"), pytest.raises(errors_of(library).busy):
            client.get("/ok")
        bulkhead.protect(client, name="existing", tickets=1)
        assert client.get("/ok").text == "ok", "protected twice is protected once"
        with pytest.raises(bulkhead.ConfigurationError, match="other options"):
            bulkhead.protect(client, name="existing", tickets=2)


@pytest.mark.anyio
async def test_protect_takes_an_asynchronous_client_too(library: Any, http_server: HttpServer) -> None:
    async with library.AsyncClient(base_url=http_server.url) as client:
        bulkhead.protect(client, name="existing-async", tickets=1)
        async with client.stream("GET", "/ok"):
            with pytest.raises(errors_of(library).busy):
                await client.get("/ok")


def test_subclasses_of_a_client_pass_options_on(library: Any, http_server: HttpServer) -> None:
    class Api(library.Client):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            super().__init__(base_url=http_server.url, **given)

    options = bulkhead.options(name="subclass", tickets=1)
    with Api(**options) as client, client.stream("GET", "/ok"), pytest.raises(errors_of(library).busy):
        client.get("/ok")


def test_options_of_other_drivers_are_refused_where_the_client_is_built(library: Any) -> None:
    with pytest.raises(bulkhead.ConfigurationError, match="open_circuit_on_oom"):
        library.Client(**bulkhead.options(tickets=1, open_circuit_on_oom=True))


def test_both_libraries_share_a_resource_by_name(library: Any, http_server: HttpServer) -> None:
    """Each raises its own rejection."""
    other = pytest.importorskip("httpx2" if library.__name__ == "httpx" else "httpx")
    options = bulkhead.options(name="shared", tickets=1)
    with (
        library.Client(base_url=http_server.url, **options) as one,
        other.Client(base_url=http_server.url, **options) as two,
    ):
        found("shared").open()
        for client, module in ((one, library), (two, other)):
            with pytest.raises(module.TransportError) as caught:
                client.get("/ok")
            assert type(caught.value) is errors_of(module).open

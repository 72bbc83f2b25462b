"""httpx: transports of every make keep working behind ours, proxies and mounts too, and other tools find theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drivers.harness import Seen
from drivers.httpx_harness import each_library, errors_of

import adapters
import bulkhead
from bulkhead import events
from bulkhead.testing import ScriptedServer

if TYPE_CHECKING:
    import socket

    from bulkhead.adapter import Resource
    from bulkhead.testing import HttpServer

pytestmark = each_library


def found(name: str) -> Resource:
    resource = bulkhead.find(f"http:{name}")
    assert resource is not None
    return resource


def test_a_mock_transport_gives_its_ticket_back_at_once(library: Any) -> None:
    """Its responses are complete: nobody closes them."""
    answer = library.MockTransport(lambda request: library.Response(200, text="mock"))
    with library.Client(transport=answer, **bulkhead.options(name="mock", tickets=1)) as client:
        kept = [client.send(client.build_request("GET", "http://mock.test/"), stream=True) for _ in range(3)]
        assert [one.read() for one in kept] == [b"mock"] * 3
        found("mock").open()
        with pytest.raises(errors_of(library).open):
            client.get("http://mock.test/")


def test_a_mock_that_streams_holds_its_ticket(library: Any) -> None:
    answer = library.MockTransport(lambda request: library.Response(200, content=iter([b"a", b"b"])))
    with library.Client(transport=answer, **bulkhead.options(name="mock-stream", tickets=1)) as client:
        with client.stream("GET", "http://mock.test/") as response:
            assert found("mock-stream").in_use == 1
            assert response.read() == b"ab"
        assert found("mock-stream").in_use == 0


def test_a_wsgi_application_is_guarded(library: Any) -> None:
    def application(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("content-type", "text/plain")])
        return [b"wsgi"]

    transport = library.WSGITransport(app=application)
    with library.Client(transport=transport, **bulkhead.options(name="wsgi", tickets=1)) as client:
        assert client.get("http://app.test/").text == "wsgi"
        assert found("wsgi").in_use == 0
        found("wsgi").open()
        with pytest.raises(errors_of(library).open):
            client.get("http://app.test/")


@pytest.mark.anyio
async def test_an_asgi_application_is_guarded(library: Any) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"asgi"})

    transport = library.ASGITransport(app=application)
    async with library.AsyncClient(transport=transport, **bulkhead.options(name="asgi", tickets=1)) as client:
        assert (await client.get("http://app.test/")).text == "asgi"
        assert found("asgi").in_use == 0
        found("asgi").open()
        with pytest.raises(errors_of(library).open):
            await client.get("http://app.test/")


def test_a_transport_that_retries_makes_one_call(library: Any, http_server: HttpServer) -> None:
    """A transport of somebody else's is one attempt for us; what it guards itself by the same name is part of it."""
    inner = library.Client(base_url=http_server.url, **bulkhead.options(name="nested", tickets=1))

    class Through(library.BaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            for _ in range(2):
                text = inner.get(request.url.path).text
            return library.Response(200, text=text)

    with (
        inner,
        library.Client(transport=Through(), **bulkhead.options(name="nested", tickets=1)) as outer,
        Seen("http:nested", events.Success, events.Busy) as seen,
    ):
        assert outer.get("http://any.test/ok").text == "ok"
        assert len(seen.all) == 1
        assert inner.get("/ok").text == "ok"
        assert len(seen.all) == 2


@pytest.mark.anyio
async def test_an_asynchronous_transport_of_somebody_else_may_contain_a_client(
    library: Any, http_server: HttpServer
) -> None:
    inner = library.AsyncClient(base_url=http_server.url, **bulkhead.options(name="nested-async", tickets=1))

    class Through(library.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            return library.Response(200, text=(await inner.get(request.url.path)).text)

    options = bulkhead.options(name="nested-async", tickets=1)
    async with inner, library.AsyncClient(transport=Through(), **options) as outer:
        with Seen("http:nested-async", events.Success, events.Busy) as seen:
            assert (await outer.get("http://any.test/ok")).text == "ok"
            assert len(seen.all) == 1


def test_one_transport_of_two_clients_is_guarded_by_each(library: Any, http_server: HttpServer) -> None:
    """And the transport of a protected client, given to another one, is not guarded twice (otel#3106)."""
    shared = library.HTTPTransport()
    one = library.Client(transport=shared, **bulkhead.options(name="one", tickets=1))
    two = library.Client(transport=shared, **bulkhead.options(name="two", tickets=1))
    three = library.Client(transport=one._transport, **bulkhead.options(name="three", tickets=1))
    plain = library.Client(transport=shared)
    with one, Seen("http:one", events.Success) as first, Seen("http:three", events.Success) as third:
        for client in (one, two, three, plain):
            assert client.get(f"{http_server.url}/ok").text == "ok"
        assert (len(first.all), len(third.all)) == (1, 1)
        found("two").open()
        with pytest.raises(errors_of(library).open):
            two.get(f"{http_server.url}/ok")
        assert one.get(f"{http_server.url}/ok").text == "ok"
        assert plain.get(f"{http_server.url}/ok").text == "ok"


def test_proxies_and_exceptions_from_the_environment_hold(
    library: Any, http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """otel#2341, #3020: passing a transport would have switched them off; a NO_PROXY mount is None."""

    def talk(connection: socket.socket) -> None:
        asked.append(connection.recv(65536).split(b" ")[1].decode())
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nproxy")
        connection.close()

    asked: list[str] = []
    with ScriptedServer(talk) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with library.Client(**bulkhead.options(name="proxies", tickets=1)) as client:
            assert None in client._mounts.values()
            assert client.get("http://far.test/x").text == "proxy"
            assert client.get(f"{http_server.url}/ok").text == "ok"
            assert asked == ["http://far.test/x"]
            found("proxies").open()
            for url in ("http://far.test/x", f"{http_server.url}/ok"):
                with pytest.raises(errors_of(library).open):
                    client.get(url)


def test_mounts_are_guarded_and_closed(library: Any) -> None:
    closed: list[str] = []

    class Named(library.BaseTransport):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.name = name

        def handle_request(self, request: Any) -> Any:
            return library.Response(200, text=self.name)

        def close(self) -> None:
            closed.append(self.name)

    mounts = {"http://a.test": Named("a"), "http://b.test": None}
    with library.Client(transport=Named("rest"), mounts=mounts, **bulkhead.options(name="mounts", tickets=1)) as client:
        assert [client.get(f"http://{host}.test").text for host in "abc"] == ["a", "rest", "rest"]
        assert client._transport.name == "rest", "other attributes are the inner transport's"
        found("mounts").open()
        with pytest.raises(errors_of(library).open):
            client.get("http://a.test")
    assert sorted(closed) == ["a", "rest"]


def test_uninstalled_clients_pass_through(library: Any, http_server: HttpServer) -> None:
    with library.Client(base_url=http_server.url, **bulkhead.options(name="uninstalled", tickets=1)) as client:
        found("uninstalled").open()
        adapters.uninstall()
        try:
            assert client.get("/ok").text == "ok"
            with pytest.raises(TypeError, match="bulkhead"):
                library.Client(bulkhead="x")
        finally:
            adapters.install()
        with pytest.raises(errors_of(library).open):
            client.get("/ok")


def test_a_tool_that_wraps_the_transport_of_a_client_works_on_both_sides(
    library: Any, http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tracers wrap `client._transport.handle_request`, mocking tools the method of the class."""
    seen: list[str] = []

    def watch(name: str, original: Any) -> Any:
        def watching(*given: Any) -> Any:
            seen.append(name)
            return original(*given)

        return watching

    with library.Client(base_url=http_server.url, **bulkhead.options(name="traced", tickets=1)) as client:
        outer = client._transport
        monkeypatch.setattr(outer, "handle_request", watch("above", outer.handle_request))
        kind = library.HTTPTransport
        monkeypatch.setattr(kind, "handle_request", watch("below", kind.handle_request))
        assert client.get("/ok").text == "ok"
        assert seen == ["above", "below"]
        found("traced").open()
        with pytest.raises(errors_of(library).open):
            client.get("/ok")
        assert seen == ["above", "below", "above"]

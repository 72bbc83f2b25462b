"""httpx: what one guarded call is, from the first byte to the closed response."""

from __future__ import annotations

import asyncio
import gc
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from drivers.harness import Seen
from drivers.httpx_harness import each_library, errors_of
from polling import auntil, until_due

import adapters
import bulkhead
from bulkhead import events
from bulkhead.testing import HttpServer

if TYPE_CHECKING:
    from bulkhead.adapter import Resource

pytestmark = each_library
QUICK: dict[str, Any] = {"error_threshold": 2, "error_timeout": 5.0, "success_threshold": 1}
CHUNKS = {"n": 400, "size": 1000}  # more than httpcore reads at once


def found(name: str) -> Resource:
    resource = bulkhead.find(f"http:{name}")
    assert resource is not None
    return resource


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "POST", "PUT", "PATCH"])
def test_every_method_is_refused_and_nothing_is_sent(library: Any, method: str, http_server: HttpServer) -> None:
    """NH-07, NH-08, NH-11."""
    with library.Client(base_url=http_server.url, **bulkhead.options(name="methods", tickets=2)) as client:
        assert client.request(method, "/ok").status_code == 200
        before = http_server.count("/ok")
        found("methods").open()
        with pytest.raises(errors_of(library).open) as caught:
            client.request(method, "/ok")
        assert caught.value.request.method == method
        with pytest.raises(errors_of(library).open):
            client.send(client.build_request(method, "/ok"), stream=True)
        assert http_server.count("/ok") == before


def test_a_form_post_is_refused(library: Any, http_server: HttpServer) -> None:
    """NH-09. A body that is a generator is not begun."""
    with library.Client(base_url=http_server.url, **bulkhead.options(name="form", tickets=2)) as client:
        found("form").open()
        with pytest.raises(errors_of(library).open):
            client.post("/echo", data={"a": "b"})
        body = iter([b"never read"])
        with pytest.raises(errors_of(library).open):
            client.post("/echo", content=body)
        assert next(body) == b"never read"
        found("form").close()
        assert client.post("/echo", data={"a": "b"}).json()["body"] == "a=b"


def test_entering_a_client_is_no_call_and_its_first_request_is(library: Any, http_server: HttpServer) -> None:
    """NH-10 deviates: Semian guards the start of a session; an httpx client connects when a request needs it."""
    client = library.Client(base_url=http_server.url, **bulkhead.options(name="session", tickets=2))
    found("session").open()
    with client:
        with pytest.raises(errors_of(library).open):
            client.get("/ok")
        found("session").close()
        assert client.get("/ok").text == "ok"


def test_one_shot_functions_are_reached_by_resolve(library: Any, http_server: HttpServer) -> None:
    """NH-06. They build a client of their own and pass no options on."""
    adapters.resolve(lambda driver, host, port, extra: {"name": "one-shot", "tickets": 1})
    assert library.get(f"{http_server.url}/ok").text == "ok"
    found("one-shot").open()
    with pytest.raises(errors_of(library).open):
        library.get(f"{http_server.url}/ok")
    adapters.resolve(None)
    assert library.get(f"{http_server.url}/ok").text == "ok"


def test_the_ticket_is_out_until_the_response_is_closed(library: Any, http_server: HttpServer) -> None:
    """NH-05: two are held, the third request is busy."""
    with library.Client(base_url=http_server.url, **bulkhead.options(name="held", tickets=2)) as client:
        with client.stream("GET", "/stream", params=CHUNKS) as one, client.stream("GET", "/ok") as two:
            assert found("held").in_use == 2
            with pytest.raises(errors_of(library).busy) as caught:
                client.get("/ok")
            assert caught.value.limit == "resource"
            assert caught.value.request.url.path == "/ok"
            two.close()
            two.close()
            assert found("held").in_use == 1
            assert sum(map(len, one.iter_bytes())) == 400_000
            assert found("held").in_use == 0
        assert client.get("/ok").text == "ok"


def test_a_stream_left_early_gives_its_ticket_back(library: Any, http_server: HttpServer) -> None:
    """Known fault 44."""
    with library.Client(base_url=http_server.url, **bulkhead.options(name="left", tickets=1)) as client:
        for _ in range(3):
            with client.stream("GET", "/stream", params=CHUNKS) as response:
                for _ in response.iter_bytes():
                    break

        def leave_by_an_error() -> None:
            with client.stream("GET", "/stream", params=CHUNKS) as response:
                assert next(response.iter_bytes()) == b""

        with pytest.raises(AssertionError):
            leave_by_an_error()
        assert found("left").in_use == 0
        assert found("left").state == "closed"


def test_a_response_that_nobody_closes_gives_its_ticket_back_when_it_is_lost(
    library: Any, http_server: HttpServer
) -> None:
    """Known fault 44."""
    with library.Client(base_url=http_server.url, **bulkhead.options(name="lost", tickets=1)) as client:
        for _ in range(3):
            response = client.send(client.build_request("GET", "/ok"), stream=True)
            assert found("lost").in_use == 1
            del response
            gc.collect()
            assert found("lost").in_use == 0


@pytest.mark.anyio
async def test_an_asynchronous_stream_holds_and_returns_its_ticket(library: Any, http_server: HttpServer) -> None:
    """Known fault 44."""
    options = bulkhead.options(name="async-held", tickets=1)
    async with library.AsyncClient(base_url=http_server.url, **options) as client:
        async with client.stream("GET", "/stream", params=CHUNKS) as response:
            async for _ in response.aiter_bytes():
                break
            with pytest.raises(errors_of(library).busy):
                await client.get("/ok")
        assert found("async-held").in_use == 0
        response = await client.send(client.build_request("GET", "/ok"), stream=True)
        assert found("async-held").in_use == 1
        await response.aclose()
        await response.aclose()
        assert found("async-held").in_use == 0
        response = await client.send(client.build_request("GET", "/ok"), stream=True)
        del response
        gc.collect()
        assert found("async-held").in_use == 0


def test_the_ticket_may_come_back_at_the_headers(library: Any, http_server: HttpServer) -> None:
    """ticket_until="headers". An error in the body still counts, besides."""
    options = bulkhead.options(name="headers", tickets=1, ticket_until="headers", **QUICK)
    with library.Client(base_url=http_server.url, **options) as client:
        with client.stream("GET", "/ok"), client.stream("GET", "/ok"):
            assert found("headers").in_use == 0
        for _ in range(2):
            with pytest.raises(library.RemoteProtocolError):
                client.get("/broken")
        assert found("headers").in_use == 0
        assert found("headers").state == "open"


def test_an_error_in_the_body_counts_besides(library: Any, http_server: HttpServer) -> None:
    """The one exception to one outcome per call: headers came, so a success; the body broke, so a failure too."""
    options = bulkhead.options(name="body", tickets=1, **QUICK)
    with library.Client(base_url=http_server.url, **options) as client:
        for _ in range(2):
            with pytest.raises(library.RemoteProtocolError) as caught:
                client.get("/broken")
            assert getattr(caught.value, "bulkhead_identifier", None) == "http:body"
            assert found("body").in_use == 0
        assert found("body").state == "open"


@pytest.mark.anyio
async def test_an_error_in_an_asynchronous_body_counts_besides(library: Any, http_server: HttpServer) -> None:
    options = bulkhead.options(name="async-body", tickets=1, **QUICK)
    async with library.AsyncClient(base_url=http_server.url, **options) as client:
        for _ in range(2):
            with pytest.raises(library.RemoteProtocolError):
                await client.get("/broken")
        assert found("async-body").in_use == 0
        assert found("async-body").state == "open"


def test_a_body_error_of_a_probe_opens_the_circuit_again(library: Any, http_server: HttpServer) -> None:
    options = bulkhead.options(name="body-probe", tickets=1, error_threshold=1, error_timeout=0.2, success_threshold=2)
    with library.Client(base_url=http_server.url, **options) as client:
        with pytest.raises(library.TransportError):
            client.get("/reset")
        until_due(found("body-probe"))
        with pytest.raises(library.RemoteProtocolError):
            client.get("/broken")
        assert found("body-probe").state == "open"


@pytest.mark.parametrize("path", ["/redirect?to=/ok&times=3", "/digest"])
def test_each_hop_is_a_call_and_never_two_tickets(library: Any, path: str, http_server: HttpServer) -> None:
    options = bulkhead.options(name="hops", tickets=1)
    with (
        library.Client(base_url=http_server.url, follow_redirects=True, **options) as client,
        Seen("http:hops", events.Success, events.Busy) as seen,
    ):
        response = client.get(path, auth=library.DigestAuth("user", "secret") if path == "/digest" else None)
        assert response.text == "ok"
        assert [type(one) for one in seen.all] == [events.Success] * (2 if path == "/digest" else 4)
        assert found("hops").in_use == 0


def test_the_circuit_is_asked_at_each_hop(library: Any, http_server: HttpServer) -> None:
    options = bulkhead.options(name="midway", tickets=1)
    before = http_server.count("/ok")

    def open_it(response: Any) -> None:
        if response.status_code == 302:
            found("midway").open()

    hooks = {"response": [open_it]}
    with library.Client(base_url=http_server.url, follow_redirects=True, event_hooks=hooks, **options) as client:
        with pytest.raises(errors_of(library).open) as caught:
            client.get("/redirect?to=/ok")
        assert caught.value.request.url.path == "/ok"
        assert http_server.count("/ok") == before
        assert found("midway").in_use == 0


def test_rejections_are_direct_transport_errors_with_the_request(library: Any, http_server: HttpServer) -> None:
    """No NetworkError and no time-out: retrying transports take those as transient."""
    with library.Client(base_url=http_server.url, **bulkhead.options(name="classes", tickets=1)) as client:
        for error in errors_of(library):
            assert library.TransportError in error.__bases__
            assert not issubclass(error, (library.NetworkError, library.TimeoutException, library.ProtocolError))
            request = client.build_request("GET", "/ok")
            made = error("http:x", "acme", "tenant", request=request)
            assert made.request is request
            assert made.args == ("http:x", "acme", "tenant")
            with pytest.raises(RuntimeError):
                _ = error("http:x", None, "tenant").request
        found("classes").open()
        with pytest.raises(library.RequestError) as caught:
            client.get("/ok")
        copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  our own
        assert copy.request.url == caught.value.request.url
        assert copy.args == caught.value.args


@pytest.mark.anyio
async def test_a_waiting_request_gets_the_ticket_of_a_closed_response(library: Any, http_server: HttpServer) -> None:
    options = bulkhead.options(name="waits", tickets=1, timeout=5.0)
    async with library.AsyncClient(base_url=http_server.url, **options) as client:
        response = await client.send(client.build_request("GET", "/ok"), stream=True)
        waiting = asyncio.ensure_future(client.get("/ok"))
        await auntil(lambda: len(found("waits").queue) == 1)
        assert not waiting.done()
        await response.aclose()
        assert (await waiting).text == "ok"


def test_the_state_survives_a_restart_of_the_server(library: Any) -> None:
    """NH-26."""
    with HttpServer() as server:
        options = bulkhead.options(name="restart", tickets=1, **QUICK)
        with library.Client(base_url=server.url, **options) as client:
            client.get("/ok")
            server.kill()
            for _ in range(2):
                with pytest.raises(library.TransportError):
                    client.get("/ok")
            server.restart()
            with pytest.raises(errors_of(library).open):
                client.get("/ok")

"""httpx: which errors and statuses count as failures. Real servers answer wrongly, late or not at all."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
from drivers.harness import Seen
from drivers.httpx_harness import each_library, errors_of
from polling import until_due

import bulkhead
from bulkhead import events
from bulkhead.testing import HttpServer, NeverAccepting, ScriptedServer, SilentServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.adapter import Resource

pytestmark = each_library
CIRCUIT: dict[str, Any] = {"error_threshold": 2, "error_timeout": 5.0, "success_threshold": 1}


def found(name: str) -> Resource:
    resource = bulkhead.find(f"http:{name}")
    assert resource is not None
    return resource


def answering(data: bytes) -> ScriptedServer:
    """A server that answers every request with these bytes and closes."""

    def talk(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(data)
        connection.close()

    return ScriptedServer(talk)


def nobody() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def fails(library: Any, client: Any, url: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        client.get(url)
    assert bulkhead.rejection(caught.value) is None


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("RemoteProtocolError", b"this is no HTTP\r\n\r\n"),
        ("RemoteProtocolError", b""),
        ("RemoteProtocolError", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx"),
    ],
    ids=["garbage", "closed", "short body"],
)
def test_a_server_that_breaks_the_protocol_counts(library: Any, name: str, data: bytes) -> None:
    with answering(data) as server, library.Client(**bulkhead.options(name="protocol", **CIRCUIT)) as client:
        for _ in range(2):
            fails(library, client, f"http://{server.address}/", getattr(library, name))
        assert found("protocol").state == "open"


def test_connects_that_fail_count(library: Any) -> None:
    """Refused, timed out, and TLS that is none (NH-21: Semian needs its TLS error added to a list)."""
    with answering(b"HTTP/1.1 400 no TLS here\r\n\r\n") as plain, NeverAccepting() as full:
        cases = {
            "refused": (nobody(), "ConnectError"),
            "late": (f"http://{full.address}", "ConnectTimeout"),
            "tls": (f"https://{plain.address}", "ConnectError"),
        }
        for name, (url, error) in cases.items():
            options = bulkhead.options(name=name, **CIRCUIT)
            with library.Client(timeout=library.Timeout(5, connect=0.5), **options) as client:
                for _ in range(2):
                    fails(library, client, url, getattr(library, error))
                assert found(name).state == "open", name


def test_read_time_outs_open_it_and_are_the_cause(library: Any) -> None:
    """NH-03, NH-04: and it closes after error_timeout."""
    with SilentServer() as silent, HttpServer() as fine:
        options = bulkhead.options(name="silent", error_threshold=2, error_timeout=1.5, success_threshold=1)
        with library.Client(timeout=library.Timeout(5, read=0.1), **options) as client:
            for _ in range(2):
                fails(library, client, f"http://{silent.address}/", library.ReadTimeout)
            before = silent.connections
            with pytest.raises(errors_of(library).open) as caught:
                client.get(f"http://{silent.address}/")
            assert type(caught.value.__cause__) is library.ReadTimeout
            assert silent.connections == before
            until_due(found("silent"))
            assert client.get(f"{fine.url}/ok", timeout=5).text == "ok"
            assert found("silent").state == "closed"


def test_waiting_for_a_connection_of_the_own_pool_does_not_count(library: Any, http_server: HttpServer) -> None:
    """Known fault 22: PoolTimeout is local."""
    limits, time_outs = library.Limits(max_connections=1), library.Timeout(5, pool=0.05)
    options = bulkhead.options(name="pool", tickets=5, **CIRCUIT)
    with library.Client(base_url=http_server.url, limits=limits, timeout=time_outs, **options) as client:
        with client.stream("GET", "/ok"):
            for _ in range(5):
                fails(library, client, "/ok", library.PoolTimeout)
        assert found("pool").state == "closed"
        assert found("pool").in_use == 0


def test_what_the_caller_did_wrong_does_not_count(library: Any, http_server: HttpServer) -> None:
    """Known fault 28."""
    with library.Client(base_url=http_server.url, **bulkhead.options(name="caller", **CIRCUIT)) as client:
        wrong: dict[type[Exception], Callable[[], object]] = {
            library.UnsupportedProtocol: lambda: client.get("ftp://127.0.0.1/"),
            library.LocalProtocolError: lambda: client.get("/ok", headers={"broken": "a\nb"}),
            library.TooManyRedirects: lambda: client.get("/redirect?times=30", follow_redirects=True),
            library.DecodingError: lambda: client.get(f"http://{badly_packed.address}/"),
            ZeroDivisionError: lambda: client.post("/ok", content=(1 // 0 for _ in range(1))),
        }
        data = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"
        with answering(data) as badly_packed:
            for error, call in wrong.items():
                for _ in range(3):
                    with pytest.raises(error):
                        call()
        for code in (400, 401, 404, 429, 500, 503):
            assert client.get("/status", params={"code": code}).status_code == code
        assert found("caller").state == "closed"
        assert found("caller").in_use == 0


def test_server_errors_count_on_request(library: Any, http_server: HttpServer) -> None:
    """NH-22, NH-23, NH-24."""
    options = bulkhead.options(name="server", tickets=2, open_circuit_server_errors=True, **CIRCUIT)
    with library.Client(base_url=http_server.url, **options) as client:
        with Seen("http:server", events.StateChange) as seen:
            for code in (429, 500, 429, 404, 503):
                assert client.get("/status", params={"code": code}).status_code == code
        (change,) = seen.of(events.StateChange)
        assert (change.driver, change.scope) == (library.__name__, "query")
        assert (change.old, change.new) == ("closed", "open")
        with pytest.raises(errors_of(library).open) as caught:
            client.get("/status")
        assert isinstance(caught.value.__cause__, library.HTTPStatusError)
        assert str(caught.value.__cause__) == "HTTP 503"


def test_a_server_error_is_a_verdict_at_the_headers_and_holds_its_ticket(library: Any, http_server: HttpServer) -> None:
    options = bulkhead.options(name="early", tickets=2, open_circuit_server_errors=True, **CIRCUIT)
    with library.Client(base_url=http_server.url, **options) as client:
        with (
            client.stream("GET", "/status", params={"code": 503}),
            client.stream("GET", "/status", params={"code": 503}),
        ):
            assert found("early").state == "open"
            assert found("early").in_use == 2
        assert found("early").in_use == 0


def test_a_probe_that_gets_a_server_error_has_failed(library: Any, http_server: HttpServer) -> None:
    options = bulkhead.options(
        name="probe-5xx", open_circuit_server_errors=True, error_threshold=1, error_timeout=1.0, success_threshold=1
    )
    with library.Client(base_url=http_server.url, **options) as client:
        client.get("/status?code=500")
        until_due(found("probe-5xx"))
        client.get("/status?code=500")
        assert found("probe-5xx").state == "open"
        until_due(found("probe-5xx"))
        client.get("/status?code=404")
        assert found("probe-5xx").state == "closed"


def test_the_list_of_errors_can_be_changed_and_put_back(library: Any, http_server: HttpServer) -> None:
    """NH-20, NH-21. By class, and by asking about one status."""
    with library.Client(base_url=http_server.url, **bulkhead.options(name="list", **CIRCUIT)) as client:
        resource = found("list")
        resource.update(is_failure=(library.UnsupportedProtocol,))
        for _ in range(2):
            fails(library, client, "ftp://127.0.0.1/", library.UnsupportedProtocol)
        assert resource.state == "open"
        resource.reset()
        resource.update(is_failure=None)
        for _ in range(3):
            fails(library, client, "ftp://127.0.0.1/", library.UnsupportedProtocol)
        assert resource.state == "closed"
        resource.update(
            open_circuit_server_errors=True,
            is_failure=lambda error: (
                error.response.status_code == 429 if isinstance(error, library.HTTPStatusError) else None
            ),
        )
        for code in (500, 503, 500):
            client.get("/status", params={"code": code})
        assert resource.state == "closed"
        for _ in range(2):
            client.get("/status?code=429")
        assert resource.state == "open"


@pytest.mark.anyio
async def test_cancelled_requests_count_when_they_lasted(library: Any) -> None:
    """Known fault 27b: an application's deadline is shorter than the client's read time-out."""
    with SilentServer() as silent:
        url = f"http://{silent.address}/"
        cases: list[tuple[str, Any, float, float, str]] = [
            ("quick", 0.05, 9.0, 0.2, "open"),
            ("slow", 5.0, 9.0, 0.2, "closed"),
            ("auto", "auto", 1.5, 0.8, "open"),
        ]
        for name, threshold, time_out, deadline, state in cases:
            options = bulkhead.options(name=f"cancel-{name}", cancel_counts_after=threshold, **CIRCUIT)
            async with library.AsyncClient(timeout=time_out, **options) as client:
                for _ in range(3):
                    with pytest.raises((TimeoutError, errors_of(library).open)):
                        async with asyncio.timeout(deadline):
                            await client.get(url)
                assert found(f"cancel-{name}").state == state, name
                assert found(f"cancel-{name}").in_use == 0

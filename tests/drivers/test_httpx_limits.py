"""httpx: time limits of calls and probes, and servers that answer by drops."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from drivers.httpx_harness import each_library, errors_of
from polling import until_due

import bulkhead
from bulkhead.testing import ScriptedServer, SilentServer

if TYPE_CHECKING:
    from bulkhead.adapter import Resource
    from bulkhead.testing import HttpServer

pytestmark = each_library
CIRCUIT: dict[str, Any] = {
    "error_threshold": 2,
    "error_threshold_timeout": 9.0,
    "error_timeout": 0.4,
    "success_threshold": 1,
}
SLOW = [b"x-slow: %d\r\n" % number for number in range(14)]
HEAD = [b"HTTP/1.1 200 OK\r\n", *SLOW, b"connection: close\r\ncontent-length: 2\r\n\r\n"]


def found(name: str) -> Resource:
    resource = bulkhead.find(f"http:{name}")
    assert resource is not None
    return resource


def drop(connection: socket.socket) -> None:
    """Headers by drops, a tenth of a second apart; then the body."""
    asked = b""
    while not asked.endswith(b"\r\n\r\n"):
        asked += connection.recv(65536)
    for part in HEAD:
        time.sleep(0.1)
        connection.sendall(part)
    connection.sendall(b"ok")
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)  # until the client has closed it too: no reset


def test_a_probe_has_its_own_time_limit_and_the_clients_comes_back(library: Any) -> None:
    """NH-02, known fault 9."""
    with SilentServer() as silent:
        url = f"http://{silent.address}/"
        options = bulkhead.options(name="probe", half_open_resource_timeout=0.15, **CIRCUIT)
        with library.Client(timeout=9.0, **options) as client:
            for _ in range(2):
                began = time.monotonic()
                with pytest.raises(library.ReadTimeout):
                    client.get(url, timeout=0.5)
                assert time.monotonic() - began >= 0.5
            until_due(found("probe"))
            began = time.monotonic()
            with pytest.raises(library.ReadTimeout) as caught:
                client.get(url)
            assert time.monotonic() - began < 3
            assert found("probe").state == "open"
            assert caught.value.request.extensions["timeout"]["read"] == 9.0


def test_call_timeout_lowers_longer_time_outs_and_no_shorter_ones(library: Any) -> None:
    seen: list[dict[str, float]] = []

    def look(request: Any) -> Any:
        seen.append(dict(request.extensions["timeout"]))
        return library.Response(200)

    options = bulkhead.options(name="lower", call_timeout=1.0, **CIRCUIT)
    time_outs = library.Timeout(5.0, connect=0.5, write=None)
    with library.Client(transport=library.MockTransport(look), timeout=time_outs, **options) as client:
        request = client.build_request("GET", "http://any.test")
        client.send(request)
        assert seen == [{"connect": 0.5, "read": 1.0, "write": 1.0, "pool": 1.0}]
        assert request.extensions["timeout"] == {"connect": 0.5, "read": 5.0, "write": None, "pool": 5.0}
        bare = library.Request("GET", "http://any.test")
        client._transport.handle_request(bare)
        assert "timeout" not in bare.extensions
        assert seen[1] == {"connect": 1.0, "read": 1.0, "write": 1.0, "pool": 1.0}


def test_a_redirected_request_has_the_clients_own_time_outs(library: Any, http_server: HttpServer) -> None:
    """It copies the extensions of the request before it."""
    options = bulkhead.options(name="redirected", call_timeout=1.0, **CIRCUIT)
    with library.Client(base_url=http_server.url, timeout=7.0, follow_redirects=True, **options) as client:
        response = client.get("/redirect?to=/ok")
        assert response.request.extensions["timeout"]["read"] == 7.0


def test_the_body_may_take_longer_than_call_timeout(library: Any, http_server: HttpServer) -> None:
    """call_timeout ends with the headers."""
    options = bulkhead.options(name="long-body", tickets=1, call_timeout=0.6, **CIRCUIT)
    with library.Client(base_url=http_server.url, timeout=5.0, **options) as client:
        for _ in range(2):
            assert client.get("/drip?chunks=2&seconds=0.9").status_code == 200
        assert found("long-body").state == "closed"
        assert found("long-body").in_use == 0


def test_headers_by_drops_are_counted_not_ended(library: Any) -> None:
    """Each read is short enough for the driver; the call is not."""
    with ScriptedServer(drop) as server:
        options = bulkhead.options(name="drops", tickets=2, call_timeout=1.3, **CIRCUIT)
        with library.Client(**options) as client:
            for _ in range(2):
                assert client.get(f"http://{server.address}/").text == "ok"
            assert found("drops").state == "open"
            assert found("drops").in_use == 0
            until_due(found("drops"))
            assert client.get(f"http://{server.address}/").text == "ok"
            assert found("drops").state == "open", "a probe by drops has failed as well"


@pytest.mark.anyio
async def test_asynchronous_headers_by_drops_are_counted_not_ended(library: Any) -> None:
    with ScriptedServer(drop) as server:
        options = bulkhead.options(name="async-drops", tickets=3, call_timeout=1.3, **CIRCUIT)
        async with library.AsyncClient(**options) as client:
            answers = await asyncio.gather(*(client.get(f"http://{server.address}/") for _ in range(3)))
            assert [one.text for one in answers] == ["ok"] * 3
            assert found("async-drops").state == "open"


@pytest.mark.anyio
async def test_calls_that_all_hang_open_it_before_one_of_them_ends(library: Any) -> None:
    with SilentServer() as silent:
        url = f"http://{silent.address}/"
        options = bulkhead.options(name="hang", tickets=10, call_timeout=0.2, cancel_counts_after=None, **CIRCUIT)

        class Deaf(library.AsyncHTTPTransport):  # type: ignore[misc]
            """Keeps to no time-outs."""

            async def handle_async_request(self, request: Any) -> Any:
                request.extensions["timeout"] = {}
                return await super().handle_async_request(request)

        async with library.AsyncClient(transport=Deaf(), **options) as client:
            hanging = [asyncio.ensure_future(client.get(url)) for _ in range(3)]
            await asyncio.sleep(0.3)  # longer than call_timeout
            with pytest.raises(errors_of(library).open):
                await client.get(url)
            for one in hanging:
                one.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
            assert found("hang").in_use == 0

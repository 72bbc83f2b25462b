"""The typed control of a real Toxiproxy server, and what it corrects of the client package it speaks through."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bulkhead.testing import ScriptedServer, Toxiproxy, ToxiproxyError, free_port
from bulkhead.testing.toxiproxy import check

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from bulkhead.testing import Proxy, RedisServer

pytestmark = pytest.mark.resilience
NO_RETRY = Retry(NoBackoff(), 0)
PROXIES = Path(__file__).parents[2] / "toxiproxy" / "proxies.json"


@pytest.fixture
def proxy(toxiproxy: Toxiproxy, redis_server: RedisServer) -> Proxy:
    assert toxiproxy["redis"].upstream_address == redis_server.address
    return toxiproxy["redis"]


@pytest.fixture
def client(proxy: Proxy) -> Iterator[redis.Redis]:
    with redis.Redis(host=proxy.host, port=proxy.port, socket_timeout=9, retry=NO_RETRY) as client:
        yield client


def seconds_of_a_ping(client: redis.Redis) -> float:
    before = time.monotonic()
    client.ping()
    return time.monotonic() - before


def test_latency_is_felt_within_the_block_only(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    with proxy.downstream("latency", latency=1500) as toxic:
        assert seconds_of_a_ping(client) >= 1.5
        toxic.update(latency=700)
        assert 0.7 <= seconds_of_a_ping(client) < 1.5
    assert seconds_of_a_ping(client) < 0.7
    assert proxy.toxics() == {}


def test_toxics_of_both_directions_go_together(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    with proxy.upstream("latency", latency=100), proxy.downstream("latency", latency=100):
        assert sorted(proxy.toxics()) == ["latency_downstream", "latency_upstream"]
        assert seconds_of_a_ping(client) >= 0.2


@pytest.mark.parametrize(
    ("kind", "attributes"), [("timeout", {"timeout": 50}), ("reset_peer", {}), ("limit_data", {"bytes": 3})]
)
def test_a_cut_connection_is_an_error_of_the_driver(
    proxy: Proxy, client: redis.Redis, kind: str, attributes: dict[str, Any]
) -> None:
    with proxy.downstream(kind, **attributes), pytest.raises(redis.ConnectionError):
        client.ping()
    assert client.ping()


def test_down_refuses_and_comes_back(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    with proxy.down():
        assert not proxy.enabled
        with pytest.raises(redis.ConnectionError):
            client.ping()
        with proxy.down():
            pass
        assert not proxy.enabled, "an inner block must not enable what the outer one holds down"
    assert proxy.enabled
    assert client.ping()


def test_reset_within_a_block_is_no_error(toxiproxy: Toxiproxy, proxy: Proxy) -> None:
    with proxy.downstream("latency", latency=100):
        toxiproxy.reset()
    assert proxy.toxics() == {}


def test_errors_carry_the_words_of_the_server(toxiproxy: Toxiproxy, proxy: Proxy, redis_server: RedisServer) -> None:
    with pytest.raises(ToxiproxyError, match="proxy already exists"):
        toxiproxy.create("redis", redis_server.address)
    with pytest.raises(ToxiproxyError, match="proxy not found"):
        toxiproxy.delete("nothing")
    with pytest.raises(KeyError, match=r"no proxy 'nothing'; there are .*'redis'"):
        toxiproxy["nothing"]
    with (
        proxy.downstream("latency", latency=1),
        pytest.raises(ToxiproxyError, match="toxic already exists"),
        proxy.downstream("latency", latency=1),
    ):
        pass


def test_a_toxic_that_the_server_would_ignore_or_die_of_is_refused_before() -> None:
    for kind, attributes in [
        ("lateness", {"latency": 1}),
        ("latency", {"latencey": 1}),
        ("latency", {"latency": -1}),
        ("slicer", {}),
        ("slicer", {"average_size": 0}),
        ("slicer", {"average_size": 5, "size_variation": 6}),
    ]:
        with pytest.raises(ValueError, match=kind):
            check(kind, attributes)


def test_two_servers_are_controlled_at_once(toxiproxy: Toxiproxy) -> None:
    nobody = Toxiproxy(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ToxiproxyError, match="does not answer"):
        nobody.version()
    assert toxiproxy.version()


def test_a_server_that_never_answers_or_fails_is_an_error_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bulkhead.testing.toxiproxy.REQUEST_SECONDS", 0.2)

    def fail(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 7\r\n\r\ntoo bad")

    def hang(connection: socket.socket) -> None:
        while connection.recv(4096):
            pass

    with ScriptedServer(fail) as peer, pytest.raises(ToxiproxyError, match="500: too bad"):
        Toxiproxy(f"http://{peer.address}").proxies()
    with ScriptedServer(hang) as peer, pytest.raises(ToxiproxyError, match="does not answer"):
        Toxiproxy(f"http://{peer.address}").proxies()


def test_a_proxy_of_the_environment_is_not_used(toxiproxy: Toxiproxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert toxiproxy.version()


def test_the_file_lists_the_proxies_of_the_tests_on_free_loopback_ports() -> None:
    listed = json.loads(PROXIES.read_text())
    assert {one["name"] for one in listed} == {"redis", "postgres", "http"}
    assert {one["listen"] for one in listed} == {"127.0.0.1:0"}


def test_the_folder_toxiproxy_holds_no_python() -> None:
    """A .py file there would hide the client package, which has the same import name."""
    assert not list(PROXIES.parent.rglob("*.py"))

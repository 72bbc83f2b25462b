"""The peers with bad manners of bulkhead.testing, seen through real clients."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bulkhead.testing import CLOSE, SILENT, NeverAccepting, ScriptedRedis, ScriptedServer, SilentServer

if TYPE_CHECKING:
    from conftest import Eventually


def client_of(peer: ScriptedServer) -> redis.Redis:
    return redis.Redis(host=peer.host, port=peer.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))


def test_a_scripted_redis_answers_exactly_and_in_order() -> None:
    replies = [b"-LOADING Redis is loading the dataset in memory\r\n", b"$1\r\na\r\n"]
    with ScriptedRedis({"get": list(replies), "DEL": b":7\r\n"}) as peer, client_of(peer) as client:
        with pytest.raises(redis.BusyLoadingError):
            client.get("x")
        assert client.get("x") == b"a"
        assert client.get("x") == b"a"
        assert client.delete("x") == 7
        assert peer.count("GET") == 3
        assert ["DEL", "x"] in peer.received


def test_a_scripted_redis_may_be_silent_or_close() -> None:
    with ScriptedRedis({"GET": SILENT, "SET": CLOSE}) as peer, client_of(peer) as client:
        with pytest.raises(redis.TimeoutError):
            client.get("x")
        with pytest.raises(redis.ConnectionError):
            client.set("x", "1")
        peer.script["GET"] = b"$2\r\nok\r\n"
        assert client.get("x") == b"ok"
        assert peer.connections == 3


def test_a_silent_server_accepts_and_never_answers() -> None:
    with SilentServer() as peer:
        with socket.create_connection((peer.host, peer.port), timeout=1) as connection:
            connection.settimeout(0.2)
            connection.sendall(b"anybody?")
            with pytest.raises(TimeoutError):
                connection.recv(1)
        assert peer.connections == 1


def test_connecting_to_a_full_backlog_times_out() -> None:
    with NeverAccepting() as peer:
        before = time.monotonic()
        with pytest.raises(TimeoutError):
            socket.create_connection((peer.host, peer.port), timeout=0.3)
        assert time.monotonic() - before >= 0.3


def test_a_scripted_server_lets_a_function_talk() -> None:
    def echo(connection: socket.socket) -> None:
        connection.sendall(connection.recv(100).upper())

    with ScriptedServer(echo) as peer, socket.create_connection((peer.host, peer.port), timeout=1) as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"HELLO"
        assert connection.recv(100) == b""


def test_leaving_a_peer_ends_its_threads_and_refuses(eventually: Eventually) -> None:
    with SilentServer() as peer:
        connection = socket.create_connection((peer.host, peer.port), timeout=1)
        eventually(lambda: peer.connections == 1)
    with connection:
        assert connection.recv(1) == b""
    assert not [thread for thread in threading.enumerate() if thread.name == f"peer-{peer.port}"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((peer.host, peer.port), timeout=1)

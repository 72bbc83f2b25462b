"""gunicorn with three workers: their numbers add up, also when one of them is killed, and the last ones are not lost."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scrapes import Scrape

from bulkhead.testing import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Eventually

pytest.importorskip("gunicorn")

ROOT = Path(__file__).parents[2]
SECONDS = 30.0  # far beyond what any step takes; a step that is through goes on at once

# A request is a guarded call that asks the test, over a socket, how it shall end.
APPLICATION = """
import os, socket
import bulkhead
from bulkhead import metrics

metrics.register()
stock = bulkhead.resource("stock", tickets=2, error_threshold=5, error_timeout=600, success_threshold=1)
TEST = ("127.0.0.1", int(os.environ["TEST_PORT"]))


def application(environ, start_response):
    if environ["PATH_INFO"] == "/metrics":
        return metrics_of_all_workers(environ, start_response)
    try:
        with stock.permit(), socket.create_connection(TEST) as test:
            test.sendall(b"%d\\n" % os.getpid())
            order = test.makefile().readline().strip()
            if order == "open":
                stock.open("by the test")
            if order == "fail":
                raise OSError
    except (OSError, bulkhead.Rejected) as error:
        start_response("503 Service Unavailable", [])
        return [type(error).__name__.encode()]
    start_response("200 OK", [])
    return [b"ended"]
"""
HOOKS = """
import pathlib, threading

timeout = 600
graceful_timeout = 5  # a worker that has just been forked may not hear the signal


def pre_fork(server, worker):
    names = ",".join(thread.name for thread in threading.enumerate())
    with pathlib.Path("threads").open("a") as file:
        print(names, file=file)
"""


def block(marker: str) -> str:
    """The block of docs/metrics.md below a comment that begins with this word."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^<!-- {marker}: .*? -->\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return str(found)


class Call:
    """A request that is under way in a worker, at the end of the socket that it opened."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(SECONDS)
        with connection.makefile() as said:
            self.pid = int(said.readline())

    def end(self, order: str) -> None:
        """Let it end."""
        self._connection.sendall(order.encode() + b"\n")
        self.close()

    def close(self) -> None:
        """Nothing more is said."""
        self._connection.close()


class Server:
    """gunicorn, three synchronous workers: each has one request at a time."""

    def __init__(self, folder: Path, *, preload: bool) -> None:
        self.folder, self.port, self.metrics = folder, free_port(), folder / "metrics"
        self.metrics.mkdir()
        (folder / "shop.py").write_text(block("endpoint") + APPLICATION, encoding="utf-8")
        (folder / "gunicorn.conf.py").write_text(block("gunicorn") + HOOKS, encoding="utf-8")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)
        self._clients: list[socket.socket] = []
        self._calls: list[Call] = []
        self.refused = 0
        command = [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{self.port}", "shop:application"]
        environment = os.environ | {
            "PROMETHEUS_MULTIPROC_DIR": str(self.metrics),
            "TEST_PORT": str(self._listener.getsockname()[1]),
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),  # newer versions put a control socket there
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *(["--preload"] if preload else [])],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def up(self) -> bool:
        """Does it accept connections?"""
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def call(self) -> Call:
        """A request that is under way now. Those that a worker refuses at once are answered, and sent again."""
        while True:
            client = socket.create_connection(("127.0.0.1", self.port))
            self._clients.append(client)
            client.sendall(b"GET /call HTTP/1.0\r\n\r\n")
            ready, _, _ = select.select([self._listener, client], [], [], SECONDS)
            assert ready, self.log.read_text(encoding="utf-8")
            if self._listener in ready:
                call = Call(self._listener.accept()[0])
                self._calls.append(call)
                return call
            self.refused += 1

    def answers(self) -> list[bytes]:
        """The answers to all requests since the last time; waits for them."""
        found: list[bytes] = []
        for client in self._clients:
            client.settimeout(SECONDS)
            with client, client.makefile("rb") as answer:
                found.append(answer.read().rpartition(b"\r\n")[2])
        self._clients.clear()
        return found

    def get(self, path: str) -> str:
        """The body of an answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=SECONDS) as answer:
            return str(answer.read().decode())

    def sums(self) -> dict[str, float | None]:
        """What a scrape says of the resource."""
        scrape = Scrape.of_folder(self.metrics)
        named = {
            "success": ("bulkhead_calls_total", {"outcome": "success"}),
            "failure": ("bulkhead_calls_total", {"outcome": "failure"}),
            "refused": ("bulkhead_rejections_total", {"reason": "open"}),
            "in_use": ("bulkhead_tickets_in_use", {}),
            "limit": ("bulkhead_tickets_limit", {}),
            "closed": ("bulkhead_circuit_state", {"bulkhead_circuit_state": "closed"}),
            "open": ("bulkhead_circuit_state", {"bulkhead_circuit_state": "open"}),
        }
        return {key: scrape.value(name, identifier="call:stock", **more) for key, (name, more) in named.items()}

    def end(self) -> None:
        """SIGTERM, and wait."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(SECONDS)

    def close(self) -> None:
        """Leave nothing behind."""
        for client in self._clients:
            client.close()
        for call in self._calls:
            call.close()
        self._listener.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)


@pytest.fixture(params=[False, True], ids=["", "preload"])
def server(tmp_path: Path, request: pytest.FixtureRequest, eventually: Eventually) -> Iterator[Server]:
    started = Server(tmp_path, preload=request.param)
    try:
        eventually(started.up, SECONDS)
        yield started
    finally:
        started.close()


@pytest.mark.timeout(180)
def test_workers_add_up_and_a_killed_one_leaves_its_counters(server: Server) -> None:
    def sums(**wanted: float) -> dict[str, float | None]:
        deadline = time.monotonic() + SECONDS
        while not wanted.items() <= (said := server.sums()).items():
            assert time.monotonic() < deadline, (said, wanted, server.log.read_text(encoding="utf-8"))
            time.sleep(0.02)
        return said

    # Each worker has one request at a time, so three that are under way are in three workers.
    calls = [server.call() for _ in range(3)]
    assert len({call.pid for call in calls}) == 3
    sums(in_use=3, limit=6, closed=3, open=0, success=0)
    for call, order in zip(calls, ["fail", "ok", "open"], strict=True):
        call.end(order)
    assert sorted(server.answers()) == [b"OSError", b"ended", b"ended"]
    sums(in_use=0, limit=6, closed=2, open=1, success=2, failure=1)
    assert 'bulkhead_calls_total{identifier="call:stock",outcome="failure"} 1.0' in server.get("/metrics")

    # The worker whose circuit is open refuses at once, so those that hold a call are the other two.
    first = server.call()
    second = server.call()
    assert {first.pid, second.pid} == {calls[0].pid, calls[1].pid}
    counters = {"success": 2, "failure": 1} | ({"refused": server.refused} if server.refused else {})
    sums(in_use=2, closed=2, open=1, **counters)
    os.kill(first.pid, signal.SIGKILL)
    after = sums(in_use=1, limit=4, closed=1, open=1)
    assert {key: after[key] for key in counters} == counters

    # What was counted a moment before the end is there, and nobody holds anything any more.
    second.end("ok")
    server.end()
    last = server.sums()
    assert (last["success"], last["failure"]) == (3, 1)
    assert {last[key] or 0 for key in ("in_use", "limit", "closed", "open")} == {0}
    assert "bulkhead-metrics" not in (server.folder / "threads").read_text(encoding="utf-8"), "no thread before a fork"

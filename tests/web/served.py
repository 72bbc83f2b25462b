"""Applications in processes of their own, on gunicorn or uvicorn, and what a test may ask and tell them.

An application is source text beside `gates.py`: handlers stand at a gate, a file that the test makes, and note what
they see. GET /state tells all of it.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from bulkhead.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from conftest import Eventually

ROOT = Path(__file__).parents[2]
LONG = 30.0  # seconds; never waited for unless a test is about to fail
KEY = "a secret that the tests share, of more than 32 bytes"

GATES = """
import asyncio, collections, json, os, pathlib, time
import bulkhead

HERE = pathlib.Path(__file__).parent
CONFIG = json.loads((HERE / "config.json").read_text())
seen = collections.defaultdict(list)  # gate -> what its handlers saw, and for whom
waiting = collections.Counter()

def note(gate, what):
    seen[gate].append(f"{what}: {bulkhead.current_tenant()}")

def _passing(gate):
    waiting[gate] += 1
    note(gate, "waits")
    try:
        until = time.monotonic() + 30
        while not (HERE / gate).exists():
            if time.monotonic() > until:
                raise AssertionError("the test did not open the gate")
            yield 0.005
    finally:
        waiting[gate] -= 1

def wait(gate):
    for seconds in _passing(gate):
        time.sleep(seconds)

async def await_(gate):
    passing = _passing(gate)
    try:
        for seconds in passing:
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(gate, "cancelled")
        raise
    finally:
        passing.close()

def state():
    found = {name: bulkhead.find(name) for name in bulkhead.resources()}
    return {
        "pid": os.getpid(), "waiting": waiting, "seen": seen,
        "in_use": {name: one.in_use for name, one in found.items()},
        "totals": {name: {" ".join(key): count for key, count in one.totals().items()} for name, one in found.items()},
    }
"""


def new_client(**options: Any) -> httpx.Client:
    """A client that loads no certificates: that takes longer than the rest of a test."""
    return httpx.Client(timeout=LONG, trust_env=False, verify=False, **options)  # noqa: S501  there is no TLS


class Application(ServerProcess):
    """An application and its server. `config` is what gates.CONFIG holds there."""

    name = "application"
    stop_signal = signal.SIGTERM

    def __init__(self, source: str, kind: str, target: str = "application:application", **config: Any) -> None:
        super().__init__(Path(sys.executable), "")
        self.source, self.kind, self.target, self.config = source, kind, target, config
        self._web = new_client(headers={"Connection": "close"})  # so that it takes no thread of the server's

    def _prepare(self) -> None:
        here = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"  # servers start in "/"
        (self.folder / "gates.py").write_text(here + GATES, encoding="utf-8")
        (self.folder / "application.py").write_text(self.source, encoding="utf-8")
        (self.folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")

    def _command(self) -> list[str]:
        if self.kind == "uvicorn":
            places = ["--app-dir", str(self.folder), "--host", self.host, "--port", str(self.port)]
            return [sys.executable, "-m", "uvicorn", "--lifespan", "off", "--log-level", "error", *places, self.target]
        threads = ["--threads", "8"] if self.kind == "gthread" else []
        places = ["--bind", self.address, "--pythonpath", str(self.folder), "--worker-tmp-dir", str(self.folder)]
        one = ["--worker-class", self.kind, "--workers", "1", *threads, "--graceful-timeout", "2", "--timeout", "60"]
        return [sys.executable, "-m", "gunicorn", *one, *places, self.target]

    def _ready(self) -> bool:
        try:
            return bool(self.state())
        except httpx.TransportError:
            return False

    def state(self) -> dict[str, Any]:
        answer = self._web.get(f"http://{self.address}{self.config.get('state', '/state')}")
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def seen(self, gate: str) -> list[str]:
        """What the handlers of this gate saw."""
        found: list[str] = self.state()["seen"].get(gate, [])
        return found

    def waiting(self, gate: str) -> int:
        return int(self.state()["waiting"].get(gate, 0))

    def in_use(self, identifier: str = "server:requests") -> int:
        return int(self.state()["in_use"].get(identifier, 0))

    def totals(self, identifier: str) -> dict[str, int]:
        found: dict[str, int] = self.state()["totals"][identifier]
        return found

    def close(self) -> None:
        """Its connections of ours."""
        self._web.close()

    def open(self, gate: str) -> None:
        """Whoever stands at this gate may go on."""
        (self.folder / gate).touch()


@contextmanager
def serving(source: str, kind: str, **config: Any) -> Iterator[Application]:
    """The application of this source on gunicorn ("sync", "gthread") or "uvicorn"; skipped where there is none."""
    program = "uvicorn" if kind == "uvicorn" else "gunicorn"
    if importlib.util.find_spec(program) is None:
        pytest.skip(f"{program} is not installed")
    with Application(source, kind, **config) as application:
        yield application
        application.close()


class Client:
    """A client of an application; `at` is where below it the part is that the test is about."""

    def __init__(self, server: Application, at: str, eventually: Eventually) -> None:
        self.server, self.at, self._eventually = server, at, eventually
        self.web = new_client(base_url=f"http://{server.address}{at}")
        self._threads = ThreadPoolExecutor(8)

    def get(self, path: str, tenant: str | None = "acme", **headers: str) -> httpx.Response:
        return self.web.get(path, headers={**of(tenant), **headers})

    def begin(self, path: str, tenant: str | None = "acme", **headers: str) -> Future[httpx.Response]:
        """A request whose answer is waited for elsewhere."""
        return self._threads.submit(self.get, path, tenant, **headers)

    @contextmanager
    def asking(self, path: str, tenant: str = "acme", cookie: str = "") -> Iterator[socket.socket]:
        """A request whose client hangs up at the end of the block."""
        with socket.create_connection((self.server.host, self.server.port), LONG) as connection:
            lines = (f"GET {self.at}{path} HTTP/1.1", "Host: localhost", f"X-Tenant-ID: {tenant}", f"Cookie: {cookie}")
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            yield connection

    def stands_at(self, gate: str, number: int = 1) -> None:
        """Wait until so many handlers do."""
        self._eventually(lambda: self.server.waiting(gate) == number, LONG)

    def everything_is_back(self) -> None:
        self._eventually(lambda: self.server.in_use() == 0, LONG)

    def until(self, predicate: Callable[[], object]) -> None:
        self._eventually(predicate, LONG)

    def close(self) -> None:
        self._threads.shutdown()
        self.web.close()


@contextmanager
def client(server: Application, eventually: Eventually, at: str = "") -> Iterator[Client]:
    """A client, and at the end a look whether the application holds something that it should not."""
    one = Client(server, at, eventually)
    try:
        yield one
        one.everything_is_back()
    finally:
        one.close()


def of(tenant: str | None) -> dict[str, str]:
    """The header that names this tenant."""
    return {} if tenant is None else {"X-Tenant-ID": tenant}


def new_gate() -> str:
    """A name that no other test uses."""
    return f"gate-{uuid.uuid4().hex}"


def is_refusal(answer: httpx.Response, reason: str = "requests", seconds: int = 1) -> bool:
    """Is it our 503, as problem details that tell nothing else?"""
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == str(seconds)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert set(problem) == {"type", "title", "status", "detail", "reason", "retry_after"}
    assert (problem["title"], problem["status"], problem["reason"]) == ("Service Unavailable", 503, reason)
    return True

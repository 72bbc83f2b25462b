"""What every test may use: private real servers, Toxiproxy between them and a client, bounded waiting, fresh interpreters.

Servers are shared by the run. A test may pause or kill them: after each test they are brought back. Where a server
cannot be had on this machine, the tests that ask for it are skipped and say why; the head of the output says which
program and version was used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import hypothesis
import pytest
from counts import FULL, HYPOTHESIS_EXAMPLES, HYPOTHESIS_STEPS
from polling import SECONDS, auntil, until

from bulkhead.testing import HttpServer, PostgresServer, RedisServer, ServerUnavailable, Toxiproxy, ToxiproxyServer
from bulkhead.testing.binaries import find_postgres, find_redis, version_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator

    from bulkhead.testing import ServerProcess

ROOT = Path(__file__).parent.parent
PROXIES = ROOT / "toxiproxy" / "proxies.json"

T = TypeVar("T")

hypothesis.settings.register_profile(
    "ours",
    deadline=None,  # a test has a time-out; an example on a busy machine needs none of its own
    max_examples=HYPOTHESIS_EXAMPLES,
    stateful_step_count=HYPOTHESIS_STEPS,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("ours")


class Servers:
    """The shared servers of this run, started when first asked for."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], ServerProcess]] = {
            "redis": RedisServer,
            "postgres": lambda: PostgresServer(log_statements=True),
            "http": HttpServer,
            "toxiproxy": ToxiproxyServer,
        }
        self._running: dict[str, ServerProcess] = {}
        self._missing: dict[str, str] = {}

    def get(self, name: str) -> Any:
        """The running server, else the calling test is skipped with the reason."""
        if name not in self._running and name not in self._missing:
            try:
                self._running[name] = self._makers[name]().start()
            except ServerUnavailable as error:
                self._missing[name] = str(error)
        if name in self._missing:
            pytest.skip(self._missing[name])
        return self._running[name]

    def heal(self) -> None:
        """Resume what a test left paused, restart what it left dead."""
        for server in self._running.values():
            if server.is_paused:
                server.resume()
            if not server.alive:
                server.restart()

    def stop(self) -> None:
        """End them all."""
        for server in self._running.values():
            server.stop()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """No tracing in tests marked no_cover: pytest-cov ends its own, but in a worker of pytest-xdist there are two.

    On 3.11 a traced call does not begin while an exception waits in another thread for its delivery.
    """
    traced, traced_threads = sys.gettrace(), threading.gettrace()
    if traced is None or item.get_closest_marker("no_cover") is None:
        return (yield)
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        threading.settrace(traced_threads)
        sys.settrace(traced)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Build Toxiproxy if need be: before the header that names it (-q shows none) and outside the time of any test."""
    if os.environ.get("TOXIPROXY_URL") or hasattr(session.config, "workerinput"):
        return
    with suppress(ServerUnavailable):
        try:
            ToxiproxyServer(build=False)
        except ServerUnavailable:
            if shutil.which("go"):
                tell = session.config.get_terminal_writer().line
                tell("building Toxiproxy with Go: about half a minute, once ...")
            ToxiproxyServer(build=True)


def pytest_report_header() -> list[str]:
    """Which real servers this run uses."""
    lines = [f"counts: {'full' if FULL else 'quick'}"]
    for name, find in (("redis", find_redis), ("postgres", find_postgres)):
        try:
            binary = find()
            lines.append(f"{name}: {binary} {version_of(binary)}")
        except ServerUnavailable as error:
            lines.append(f"{name}: none, its tests are skipped: {error}")
    return [*lines, f"toxiproxy: {_toxiproxy_line()}"]


def _toxiproxy_line() -> str:
    url = os.environ.get("TOXIPROXY_URL")
    if url:
        return f"THE RUNNING SERVER OF TOXIPROXY_URL ({url})"
    try:
        server = ToxiproxyServer(build=False)
    except ServerUnavailable as error:
        return f"NONE, THE TESTS THROUGH IT ARE SKIPPED: {error}"
    return f"SHOPIFY'S REAL SERVER ({server.binary} {server.version})"


@pytest.fixture(scope="session")
def _servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.stop()


@pytest.fixture(autouse=True)
def _healed(_servers: Servers) -> Iterator[None]:
    yield
    _servers.heal()


@pytest.fixture(scope="session")
def redis_server(_servers: Servers) -> RedisServer:
    """A private Redis."""
    server: RedisServer = _servers.get("redis")
    return server


@pytest.fixture(scope="session")
def postgres_server(_servers: Servers) -> PostgresServer:
    """A private PostgreSQL that logs every statement."""
    server: PostgresServer = _servers.get("postgres")
    return server


@pytest.fixture(scope="session")
def http_server(_servers: Servers) -> HttpServer:
    """A private HTTP service in its own process."""
    server: HttpServer = _servers.get("http")
    return server


@pytest.fixture(scope="session")
def toxiproxy_url(_servers: Servers) -> str:
    """The address of Toxiproxy's HTTP API."""
    running = os.environ.get("TOXIPROXY_URL")
    if running:
        return running
    server: ToxiproxyServer = _servers.get("toxiproxy")
    return server.url


@pytest.fixture(scope="session")
def _populated(_servers: Servers, toxiproxy_url: str) -> Iterator[Toxiproxy]:
    upstreams: dict[str, str] = {}
    for name in ("redis", "postgres", "http"):
        try:
            upstreams[name] = _servers.get(name).address
        except pytest.skip.Exception:
            continue  # the tests that want this one skip by themselves
    control = Toxiproxy(toxiproxy_url)
    control.populate(PROXIES, upstreams)
    yield control
    for name in upstreams:
        control.delete(name)


@pytest.fixture
def toxiproxy(_populated: Toxiproxy) -> Iterator[Toxiproxy]:
    """Toxiproxy with the proxies of toxiproxy/proxies.json in front of the private servers; reset after each test."""
    yield _populated
    _populated.reset()


class Eventually(Protocol):
    """Polls until the predicate's value is true, and returns it."""

    def __call__(self, predicate: Callable[[], T], seconds: float = SECONDS) -> T: ...


class AsyncEventually(Protocol):
    """The same for a running event loop; the predicate may be a coroutine function."""

    def __call__(self, predicate: Callable[[], T | Awaitable[T]], seconds: float = SECONDS) -> Awaitable[T]: ...


@pytest.fixture
def eventually() -> Eventually:
    """`eventually(predicate, seconds)`: bounded polling; fails the test when time is over."""
    return until


@pytest.fixture
def aeventually() -> AsyncEventually:
    """To be awaited: bounded polling that lets the event loop run; the predicate may be a coroutine function."""
    return auntil


@pytest.fixture
def anyio_backend() -> str:
    """Async tests (`@pytest.mark.anyio`) run on asyncio."""
    return "asyncio"


class RunPython(Protocol):
    """Runs source in a fresh interpreter from the repository's root."""

    def __call__(
        self, source: str, *arguments: str, seconds: float = 30, env: dict[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def run_python() -> RunPython:
    """A fresh interpreter for what must not happen in this one: forks, signals, import order, exits."""

    def run(
        source: str, *arguments: str, seconds: float = 30, env: dict[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", source, *arguments],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run

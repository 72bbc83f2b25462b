"""What the tests of the ASGI edge use: applications that wait until a test lets them go on, on a real uvicorn."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import bulkhead
from bulkhead.web.asgi import TenancyMiddleware

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
pytest.importorskip("httptools")

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 30.0  # seconds; never waited for unless a test is about to fail
POLL = 0.005


class Gate:
    """Handlers stand here until the test opens it. `waiting`: how many do now; `tenants`: for whom they work."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self.waiting = 0
        self.cancelled = 0
        self.tenants: list[str | None] = []

    def open(self) -> None:
        """Let everybody pass, from now on."""
        self._opened.set()

    async def wait(self) -> None:
        """Stand here, in a coroutine."""
        self.waiting += 1
        self.tenants.append(bulkhead.current_tenant())
        try:
            deadline = time.monotonic() + LONG
            while not self._opened.is_set():
                assert time.monotonic() < deadline, "the test did not open the gate"
                await asyncio.sleep(POLL)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1

    def wait_in_thread(self) -> None:
        """Stand here, in a thread."""
        self.waiting += 1
        self.tenants.append(bulkhead.current_tenant())
        try:
            assert self._opened.wait(LONG), "the test did not open the gate"
        finally:
            self.waiting -= 1


class Served:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url, self.ws = f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}"


@contextmanager
def serving(app: Any, **config: Any) -> Iterator[Served]:
    """This application on a real uvicorn, in a thread with an event loop of its own."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # see `cells_serving.listening`
        listener.bind(("127.0.0.1", 0))
        settings = {"log_config": None, "lifespan": "on", "timeout_graceful_shutdown": 5, "http": "httptools", **config}
        server = uvicorn.Server(uvicorn.Config(app, **settings))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + LONG
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(POLL)
        try:
            yield Served(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(LONG)
            assert not thread.is_alive(), "the server did not end"


class Asked:
    """One request through a middleware: who it worked for, or how it was refused."""

    def __init__(self) -> None:
        self.tenant: Any = "not asked"
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b""

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.tenant = bulkhead.current_tenant()

    async def receive(self) -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body = message["body"]


async def ask(
    headers: dict[str, str | bytes] | list[tuple[str, str]], *, path: str = "/", scope: Any = None, **options: Any
) -> Asked:
    asked = Asked()
    middleware = TenancyMiddleware(asked.app, **options)
    pairs = headers.items() if isinstance(headers, dict) else headers
    raw = [(name.lower().encode(), value if isinstance(value, bytes) else value.encode()) for name, value in pairs]
    await middleware({"type": "http", "path": path, "headers": raw, **(scope or {})}, asked.receive, asked.send)
    return asked


def client(server: Served, **options: Any) -> httpx.AsyncClient:
    """A client of this server."""
    return httpx.AsyncClient(base_url=server.url, timeout=LONG, verify=False, **options)  # noqa: S501  no TLS: no CAs to load


def of(tenant: str) -> dict[str, str]:
    """The header that names this tenant."""
    return {"X-Tenant-ID": tenant}


def in_use(identifier: str = "server:requests") -> int:
    """Permits that are out."""
    resource = bulkhead.find(identifier)
    return 0 if resource is None else resource.in_use

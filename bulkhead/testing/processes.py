"""A private server as a process of its own: started on a free loopback port, paused, killed, restarted, ended.

This file knows no particular server; servers.py does. A subclass says what a real conversation with its server is
(`_ready`): an open port is not readiness.
Signals go to processes that we started, by their id, never by name. A forked child never ends its parent's servers.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

HOST = "127.0.0.1"
LAUNCHER = Path(__file__).with_name("launch.py")
# Below what Linux and macOS give to connections by themselves, so that nothing takes the port of a server that is dead
# for a while; above the servers of a machine, for which a private one must never be taken.
PORTS = range(20_000, 32_768)
# Somebody may take the port between our look and the server's bind.
TRIES = 3
POLL_SECONDS = 0.01
END_SECONDS = 5.0


class ServerUnavailable(RuntimeError):
    """This machine has no such server, or it did not come up. The text says what was looked for, or its log's end."""


def free_port() -> int:
    """A loopback port, 20,000 to 32,767, that nobody listens on now. `ServerUnavailable` if there is none."""
    for _ in range(len(PORTS)):
        port = secrets.choice(PORTS)  # not by `random`, which tests seed, two runs at a time alike
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise ServerUnavailable(f"no free port among {PORTS.start} to {PORTS.stop - 1} on {HOST}")


def children(pid: int) -> list[int]:
    """Direct child processes of `pid`."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    pgrep = shutil.which("pgrep")
    if pgrep is None or sys.platform == "linux":
        return []
    found = subprocess.run([pgrep, "-P", str(pid)], capture_output=True, text=True, check=False, timeout=5)
    return [int(child) for child in found.stdout.split()]


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def stop(pid: int) -> None:
    """SIGSTOP, and wait until it has taken effect where that can be seen."""
    send(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 1
    with contextlib.suppress(OSError, IndexError):
        while state(pid) not in "TZX" and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 10)


def state(pid: int) -> str:
    """One letter, as Linux has it: T stopped, Z dead and not yet waited for; OSError where there is none."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def run_alone(command: list[str], seconds: float, **options: Any) -> tuple[int, str]:
    """Run a program to its end: exit code and output. Interrupted or late, it is ended with whatever it started."""
    with subprocess.Popen(
        command,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    ) as process:
        try:
            says, _ = process.communicate(timeout=seconds)
        except BaseException:
            # Its children belong to nobody once it is gone; that they are gone too is seen by their group being empty.
            deadline = time.monotonic() + END_SECONDS
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                while time.monotonic() < deadline:
                    os.killpg(process.pid, signal.SIGKILL)
                    time.sleep(POLL_SECONDS)
            raise
    return process.returncode, says


class ServerProcess:
    """One private server. From `start` to `stop` the folder and the port are kept, also while the process is dead.

    A context manager. Subclasses give `_command()` and `_ready()`, and may prepare files in `_prepare()`.
    """

    name = "server"
    start_seconds = 30.0
    stop_signal = signal.SIGKILL

    def __init__(self, binary: Path, version: str) -> None:
        self.binary = binary
        self.version = version
        self.host = HOST
        self.port = 0
        self.is_paused = False
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._user = (-1, -1)  # uid and gid to run as; -1 = ours
        self._owner = os.getpid()

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"

    @property
    def folder(self) -> Path:
        """The private folder: data and log. Gone after `stop`."""
        if self._folder is None:
            raise ServerUnavailable(f"{self.name} is not started")
        return self._folder

    @property
    def log(self) -> Path:
        """What the server wrote to its standard output and error."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """The id of the server's main process."""
        if self._process is None:
            raise ServerUnavailable(f"{self.name} is not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the main process exists. A paused one does."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start on a free port and wait until it answers, else `ServerUnavailable` with the end of its log.

        May be called before `with`, which then only stops it.
        """
        if self._folder is not None:
            raise RuntimeError(f"{self.name} is started already; restart() runs it again")
        self._folder = Path(tempfile.mkdtemp(prefix=f"bulkhead-{self.name}-"))
        self._owner = os.getpid()
        # Only a net for callers that leave without `stop`, on systems that have no parent-death signal.
        atexit.register(self.stop)
        try:
            self._prepare()
            self._run_on_a_free_port()
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """Run again on the same port with the same files; an old process that still runs is killed first."""
        self.kill()
        self._run()

    def pause(self) -> None:
        """Hang the server: it keeps its port and its connections and answers nothing."""
        self.is_paused = True
        stop(self.pid)
        for child in children(self.pid):  # after its parent has stopped: it gets no new children
            stop(child)

    def resume(self) -> None:
        """Let a paused server go on. Nothing happens to one that runs."""
        for child in children(self.pid):
            send(child, signal.SIGCONT)
        send(self.pid, signal.SIGCONT)
        self.is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Generator[Self]:
        """Paused within the block."""
        self.pause()
        try:
            yield self
        finally:
            self.resume()

    def kill(self) -> None:
        """SIGKILL, as when the machine dies: connections are reset, the port refuses."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the server and delete its folder. May be called twice; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.stop)
        self._end(self.stop_signal)
        if self._folder is not None:
            self._clean_up()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        return self if self._folder else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare(self) -> None:
        """Make what the server needs in `folder`, once, before the first run."""

    def _clean_up(self) -> None:
        """Remove what the server left outside `folder`."""

    def _command(self) -> list[str]:
        """Program and arguments for the present port."""
        raise NotImplementedError

    def _ready(self) -> bool:
        """Whether a real conversation with the server works; OSError counts as no."""
        raise NotImplementedError

    def _run_on_a_free_port(self) -> None:
        for tries_left in reversed(range(TRIES)):
            self.port = free_port()
            try:
                self._run()
            except ServerUnavailable:
                if not tries_left:
                    raise
            else:
                return

    def _run(self) -> None:
        uid, gid = self._user
        launch = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(uid), str(gid)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                launch + self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",  # ours may be unreadable for the server's user
                start_new_session=True,  # Ctrl-C in a terminal is for us, not for the servers
            )
        self.is_paused = False
        deadline = time.monotonic() + self.start_seconds
        while self.alive:
            with contextlib.suppress(OSError):
                if self._ready() and self.alive:
                    return
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        self.kill()
        raise ServerUnavailable(f"{self.name} ({self.binary}) did not start: {self._end_of_log()}")

    def _end(self, number: signal.Signals) -> None:
        """Signal the process, wait, and make sure that nothing of it is left."""
        if self._process is None:
            return
        rest = children(self._process.pid) if self.alive else []
        if self.is_paused:
            number = signal.SIGKILL  # any other would wait for the end of the pause
        if self.alive:
            send(self._process.pid, number)
            if number != signal.SIGKILL:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=5)
            # At once and together, so that none of them has time for a last word to its client.
            for pid in (self._process.pid, *rest):
                send(pid, signal.SIGKILL)
            self._process.wait(timeout=5)
        self.is_paused = False

    def _end_of_log(self) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace")[-600:].strip() or "it wrote no log"
        return "it has no log"

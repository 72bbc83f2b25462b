"""`bulkhead demo` on real servers, in processes of its own: what it prints, and that nothing of it is left behind."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.starting import environment

from bulkhead.testing import ServerUnavailable
from bulkhead.testing.binaries import find_postgres, find_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Eventually

for needed in ("rich", "redis", "httpx", "sqlalchemy", "psycopg"):
    pytest.importorskip(needed)
if not Path("/proc/self/environ").exists():
    pytest.skip("looks for processes in /proc", allow_module_level=True)

MARK = "BULKHEAD_DEMO_TEST"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


class Demo:
    """One demo; everything that it starts inherits its mark."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder, self.temporary = folder, temporary
        self.mark = uuid.uuid4().hex
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bulkhead", "demo", *arguments],
            cwd=self.folder,
            env=environment(
                {MARK: self.mark, "TMPDIR": str(self.temporary), "TERM": "xterm-256color", "COLUMNS": "80"}
            ),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        return self.process

    def left(self) -> list[str]:
        """Command lines of processes with our mark, other than zombies."""
        found: list[str] = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def left_files(self) -> list[str]:
        """Servers' folders that were not removed."""
        return [entry.name for entry in self.temporary.glob("bulkhead-*")]

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Read its output until this was printed."""
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        for line in self.process.stdout:
            if text in line:
                return
            assert time.monotonic() < deadline
        pytest.fail(f"it ended without {text!r}")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    try:
        find_redis()
        find_postgres()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with tempfile.TemporaryDirectory(prefix="demo-") as temporary:
        Path(temporary).chmod(0o755)  # root's PostgreSQL runs as another user, which pytest's folders do not let in
        one = Demo(tmp_path, Path(temporary))
        yield one
        if one.process is not None:
            one.process.kill()
            one.process.communicate()


@pytest.mark.timeout(120)
def test_in_a_pipe_it_prints_plain_lines_a_table_of_80_columns_and_leaves_a_picture(demo: Demo) -> None:
    pytest.importorskip("matplotlib")
    out, err = demo.start("--seconds", "1.5").communicate(timeout=100)
    assert demo.process is not None
    assert (demo.process.returncode, err) == (0, "")
    assert (demo.left(), demo.left_files()) == ([], [])
    assert CONTROL.search(out) is None
    for says in (
        "Redis hangs, the application",
        "is stopped (SIGSTOP)",
        "One tenant floods the database",
        "playing 1.5 s without",
    ):
        assert says in out
    for option in ("tickets=8", "tenant_tickets=3", "half_open_resource_timeout=0.05"):
        assert option in out
    assert max(len(line.rstrip()) for line in out.splitlines() if "/" not in line[:2]) <= 100
    assert max(len(line) for line in out.splitlines() if "│" in line) <= 80
    counts = re.findall(r"│\s+requests +│ +(\d+) │ +(\d+) │", out)
    assert len(counts) == 2
    assert all(without == protected and int(without) > 80 for without, protected in counts)
    shares = [re.findall(rf"noisy tenant: {word}[^│]*│[^│]*│ +(\d+)%", out)[-1] for word in ("answered", "rejected")]
    assert 98 <= sum(map(int, shares)) <= 101
    assert (demo.folder / "bulkhead-demo.svg").read_text(encoding="utf-8").startswith("<?xml")


@contextlib.contextmanager
def heard(number: signal.Signals) -> Iterator[None]:
    """A test run in the background or below nohup ignores some signals, and so would what it starts."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    ("number", "scene", "moment", "seconds"),
    [
        (signal.SIGINT, "cache", "private servers", 0.05),  # the first server starts
        (signal.SIGINT, "database", "private servers", 0.3),  # initdb runs
        (signal.SIGINT, "cache", "playing 2 s without protection", 1.0),  # Redis is stopped
        (signal.SIGTERM, "cache", "playing 2 s with protection", 1.0),
        (signal.SIGHUP, "database", "playing 2 s without protection", 1.0),  # every connection is busy
    ],
)
def test_a_signal_at_any_moment_leaves_no_process_behind(
    demo: Demo, number: signal.Signals, scene: str, moment: str, seconds: float
) -> None:
    with heard(number):
        process = demo.start("--seconds", "2", "--only", scene)
    demo.wait_for(moment)
    time.sleep(seconds)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert err == "bulkhead: stopped; all servers are ended\n"
    assert (demo.left(), demo.left_files()) == ([], [])


@pytest.mark.parametrize("delay", [0.1, 0.4])
def test_a_signal_while_it_still_loads_leaves_no_process_behind(demo: Demo, delay: float) -> None:
    process = demo.start("--only", "cache")
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert (demo.left(), demo.left_files()) == ([], [])


def test_more_signals_do_not_disturb_the_cleaning_up(demo: Demo) -> None:
    with heard(signal.SIGINT):
        process = demo.start("--seconds", "2", "--only", "database")
    demo.wait_for("without protection")
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGINT
    assert (demo.left(), demo.left_files()) == ([], [])


def test_its_own_death_takes_the_servers_along(demo: Demo, eventually: Eventually) -> None:
    """SIGKILL while Redis is stopped: nobody could clean up."""
    if sys.platform != "linux":
        pytest.skip("needs the parent-death signal")
    process = demo.start("--seconds", "2", "--only", "cache")
    demo.wait_for("without protection")
    time.sleep(1.0)
    process.kill()
    process.communicate(timeout=30)
    assert eventually(lambda: not demo.left())


def test_on_a_terminal_it_is_seen_live_and_ctrl_c_gives_the_cursor_back(demo: Demo) -> None:
    screen, terminal = pty.openpty()
    process = demo.start("--seconds", "2", "--only", "cache", output=terminal)
    os.close(terminal)
    seen, deadline = b"", time.monotonic() + 30
    while b"with protection" not in seen.replace(b"without protection", b"") and time.monotonic() < deadline:
        if select.select([screen], [], [], 1)[0]:
            seen += os.read(screen, 65536)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the other end is closed
        while chunk := os.read(screen, 65536):
            seen += chunk
    os.close(screen)
    process.wait(timeout=30)
    text = seen.decode("utf-8", "replace")
    for says in ("without protection", "with protection", "p50", "Redis hangs", "slowest response", "▆"):
        assert says in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert (demo.left(), demo.left_files()) == ([], [])

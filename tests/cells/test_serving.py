"""`bulkhead cells serve` as a process: it follows its map, and bodies of any size take no memory."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from cells.cell_servers import Cells, cells
from polling import until
from web.asgi_servers import LONG

pytest.importorskip("aiohttp")
from bulkhead.cli import main
from bulkhead.console.cells_serving import listening
from bulkhead.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MEGABYTE = 1 << 20
BODY = 48 * MEGABYTE
ALLOWED = 16 * MEGABYTE  # buffers on the way, and what the allocator does not give back


class Serving(ServerProcess):
    """The command."""

    name = "cells-serve"
    stop_signal = signal.SIGTERM

    def __init__(self, file: Path, *options: str) -> None:
        super().__init__(Path(sys.executable), "")
        self._arguments = [str(file), *options]

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def _command(self) -> list[str]:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from bulkhead.cli import main; sys.exit(main())"
        return [str(self.binary), "-c", code, "cells", "serve", *self._arguments, "--port", str(self.port)]

    def _ready(self) -> bool:
        socket.create_connection((self.host, self.port), LONG).close()
        return True

    def most_memory(self) -> int:
        """Bytes that were resident at the highest."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@pytest.fixture(scope="module")
def _running() -> Iterator[Cells]:
    with cells() as found:
        yield found


@pytest.fixture
def two(_running: Cells, tmp_path: Path) -> Cells:
    """Two cells."""
    _running.reset(tmp_path)
    return _running


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_it_follows_its_map_and_large_bodies_take_no_memory(two: Cells) -> None:
    tenant = two.tenant("a")
    asked = {"X-Tenant-ID": tenant}
    with Serving(two.file) as server, httpx.Client(base_url=server.url, timeout=LONG, trust_env=False) as client:
        assert client.get("/who", headers=asked).json()["cell"] == "a"
        two.publish(router=two.pinned(**{tenant: "b"}))
        until(lambda: client.get("/who", headers=asked).json()["cell"] == "b")
        assert client.get("/who", headers=asked).headers["x-cell-map-version"] == "0.2"

        client.post("/upload", headers=asked, content=bytes(MEGABYTE))
        before = server.most_memory()
        body = (bytes(MEGABYTE) for _ in range(BODY // MEGABYTE))
        assert client.post("/upload", headers=asked, content=body).text == str(BODY)
        app = two.apps["b"]
        with client.stream("GET", f"/download?chunks={BODY // 65536}", headers=asked) as answer:
            until(lambda: stands_still(app))  # nobody reads, so nobody may send
            assert app.sent < BODY // 65536
            assert sum(len(part) for part in answer.iter_raw()) == BODY
        assert server.most_memory() - before < ALLOWED


def stands_still(app: object) -> bool:
    """Whether nothing was sent for a while."""
    sent = getattr(app, "sent", 0)
    time.sleep(0.05)
    return bool(sent) and sent == getattr(app, "sent", 0)


def test_it_says_what_is_wrong_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cells", "serve", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err


def test_with_its_map_gone_it_starts_from_the_kept_one(two: Cells, tmp_path: Path) -> None:
    """Known fault 89b."""
    tenant = two.tenant("a")
    two.publish(router=two.pinned(**{tenant: "b"}))
    for _ in range(2):
        with Serving(two.file, "--keep", str(tmp_path / "kept.toml")) as server:
            two.file.unlink(missing_ok=True)
            answer = httpx.get(f"{server.url}/who", headers={"X-Tenant-ID": tenant}, timeout=LONG, trust_env=False)
            assert (answer.json()["cell"], answer.headers["x-cell-map-version"]) == ("b", "0.2")


def test_it_announces_the_address_that_it_listens_on(two: Cells) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from bulkhead.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "cells", "serve", str(two.file), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            found = re.fullmatch(r"   version 0\.1, (http://127\.0\.0\.1:\d+)\n", process.stderr.readline())
            assert found
            asked = {"X-Tenant-ID": two.tenant("a")}
            assert httpx.get(f"{found[1]}/who", headers=asked, timeout=LONG, trust_env=False).json()["cell"] == "a"
        finally:
            process.terminate()


def test_a_port_in_use_and_a_host_that_is_none_are_told_by_their_options(
    two: Cells, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["cells", "serve", str(two.file), "--port", str(port)]) == 2
    assert capsys.readouterr().err == f"bulkhead: --port {port}: address already in use\n"
    assert main(["cells", "serve", str(two.file), "--port", "0", "--host", "192.0.2.1"]) == 2
    assert capsys.readouterr().err == "bulkhead: --host 192.0.2.1: cannot assign requested address\n"
    assert main(["cells", "serve", str(two.file), "--port", "0", "--host", "a..b"]) == 2
    assert capsys.readouterr().err.startswith("bulkhead: --host")


def test_answers_do_not_wait_for_an_acknowledgement() -> None:
    """Without uvloop each request on a kept connection took 40 ms."""
    with listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_it_ends_by_sigterm(two: Cells) -> None:
    with Serving(two.file) as server:
        process = server._process
        assert isinstance(process, subprocess.Popen)
        process.terminate()
        assert process.wait(LONG) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)

"""A real HTTP server that has one map, with an ETag, and counts who asks; and the maps that tests put there."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from bulkhead.cells import Cell, CellMap, CellRouter
from bulkhead.cells.map_files import toml_text

if TYPE_CHECKING:
    import pytest

PACE = 0.05  # seconds between two bytes of an answer that never ends


def made(version: int, epoch: int = 0, cell: str = "a", **more: Any) -> CellMap:
    """A map of one cell."""
    return CellMap(CellRouter([Cell(cell, f"http://{cell}")]), version, epoch, **more)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged."""
    return [event for record in caplog.records if (event := getattr(record, "bulkhead_event", None)) is not None]


class MapServer:
    """`text` is what it answers, `status` how; while `gate` is not set it does not answer.

    `raw`: bytes that it answers instead; `endless`: and then a byte now and then, as long as somebody reads them.
    """

    def __init__(self) -> None:
        self.text, self.status = "", 200
        self.etag: str | None = None
        self.raw, self.endless = b"", False
        self._stopped = threading.Event()
        self.asked = self.unchanged = 0
        self.gate = threading.Event()
        self.gate.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/cells.toml"

    def publish(self, cell_map: CellMap) -> None:
        self.text = toml_text(cell_map)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        body, status = self.text.encode(), self.status
        self.gate.wait(30)
        if self.raw:
            self._answer_raw(request)
            return
        etag = self.etag or f'"{hashlib.sha256(body).hexdigest()}"'
        if status == 200 and request.headers["If-None-Match"] == etag:
            self.unchanged += 1
            status, body = 304, b""
        request.send_response(status)
        request.send_header("ETag", etag)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Location", "/elsewhere")
        with contextlib.suppress(BrokenPipeError):  # whoever asked did not wait
            request.end_headers()
            request.wfile.write(body)

    def _answer_raw(self, request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        with contextlib.suppress(OSError):
            request.wfile.write(self.raw)
            while self.endless and not self._stopped.wait(PACE):
                request.wfile.write(b"#")

    def stop(self) -> None:
        self._stopped.set()
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

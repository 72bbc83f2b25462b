"""A real HTTP server that has one map, with an ETag, and counts who asks."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from bulkhead.cells.map_files import toml_text

if TYPE_CHECKING:
    from bulkhead.cells import CellMap


class MapServer:
    """`text` is what it answers, `status` how; while `gate` is not set it does not answer."""

    def __init__(self) -> None:
        self.text, self.status = "", 200
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
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        if status == 200 and request.headers["If-None-Match"] == etag:
            self.unchanged += 1
            status, body = 304, b""
        request.send_response(status)
        request.send_header("ETag", etag)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Location", "/elsewhere")
        request.end_headers()
        request.wfile.write(body)

    def stop(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

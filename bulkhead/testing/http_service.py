"""A small HTTP/1.1 service with the good and bad manners that tests and demo need. Run as a script; standard library.

    python -I http_service.py HOST PORT

Any method; a request's body is read and dropped, except by /echo.

    /ok                        200 "ok" at once
    /slow?seconds=0.5          200 after that time
    /status?code=503           that status; &retry_after=1 adds the header
    /drip?chunks=5&seconds=0.1 headers at once, then a chunk each 0.1 s
    /stream?n=1000&size=10     n chunks at once
    /broken                    promises 100 bytes, sends 10, closes
    /reset                     resets the connection instead of answering
    /redirect?to=/ok&times=1   302, `times` times, then `to`
    /digest                    digest authentication, user "user", password "secret"
    /echo                      method, path, headers and body as JSON
    /count                     requests per path so far, as JSON (not counting /count); ?reset=1 forgets them
"""

from __future__ import annotations

import collections
import hashlib
import json
import re
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qsl, quote, urlsplit

USER, PASSWORD, REALM, NONCE = "user", "secret", "bulkhead", "4f2a9d3b7c"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
TINY, PROMISED = b"0123456789", 100


class Handler(BaseHTTPRequestHandler):
    """One connection; a method named `on_<path>` answers a path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536  # head and body leave in one packet; whoever drips flushes by hand
    counts: ClassVar[collections.Counter[str]] = collections.Counter()
    counting: ClassVar[threading.Lock] = threading.Lock()

    def do_GET(self) -> None:
        """Count the request, read its body, answer."""
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query))
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if parts.path != "/count":
            with self.counting:
                self.counts[parts.path] += 1
        answer = getattr(self, "on_" + parts.path.strip("/"), None)
        if answer is None:
            self.reply(404, b"no such path")
        else:
            answer()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_GET

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A whole answer; `_` in a header's name stands for `-`."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def on_ok(self) -> None:
        """200 at once."""
        self.reply(200, b"ok")

    def on_slow(self) -> None:
        """200 later."""
        time.sleep(float(self.query.get("seconds", "0.5")))
        self.reply(200, b"ok")

    def on_status(self) -> None:
        """The wanted status."""
        headers = {"retry-after": self.query["retry_after"]} if "retry_after" in self.query else {}
        self.reply(int(self.query.get("code", "200")), b"status", **headers)

    def on_drip(self) -> None:
        """Chunks with pauses."""
        self.chunks(int(self.query.get("chunks", "5")), TINY, float(self.query.get("seconds", "0.1")))

    def on_stream(self) -> None:
        """Many chunks at once."""
        self.chunks(int(self.query.get("n", "1000")), b"x" * int(self.query.get("size", "10")), 0.0)

    def chunks(self, count: int, data: bytes, pause: float) -> None:
        """A chunked body."""
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for _ in range(count):
            if pause:
                self.wfile.flush()
                time.sleep(pause)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def on_broken(self) -> None:
        """Less body than promised."""
        self.send_response(200)
        self.send_header("content-length", str(PROMISED))
        self.end_headers()
        self.wfile.write(TINY)
        self.close_connection = True

    def on_reset(self) -> None:
        """A reset instead of an answer."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        # A plain close: the server would otherwise shut down politely first.
        self.connection.close()
        self.close_connection = True

    def on_redirect(self) -> None:
        """302, several times if wanted."""
        to, times = self.query.get("to", "/ok"), int(self.query.get("times", "1"))
        self.reply(302, location=to if times <= 1 else f"/redirect?to={quote(to, safe='')}&times={times - 1}")

    def on_digest(self) -> None:
        """401 until the digest is right."""
        fields = dict(re.findall(r'(\w+)="?([^",]*)"?', self.headers.get("authorization") or ""))
        if fields.get("response") == self.digest(fields):
            self.reply(200, b"ok")
        else:
            challenge = f'Digest realm="{REALM}", nonce="{NONCE}", qop="auth", algorithm=MD5'
            self.reply(401, b"who are you?", www_authenticate=challenge)

    def digest(self, fields: dict[str, str]) -> str:
        """What RFC 7616 wants as `response`."""
        who = _md5(f"{USER}:{REALM}:{PASSWORD}")
        what = _md5(f"{self.command}:{self.path}")
        return _md5(":".join([who, NONCE, fields.get("nc", ""), fields.get("cnonce", ""), "auth", what]))

    def on_echo(self) -> None:
        """What the request was."""
        told = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": self.body.decode()}
        self.reply(200, json.dumps(told).encode(), content_type="application/json")

    def on_count(self) -> None:
        """Requests by path."""
        with self.counting:
            if "reset" in self.query:
                self.counts.clear()
            told = dict(self.counts)
        self.reply(200, json.dumps(told).encode(), content_type="application/json")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden method
        """Write no line per request."""


class Service(ThreadingHTTPServer):
    """Threads, a long backlog, and no noise about clients that leave early."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Print what is our fault, not that a client hung up."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def main() -> None:
    """Serve until killed."""
    Service((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()


if __name__ == "__main__":
    main()

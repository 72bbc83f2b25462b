"""Uploads as clients make them: one that never ends, one that is broken off. On raw sockets, so each byte is known.

And what of them is charged, to be asked from where the application is.
"""

from __future__ import annotations

import select
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from bulkhead.memory import cells

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 30.0  # seconds; never waited for unless a test is about to fail
BLOCK = b"x" * 65_536
MOST = 500_000_000  # bytes; an upload that got so far was not refused
PART = 33  # sys.getsizeof(b""): what a bytes object has beside its bytes, in CPython on 64 bits


class Answer(NamedTuple):
    """What came back, and how many bytes of the body were sent until then."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent: int


@contextmanager
def uploading(
    port: int, path: str, tenant: str, *, length: int | None = None, expect: bool = False
) -> Iterator[socket.socket]:
    """A POST whose head is sent: chunked, or of this length. The client hangs up at the end of the block."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"X-Tenant-ID: {tenant}", size]
    lines += ["Content-Type: application/octet-stream", *(["Expect: 100-continue"] if expect else [])]
    with socket.create_connection(("127.0.0.1", port), LONG) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        yield connection


def chunk(data: bytes) -> bytes:
    """A part of a chunked body; of b"" the end."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def without_end(port: int, path: str, tenant: str, *, length: int | None = None) -> Answer:
    """Send until there is an answer, or all of `length`, and read that to the end of the connection."""
    with uploading(port, path, tenant, length=length) as connection:
        sent = 0
        while not select.select([connection], [], [], 0)[0] and sent != length:
            assert sent < MOST, "nobody refused the upload"
            block = BLOCK if length is None else BLOCK[: length - sent]
            try:
                connection.sendall(chunk(block) if length is None else block)
            except OSError:
                break  # the server does not read any more
            sent += len(block)
        return answer(connection, sent)


def answer(connection: socket.socket, sent: int = 0) -> Answer:
    """The response. Then the client sends no more, and waits for the server to close the connection."""
    data, ends = b"", False
    try:
        while part := connection.recv(65_536):
            data += part
            if not ends and is_whole(data):
                ends = True
                connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the server did not read all that was sent
    status, headers, body = parsed(data)
    return Answer(status, headers, body, sent)


def is_whole(data: bytes) -> bool:
    """Is the body as long as the head says?"""
    if b"\r\n\r\n" not in data:
        return False
    _, headers, body = parsed(data)
    return len(body) >= int(headers.get("content-length", len(body) + 1))


def parsed(data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by their names in lower case, and body."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    assert first, "no answer"
    pairs = (line.partition(": ") for line in lines)
    return int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, body


def tracked(tenant: str = "acme") -> int:
    """Bytes in use, of the cell that the tenant has now."""
    cell = cells.find(tenant)
    return 0 if cell is None else cell.tracked_bytes

"""HTTP/1.1 on connections that are kept open, with as little work for each request as asyncio allows.

For load generators: requests are bytes that were made before, and of an answer only the status and Retry-After are
read. The servers that are asked answer with a Content-Length.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

HOST = "127.0.0.1"


class Answer(NamedTuple):
    """Status, and the seconds of Retry-After if it is there."""

    status: int
    retry_after: int | None


class Lost(Exception):
    """The server closed the connection."""


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """A whole request."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {HOST}", *(f"{name}: {value}" for name, value in headers.items())]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _number(head: bytes, name: bytes) -> int | None:
    _, found, rest = head.partition(b"\r\n" + name + b": ")
    return int(rest.partition(b"\r\n")[0]) if found else None


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what requests are written to."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, message: bytes) -> asyncio.Future[Answer]:
        """Send a request; Lost if the connection ends before the answer does."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        if self.closed:
            self._answer.set_exception(Lost())
        else:
            self._transport.write(message)
        return self._answer

    @property
    def closed(self) -> bool:
        """Is it of no more use?"""
        return self._transport is None or self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Is the answer complete?"""
        self._read = read = self._read + data
        end = read.find(b"\r\n\r\n")
        if end < 0:
            return
        head = read[: end + 2].lower()
        if len(read) < end + 4 + (_number(head, b"content-length") or 0):
            return
        self._read = b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(int(read[9:12]), _number(head, b"retry-after")))

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost())

    def close(self) -> None:
        """Have no more to do with it."""
        if self._transport is not None:
            self._transport.abort()


async def connect(port: int) -> Connection:
    """A new connection."""
    _, made = await asyncio.get_running_loop().create_connection(Connection, HOST, port)
    return made

"""The body of a WSGI request, charged to its tenant's memory cell as the application reads it.

`ChargedInput` stands where `wsgi.input` was: it reads a block, charges it and only then reads the next, so a body over
the quota is not held in memory, however it is asked for. What is read raises QuotaExceeded then, and again.
PEP 3333 forbids an application to send `Connection: close`; the server is asked in its own way where it has one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from bulkhead.errors import QuotaExceeded
from bulkhead.web.bodies import Upload, content_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bulkhead.web.edge import Plan

_BLOCK: Final = 65_536  # bytes that are read before they are charged
_EMPTY: Final = sys.getsizeof(b"")
_DROPPED: Final = 2**20  # bytes that are read for nothing at most: a thread waits for them


def charge_body(plan: Plan, tenant: str | None, environ: Any) -> Upload | None:
    """Charge what will be read from `wsgi.input`; None where bodies are not charged, or there is no tenant.

    A body that says itself that it is over the quota is `over` from the start: the request is not to be let in.
    """
    upload = begin_upload(plan, tenant, environ)
    if upload is not None:
        environ["wsgi.input"] = ChargedInput(environ["wsgi.input"], upload)
    return upload


def begin_upload(plan: Plan, tenant: str | None, environ: Any) -> Upload | None:
    """The same for who puts the ChargedInput elsewhere."""
    if not plan.charge_bodies or tenant is None:
        return None
    upload = Upload(tenant)
    try:
        upload.expect(environ.get("CONTENT_LENGTH"))
    except QuotaExceeded:
        pass  # in `over`
    return upload


def close_after(environ: Any, start_response: object) -> None:
    """Let the client hear the answer, and ask the server to close the connection after it.

    gunicorn has a method for that; others close it anyway, or read what is left of the body before they go on.
    """
    source = environ.get("wsgi.input")
    if isinstance(source, ChargedInput):
        source.drop_the_rest(environ.get("CONTENT_LENGTH"))
    force = getattr(getattr(start_response, "__self__", None), "force_close", None)
    if force is not None:
        force()


class ChargedInput:
    """A readable file: `read`, `readline`, `readlines`, `readinto`, iteration. Each raises QuotaExceeded.

    Django (6.1 and later) asks a body how long it is by `seek`, if it is `seekable`.
    """

    def __init__(self, inner: Any, upload: Upload) -> None:
        self._inner, self._upload = inner, upload
        self._given = 0  # bytes

    def read(self, size: int | None = -1, /) -> bytes:
        """At most `size` bytes, or all."""
        return self._collect(self._inner.read, -1 if size is None else size, line=False)

    def readline(self, size: int | None = -1, /) -> bytes:
        """One line, at most `size` bytes of it."""
        return self._collect(self._inner.readline, -1 if size is None else size, line=True)

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """Lines to the end, or until they have `hint` bytes together."""
        lines: list[bytes] = []
        total = 0
        for line in self:
            lines.append(line)
            total += len(line)
            if hint is not None and 0 < hint <= total:
                break
        return lines

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer; how many bytes it got."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def seekable(self) -> bool:
        """Can one go to another place in it? Where a server or a framework has collected the body before."""
        asked = getattr(self._inner, "seekable", None)
        return asked is not None and bool(asked())

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go there, as in a file. What is read again is charged again."""
        self._given = self._inner.seek(offset, whence)
        return self._given

    def drop_the_rest(self, length: str | None) -> None:
        """Read on and keep nothing, if no more than a megabyte is left of this Content-Length.

        A server that closes a socket with something unread in it makes TCP send a reset, which can overtake the answer.
        """
        left = content_length(length) - self._given
        if left > _DROPPED:
            return
        try:
            while left > 0 and (block := self._inner.read(min(left, _BLOCK))):
                left -= len(block)
        except Exception:  # noqa: BLE001  of the server: the client has gone, or the body makes no sense
            return

    def close(self) -> None:
        """Close what is read, where that can be done; Django does."""
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()

    def _collect(self, read: Any, size: int, *, line: bool) -> bytes:
        blocks: list[bytes] = []
        left = size
        while left:
            wanted = _BLOCK if left < 0 else min(left, _BLOCK)
            self._upload.check()
            block = read(wanted)
            if not block:
                break
            self._upload.take(len(block) if blocks else _EMPTY + len(block))
            blocks.append(block)
            self._given += len(block)
            left -= len(block) if left > 0 else 0
            if line and (block.endswith(b"\n") or len(block) < wanted):
                break
            if len(block) < wanted and size > 0:
                break  # as much as there is: the server knows whether a file or a socket is read
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

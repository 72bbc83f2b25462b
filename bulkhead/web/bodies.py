"""What the body of one request costs its tenant: each part is charged to the tenant's memory cell as it arrives.

It knows no framework: asgi_body.py and wsgi_body.py hand it the parts. Charges stay until the request is over, also
where the application keeps nothing of the body: what becomes of a part cannot be seen from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bulkhead.errors import QuotaExceeded
from bulkhead.memory import current_memory_cell
from bulkhead.settings.kinds import MAXIMUM_BYTES
from bulkhead.tenancy import current

if TYPE_CHECKING:
    from bulkhead.memory import Charge, MemoryCell

_LONGEST = 19  # digits of a Content-Length that are read; int() of more costs the more


def content_length(text: str | bytes | None) -> int:
    """The number of bytes that a Content-Length says, as far as so many can be charged; 0 where it says none."""
    # isascii: for str there are more digits than int() takes, and WSGI servers pass on what a client has sent.
    if not text or len(text) > _LONGEST or not text.isascii() or not text.isdigit():
        return 0
    return min(int(text), MAXIMUM_BYTES)


class Upload:
    """The charges of one request's body. `over`: the refusal, once there was one; then nothing more may be read.

    Used by one request, by one thread or task at a time; only `end` may come from anywhere.
    """

    __slots__ = ("_cell", "_charge", "_ended", "_tenant", "over")

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._cell: MemoryCell | None = None
        self._charge: Charge | None = None  # one that grows: small parts must not cost more than themselves
        self._ended = False
        self.over: QuotaExceeded | None = None

    def expect(self, length: str | bytes | None) -> None:
        """QuotaExceeded if a body of this Content-Length can never be within the quota, before any of it is read."""
        size = content_length(length)
        cell = self._of() if size else None
        if cell is not None and 0 < cell.quota_bytes < size:
            try:
                cell.charge(size).release()  # passes if the quota was raised just now
            except QuotaExceeded as error:
                self._refuse(error)
                raise

    def check(self) -> None:
        """QuotaExceeded if a part was over the quota already: no more of this body may be read."""
        if self.over is not None:
            raise QuotaExceeded(*self.over.args)

    def take(self, size: int) -> None:
        """Charge a part of so many bytes. QuotaExceeded: it is over the quota."""
        cell = self._of()
        if cell is None or self._ended:
            return
        try:
            charge = self._charge
            if charge is None:
                self._charge = cell.charge(size)
            else:
                charge.grow(size)
        except QuotaExceeded as error:
            self._refuse(error)
            raise
        except ValueError:
            if not self._ended:  # else it was released between two of these lines
                raise
        if self._ended:
            self.end()

    def end(self) -> None:
        """The request is over: nothing is charged any more. Any number of times."""
        self._ended = True
        charge, self._charge = self._charge, None
        if charge is not None:
            charge.release()

    def _refuse(self, error: QuotaExceeded) -> None:
        self.over = QuotaExceeded(*error.args)  # another one: what is raised keeps the frames that it went through

    def _of(self) -> MemoryCell | None:
        """The request's cell, whoever the code that reads works for; made by the first part of a body."""
        if self._cell is None:
            before = current.get()
            try:
                current.set(self._tenant)
                self._cell = current_memory_cell()
            finally:
                current.set(before)
        return self._cell

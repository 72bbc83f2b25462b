"""What the proxy's clients are told where no answer of a cell is passed on: problem details, as in docs/web.md.

Which error is which answer, and nothing else: who is refused is decided where it is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bulkhead.adapter import Rejected
from bulkhead.cells.errors import UnsafePathError
from bulkhead.cells.proxy_client import UpstreamError
from bulkhead.web.answers import Answer, Reason, answer, unavailable, wants_text, without_tenant
from bulkhead.web.sources import InvalidTenant

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.web.asgi_scope import Scope
    from bulkhead.web.sources import Source


class Turned(Exception):
    """The request is not passed on."""

    def __init__(self, status: int, reason: Reason) -> None:
        super().__init__(status)
        self.status = status
        self.reason: Reason = reason


class Answers:
    """`tenant`: where the tenant comes from, which says how its absence is answered; `accept`: reads that header."""

    def __init__(self, tenant: Source, accept: Callable[[Scope], str | None]) -> None:
        self._tenant, self._accept = tenant, accept

    def of(self, status: int, reason: Reason, scope: Scope) -> Answer:
        """This answer, in the form that the client takes."""
        return answer(status, reason, wants_text(self._accept(scope)), None, None)

    def to(self, error: Exception, scope: Scope) -> Answer | None:
        """What a client is told about an error; None: it is a fault of ours."""
        if isinstance(error, Turned):
            return self.of(error.status, error.reason, scope)
        if isinstance(error, InvalidTenant):
            return without_tenant("tenant_invalid", self._tenant.status, self._tenant.challenge, self._accept(scope))
        if isinstance(error, UnsafePathError):
            return self.of(400, "path", scope)
        if isinstance(error, Rejected):
            return unavailable(error, self._accept(scope))
        if isinstance(error, TimeoutError):
            return self.of(504, "gateway_timeout", scope)
        if isinstance(error, (UpstreamError, OSError)):
            return self.of(502, "bad_gateway", scope)
        return None

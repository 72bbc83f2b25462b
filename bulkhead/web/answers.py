"""What a client is told that is not let in: 503, 400 or 401, as problem details (RFC 9457) or plain text by Accept.

Answers say what to do and never more: no tenant, no identifier of a resource, no text of an exception, nothing of the
request. They are made once and shared, so a refusal costs a look-up; nobody may change one.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal

from bulkhead.errors import CircuitOpenError, QuotaExceeded, ResourceBusyError

if TYPE_CHECKING:
    from bulkhead.errors import Rejected

Reason = Literal[
    "requests", "busy", "circuit_open", "quota", "unavailable", "tenant_missing", "tenant_invalid",
    "path", "host", "coding", "cell", "upgrade", "bad_gateway", "gateway_timeout",
]  # fmt: skip

_DETAILS: Final[dict[Reason, str]] = {
    "requests": "Too many requests are under way.",
    "busy": "What this request needs is in use to its limit.",
    "circuit_open": "What this request needs is not available.",
    "quota": "A quota is used up.",
    "unavailable": "This request cannot be served now.",
    "tenant_missing": "The request does not say which tenant it is for.",
    "tenant_invalid": "The tenant that the request is for cannot be accepted.",
    # Of the proxy for cells.
    "path": "The path of the request cannot be passed on.",
    "host": "The request names several hosts.",
    "coding": "Bodies with a transfer coding other than chunked are not passed on.",
    "cell": "There is no such cell.",
    "upgrade": "Connections are not upgraded or tunnelled here.",
    "bad_gateway": "What serves this request did not answer as it should.",
    "gateway_timeout": "What serves this request did not answer in time.",
}
_KEPT = 256  # answers; the number of seconds is what varies
_LONGEST = 86_400  # seconds; a client that is told more does not come back


class Answer:
    """A whole response. `headers` as text, `raw_headers` as ASGI wants them; shared, so never changed."""

    __slots__ = ("body", "headers", "phrase", "raw_headers", "status")

    def __init__(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        self.status, self.phrase = status, HTTPStatus(status).phrase
        self.headers, self.body = headers, body
        self.raw_headers = tuple((name.encode(), value.encode()) for name, value in headers)

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.phrase}>"


def unavailable(error: Rejected | QuotaExceeded, accept: str | None, otherwise: int = 1) -> Answer:
    """503 for a refusal of ours. Retry-After: its `retry_after` rounded up, at least 1; without one `otherwise`."""
    return answer(503, _reason(error), wants_text(accept), _seconds(error, otherwise), None)


def _reason(error: Rejected | QuotaExceeded) -> Reason:
    if isinstance(error, ResourceBusyError):
        return "requests" if error.limit == "requests" else "busy"
    if isinstance(error, CircuitOpenError):
        return "circuit_open"
    return "quota" if isinstance(error, QuotaExceeded) else "unavailable"


def _seconds(error: Rejected | QuotaExceeded, otherwise: int) -> int:
    after: float | None = getattr(error, "retry_after", None)
    if after is None or not math.isfinite(after):
        return otherwise
    return min(max(1, math.ceil(after)), _LONGEST)


def without_tenant(reason: Reason, status: int, challenge: str | None, accept: str | None) -> Answer:
    """400 or 401 for a request without a tenant that can be accepted."""
    return answer(status, reason, wants_text(accept), None, challenge)


@lru_cache(_KEPT)
def answer(status: int, reason: Reason, text: bool, retry_after: int | None, challenge: str | None) -> Answer:  # noqa: FBT001  a key of the cache
    """The answer of these facts, as text or as problem details."""
    phrase, detail = HTTPStatus(status).phrase, _DETAILS[reason]
    if retry_after is not None:
        detail += f" Try again in {retry_after} second{'' if retry_after == 1 else 's'}."
    if text:
        kind, body = "text/plain; charset=utf-8", f"{status} {phrase}\n{detail}\n"
    else:
        problem: dict[str, object] = {"type": "about:blank", "title": phrase, "status": status, "detail": detail}
        problem["reason"] = reason
        if retry_after is not None:
            problem["retry_after"] = retry_after
        kind, body = "application/problem+json", json.dumps(problem)
    headers = [("content-type", kind), ("content-length", str(len(body.encode()))), ("cache-control", "no-store")]
    if retry_after is not None:
        headers.append(("retry-after", str(retry_after)))
    if challenge is not None:
        headers.append(("www-authenticate", challenge))
    return Answer(status, tuple(headers), body.encode())


_JSON: Final = ("application/problem+json", "application/json", "application/*", "*/*")
_TEXT: Final = ("text/plain", "text/html", "text/*", "*/*")
_LONGEST_ACCEPT = 1000  # bytes that are looked at; browsers send a hundred


def wants_text(accept: str | None) -> bool:
    """Whether a client with this Accept header is better served with text/plain than with problem details."""
    if not accept or accept == "*/*":
        return False
    weights: dict[str, float] = {}
    for part in accept[:_LONGEST_ACCEPT].lower().split(","):
        kind, *parameters = (one.strip() for one in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        weights[kind] = weight
    return _best(weights, _TEXT) > _best(weights, _JSON)


def _best(weights: dict[str, float], kinds: tuple[str, ...]) -> float:
    """The weight of the first of these kinds that the client names: the most exact one counts (RFC 9110, 12.5.1)."""
    return next((weights[kind] for kind in kinds if kind in weights), 0.0)

"""Which headers a proxy passes on: RFC 9110, 7.6.1, and what is said about the client in X-Forwarded-…

Names are lower case, as ASGI has them. What a client cannot be trusted with is dropped or replaced, never added to:
the tenant, the cell, and where the request came from. Every request comes by here: its headers are looked at once.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"proxy-authenticate", b"proxy-authorization", b"proxy-authentication-info"),
        b"expect",  # the server in front has answered it when the body is read
    )
)
_USUAL: Final = frozenset((b"keep-alive", b"close"))  # of Connection
_FORWARDED: Final = frozenset((b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded"))
_FRAMING: Final = frozenset((b"host", b"content-length"))  # kept, whatever Connection says
VIA: Final = b"1.1 bulkhead"


class Incoming:
    """The headers of one request. `special`: names that `passed` is to be without, beside those of hops."""

    __slots__ = ("found", "passed", "twice")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]], special: AbstractSet[bytes]) -> None:
        passed: Headers = []
        self.found: dict[bytes, bytes] = {}
        """Those that something is done with; several of a name joined."""
        self.twice: tuple[bytes, ...] = ()
        found = self.found
        for pair in headers:
            name = pair[0]
            if name not in special:
                passed.append(pair)
            elif name not in found:
                found[name] = pair[1]
            else:
                found[name] += b", " + pair[1]
                self.twice += (name,)
        connection = found.get(b"connection")
        if connection is not None and connection not in _USUAL:
            named = _tokens(connection)
            passed = [pair for pair in passed if pair[0] not in named]
        self.passed = passed

    @property
    def upgrades(self) -> bool:
        """Whether the client wants another protocol. HTTP/2 in clear text is an offer that may be ignored.

        But with a body it may not: httptools takes what follows such an offer for the other protocol.
        """
        wanted = self.found.get(b"upgrade")
        return wanted is not None and (self.has_body or not _tokens(wanted) <= {b"h2c"})

    @property
    def coded(self) -> bool:
        """Whether the body has a coding (RFC 9112, 6.1) that would be lost on the way."""
        return self.found.get(b"transfer-encoding", b"chunked").lower() != b"chunked"

    @property
    def has_body(self) -> bool:
        """Whether the client announces a body."""
        return b"transfer-encoding" in self.found or self.found.get(b"content-length", b"0") != b"0"

    def outgoing(self, scope: Any, *, trusted: bool) -> Headers:
        """The headers of the request to the cell, but for the tenant's; what a trusted caller says is believed."""
        headers, found = self.passed, self.found
        host = found.get(b"host", b"")
        if host:
            headers.append((b"host", host))
        if b"content-length" in found and b"transfer-encoding" not in found:
            headers.append((b"content-length", found[b"content-length"]))
        client = scope.get("client")
        address: bytes = b"unknown" if not client else client[0].encode("ascii", "replace")
        scheme: bytes = str(scope.get("scheme", "http")).encode("ascii")
        if trusted and not _FORWARDED.isdisjoint(found):
            if b"x-forwarded-for" in found:
                address = found[b"x-forwarded-for"] + b", " + address
            scheme, host = found.get(b"x-forwarded-proto", scheme), found.get(b"x-forwarded-host", host)
            if b"forwarded" in found:
                headers.append((b"forwarded", found[b"forwarded"]))
        headers.append((b"x-forwarded-for", address))
        headers.append((b"x-forwarded-proto", scheme))
        headers.append((b"x-forwarded-host", host))
        headers.append((b"via", found[b"via"] + b", " + VIA if b"via" in found else VIA))
        return headers


def special(*names: bytes) -> frozenset[bytes]:
    """For Incoming: these, and all that a proxy does something with.

    Also with underscores: gateways of the CGI kind see no difference between X_Tenant_Id and the real one.
    """
    exact = HOP_BY_HOP | _FORWARDED | _FRAMING | {b"via", *names}
    return exact | {spelling for name in exact for spelling in _spellings(name)}


def _spellings(name: bytes) -> Iterator[bytes]:
    first, *rest = name.split(b"-")
    for marks in product((b"-", b"_"), repeat=len(rest)):
        yield first + b"".join(mark + part for mark, part in zip(marks, rest, strict=True))


def returned(headers: Iterable[tuple[bytes, bytes]], dropped: AbstractSet[bytes]) -> Headers:
    """The headers of a response to the client, without those that are `dropped`."""
    passed: Headers = []
    named: AbstractSet[bytes] = frozenset()
    for name, value in headers:
        lower = name.lower()
        if lower not in dropped:
            passed.append((lower, value))
        elif lower == b"connection" and value not in _USUAL:
            named |= _tokens(value)
    return [pair for pair in passed if pair[0] not in named] if named else passed


def _tokens(value: bytes) -> frozenset[bytes]:
    return frozenset(token.strip().lower() for token in value.split(b",")) - _FRAMING

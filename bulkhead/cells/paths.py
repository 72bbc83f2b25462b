"""From a cell's base URL and a path that a client chose to one URL that stays on the host and below the base. Pure.

Two rules. What has a meaning in URLs beyond a path and its query (back-slashes, "#", blanks, anything that is not
ASCII) is percent-encoded and so stays path text. What servers, proxies and clients understand differently (".."
however it is encoded, control characters) is refused, never repaired: a repaired path is not the one asked for.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import quote, unquote_to_bytes

from bulkhead.cells.errors import UnsafePathError

plain = re.compile(r"/(?!/)[A-Za-z0-9\-._~!$&'()*+,;=:@/?]*").fullmatch
"""Whether a path without ".." can stay as it is."""

_STRAY = re.compile(r"%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9\-._~!$&'()*+,;=:@/?%]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# A segment ".." as some server may see it: it ends at a parameter (Tomcat's `..;`), blanks and NUL around it are cut.
_CLIMBS = re.compile(rb"(?:\A|[/\\])[\s\0]*\.\.[\s\0]*(?:\Z|[/\\;?#])")
# "." and both slashes in the overlong UTF-8 that lenient decoders accept.
_OVERLONG = (
    *((b"\xc0\xae", b"."), (b"\xc0\xaf", b"/"), (b"\xc1\x9c", b"\\")),
    *((b"\xe0\x80\xae", b"."), (b"\xe0\x80\xaf", b"/"), (b"\xe0\x81\x9c", b"\\")),
)
_DEEPEST = 8  # encodings of encodings

_URL = re.compile(
    r"""(?isx)
    https?://
    (?P<host> [a-z0-9_][a-z0-9._-]* | \[[0-9a-f:.]+\] )
    (?: : (?P<port> [0-9]{1,5}) )?
    (?P<path> /.*)?"""
)
_PATH = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*")


def joined(base: str, path: str) -> str:
    """The URL of a path, with a query perhaps, below a base without a trailing slash; one slash is between them.

    UnsafePathError: the path holds a control character, a lone surrogate, or a segment "..", also percent-encoded.
    """
    if ".." in path or plain(path) is None:
        path = safe(path)
    return base + path


def safe(path: str) -> str:
    """The path with one leading slash, and everything that could be taken for more than a path encoded."""
    if _CONTROL.search(path):
        raise UnsafePathError("this path holds a control character")
    try:
        text = _STRAY.sub(_quoted, path)
    except UnicodeEncodeError:
        raise UnsafePathError("this path holds a lone surrogate, which is no text") from None
    before, mark, query = text.partition("?")
    if climbs(before):
        raise UnsafePathError('this path holds a segment "..", or is percent-encoded too deeply')
    return f"/{before.lstrip('/')}{mark}{query}"


def climbs(path: str) -> bool:
    """Whether some server could see a segment ".." in this path, after however many decodings."""
    text = path.encode()
    for _ in range(_DEEPEST):
        decoded = unquote_to_bytes(text)
        for overlong, meant in _OVERLONG:
            decoded = decoded.replace(overlong, meant)
        if _CLIMBS.search(decoded):
            return True
        if decoded == text:
            return False
        text = decoded
    return True


def _quoted(found: re.Match[str]) -> str:
    return quote(found[0], safe="")


def cell_url_fault(url: object) -> str | None:
    """What is wrong with the URL of a cell; None = nothing. Never quotes it: it could hold a password."""
    if not isinstance(url, str):
        return "must be a text"
    if "@" in url:
        return "must not have user info (or any @)"
    for mark, name in (("?", "a query"), ("#", "a fragment")):
        if mark in url:
            return f"must not have {name}"
    found = _URL.fullmatch(url)
    if found is None:
        return "must be http:// or https:// with a host (ASCII; names in punycode), perhaps a port and a path"
    host, port, path = found["host"], found["port"], found["path"] or ""
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return "has a host that is no IPv6 address"
    if port is not None and not 1 <= int(port) <= 65535:
        return "has a port that is not in 1-65535"
    if _PATH.fullmatch(path) is None:
        return "has a path with characters that must be percent-encoded"
    if climbs(path) or "//" in path:
        return 'has a path with a segment that is empty or ".."'
    return None

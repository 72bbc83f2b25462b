"""The HTTP client of the proxy: aiohttp, by measurement (docs/cells.md has the figures).

Everything that aiohttp does for its users and a proxy must not do is switched off here: redirects, cookies, decoding,
headers of its own, connection limits. Nothing here knows cells.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

try:
    import aiohttp
    from multidict import CIMultiDict
    from yarl import URL
except ImportError:  # pragma: no cover  an extra
    from bulkhead.errors import ConfigurationError

    raise ConfigurationError('the proxy for cells needs aiohttp: pip install "bulkhead-toolkit[cells]"') from None

from bulkhead.adapter import Adapter, CircuitOpenError, Errors, Options, Outcome, ResourceBusyError, UnknownTenantError
from bulkhead.cells.places import KIND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from bulkhead.cells.proxy_headers import Headers

UpstreamError = aiohttp.ClientError
UpstreamResponse = aiohttp.ClientResponse

_LONGEST_LINE: Final = 65_536  # bytes of one header; aiohttp's own bound of 8 kB is below what servers send
_BUFFER: Final = 65_536  # bytes of a body that are kept while the client does not read
_OWN_HEADERS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


def _outcome(error: Exception, options: Options) -> Outcome:  # noqa: ARG001  the form of an outcome function
    sick = isinstance(error, (aiohttp.ClientError, TimeoutError, OSError)) and not isinstance(error, aiohttp.InvalidURL)
    return Outcome.FAILURE if sick else Outcome.IGNORED


adapter = Adapter("cells", KIND, Errors(ResourceBusyError, CircuitOpenError, UnknownTenantError), _outcome)


class Body:
    """The request's body, once. A second reader would send what is left of it as if it were all."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = [parts]

    def __aiter__(self) -> AsyncIterator[bytes]:
        if not self._parts:
            raise aiohttp.ClientPayloadError("the body has been sent already")
        return self._parts.pop()


class Client:
    """Connections to cells. To be made and used in one event loop. Times in seconds."""

    def __init__(self, connect_timeout: float, read_timeout: float) -> None:
        self._session = aiohttp.ClientSession(
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_OWN_HEADERS,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=read_timeout),
            read_bufsize=_BUFFER,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
        )

    def ask(
        self, method: str, url: str, headers: Headers, body: AsyncIterator[bytes] | None
    ) -> Awaitable[aiohttp.ClientResponse]:
        """Send a request; the response when its headers are there. UpstreamError, TimeoutError."""
        try:
            told = [(name.decode(), value.decode()) for name, value in headers]  # aiohttp writes UTF-8
        except UnicodeDecodeError:
            told = [(name.decode(), _text(value)) for name, value in headers]
        data = None if body is None else cast("Any", Body(body))
        return self._session.request(
            method, URL(url, encoded=True), headers=CIMultiDict(told), data=data, allow_redirects=False
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def _text(value: bytes) -> str:
    """A header's value so that it leaves as it came; bytes that are no UTF-8 as Latin-1."""
    with contextlib.suppress(UnicodeDecodeError):
        return value.decode()
    return value.decode("latin-1")


def headers_of(response: aiohttp.ClientResponse) -> Iterable[tuple[bytes, bytes]]:
    """As they came."""
    return response.raw_headers


async def pass_body_on(response: aiohttp.ClientResponse, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Send the body as it comes, in messages of ASGI, the last of which says so; at most two buffers of it are kept."""
    content, more = response.content, True
    while more:
        part = await content.readany()
        more = bool(part) and not content.at_eof()
        await send({"type": "http.response.body", "body": part, "more_body": more})

"""The HTTP client of the proxy: aiohttp, by measurement (docs/cells.md has the figures).

Everything that aiohttp does for its users and a proxy must not do is switched off here: redirects, cookies, decoding,
headers of its own, connection limits. Nothing here knows cells.
"""

from __future__ import annotations

import asyncio
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
    """The request's body, once. A second reader would send what is left of it as if it were all.

    `seconds`: how long the cell may take for a part of it, `limit`: what ends the request else. aiohttp looks at its
    own time-out only when the whole body is sent, and a cell that hangs takes none of it for ever.
    """

    def __init__(self, parts: AsyncIterator[bytes], seconds: float, limit: asyncio.Timeout) -> None:
        self._parts, self._seconds, self._limit = [parts], seconds, limit
        self.answered = False
        """From here on aiohttp's own time-out holds."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        if not self._parts:
            raise aiohttp.ClientPayloadError("the body has been sent already")
        return self._timed(self._parts.pop())

    async def _timed(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in parts:
            self._allow(self._seconds)
            yield part
            self._allow(None)
        self._allow(2 * self._seconds)  # to take what is in buffers, and then to answer

    def _allow(self, seconds: float | None) -> None:
        if not self.answered:
            self._limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)


class Client:
    """Connections to cells. To be made and used in one event loop. Times in seconds."""

    def __init__(self, connect_timeout: float, read_timeout: float) -> None:
        self._read_timeout = read_timeout
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
        target, pairs = URL(url, encoded=True), CIMultiDict(told)
        if body is None:
            return self._session.request(method, target, headers=pairs, allow_redirects=False)
        return self._ask_with(body, method, target, pairs)

    async def _ask_with(
        self, parts: AsyncIterator[bytes], method: str, url: URL, headers: CIMultiDict[str]
    ) -> aiohttp.ClientResponse:
        async with asyncio.timeout(None) as limit:
            body = Body(parts, self._read_timeout, limit)
            try:
                return await self._session.request(
                    method, url, headers=headers, data=cast("Any", body), allow_redirects=False
                )
            finally:
                body.answered = True

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def _text(value: bytes) -> str:
    """A header's value so that it leaves as it came; bytes that are no UTF-8 as Latin-1."""
    with contextlib.suppress(UnicodeDecodeError):
        return value.decode()
    return value.decode("latin-1")


def cannot_pass(response: aiohttp.ClientResponse) -> bool:
    """Whether the client would not get what the cell said: 101 begins what nobody asked for, a coding gets lost."""
    coding = response.headers.get("Transfer-Encoding")
    return not 200 <= response.status < 600 or (coding is not None and coding.lower() != "chunked")


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

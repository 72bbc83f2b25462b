"""A map from a web server or an object store, by conditional GET (ETag, RFC 9110 13.1.2). The only I/O is httpx's.

A client is made for each look-up: they are rare, and so no connection is shared by a fork. All have one TLS
context, which takes a hundred times as long to make as the rest. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

from bulkhead.cells.arguments import check, seconds_fault
from bulkhead.cells.errors import MapUnavailableError
from bulkhead.cells.map_files import parse
from bulkhead.cells.map_source import MapSource
from bulkhead.errors import ConfigurationError
from bulkhead.log_lines import without_secrets
from bulkhead.option_rows import shown

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from bulkhead.cells.maps import CellMap

LARGEST_BYTES = 64 * 2**20
_GRACE = 0.25  # seconds by which a time-out of httpx, which says more, comes first


class HttpSource(MapSource):
    """A map at a URL, TOML or JSON. `keep`: the file that the last good map is kept in.

    `timeout`: seconds for each step of a look-up, and for the whole answer. `client`: options of `httpx.Client`
    (headers, auth, verify, cert …). ConfigurationError for another URL than http or https, for options that
    `httpx.Client` does not have, or without httpx.
    """

    def __init__(
        self,
        url: str,
        keep: str | os.PathLike[str] | None,
        *,
        timeout: float = 5.0,
        minimum_interval: float = 2.0,
        **client: Any,
    ) -> None:
        check("url", _url_fault(url))
        check("timeout", seconds_fault(timeout, above=True))
        self._httpx = _library()
        if "verify" not in client:
            client["verify"] = self._httpx.create_ssl_context(trust_env=client.get("trust_env", True))
        self._url, self._timeout = url, timeout
        self._client = {"timeout": timeout, "follow_redirects": False, **client}
        try:
            self._httpx.Client(**self._client).close()
        except (TypeError, ValueError) as error:  # else a kept map would hide it
            told = without_secrets(str(error))
            raise ConfigurationError(f"HttpSource passes other arguments on to httpx.Client: {told}") from None
        self._answered: tuple[str, CellMap] | None = None  # the last ETag, and the map it stands for
        label = without_secrets(url)
        super().__init__(self._get, label, keep, minimum_interval=minimum_interval, patience=2 * timeout)

    def _get(self) -> CellMap | None:
        answered = self._answered
        headers = {"Accept": "application/toml, application/json;q=0.9, */*;q=0.5"}
        if answered is not None:
            headers["If-None-Match"] = answered[0]
        deadline, late = _Deadline(self._timeout), f"the answer takes more than {self._timeout:g} s"
        try:
            with (
                deadline,
                self._httpx.Client(**self._client) as client,
                client.stream("GET", self._url, headers=headers, extensions={"trace": deadline.watch}) as response,
            ):
                if response.status_code == 304 and answered is not None:
                    return answered[1]
                if response.status_code != 200:
                    raise MapUnavailableError(f"{self.label}: answers {response.status_code}")
                text, etag = self._body(response), response.headers.get("ETag", "")
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            raise MapUnavailableError(f"{self.label}: {late if deadline.passed else _told(error)}") from error
        if deadline.passed:  # an answer without a length may look complete
            raise MapUnavailableError(f"{self.label}: {late}")
        fetched = parse(text, self.label)
        if etag and etag.isascii() and etag.isprintable():  # another one could not be sent back
            self._answered = (etag, fetched)
        return fetched

    def _body(self, response: Any) -> bytes:
        """The whole body, if it is no larger than a map can be."""
        body = bytearray()
        for part in response.iter_bytes():
            body += part
            if len(body) > LARGEST_BYTES:
                raise MapUnavailableError(f"{self.label}: answers more than {LARGEST_BYTES} bytes")
        return bytes(body)


class _Deadline:
    """Ends an answer that takes longer than `seconds`, by closing the connection. `passed`: it did.

    httpx counts its time-outs for each read: a server that sends a byte now and then would never be given up.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._seconds = seconds
        self._socket: socket.socket | None = None
        self._timer: threading.Timer | None = None

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """What httpcore tells of a request's progress: which connection it has, and when it waits for the answer."""
        stream: Any = info.get("return_value")
        if hasattr(stream, "get_extra_info"):
            self._socket = stream.get_extra_info("socket")
        if event.endswith("receive_response_headers.started"):
            self._cancel()
            self._timer = threading.Timer(self._seconds + _GRACE, self._end)
            self._timer.daemon = True
            with contextlib.suppress(RuntimeError):  # no thread can be started, the interpreter is ending perhaps
                self._timer.start()

    def _end(self) -> None:
        self.passed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # of TLS, too: what waits to read wakes up

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel()


def _url_fault(url: object) -> str | None:
    if not isinstance(url, str):
        return f"give an http(s) URL, not {shown(url)}"
    if not url.lower().startswith(("http://", "https://")):
        return f"give an http(s) URL, not {shown(without_secrets(url))}"
    return None


def _told(error: Exception) -> str:
    """The kind of the error, and its text if it has one."""
    text = without_secrets(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _library() -> Any:
    try:
        import httpx  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigurationError(
            f'HttpSource needs httpx, which cannot be imported ({error}); pip install "bulkhead-toolkit[httpx]"'
        ) from error
    return httpx

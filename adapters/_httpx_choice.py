"""Which resource a request of an httpx client belongs to.

Options with a name: one resource for the whole client, whatever it is pointed at. Options without one: a resource per
origin (host:port), found at every hop, so a redirect to another host is a call on that host. A callable is asked once
per client and origin, because host and port are what it decides by. Shared by httpx and httpx2; it does no I/O and
takes no tickets.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from bulkhead.adapter import Options, interpret, resolver

if TYPE_CHECKING:
    from bulkhead.adapter import Adapter, Late, Resource

MAXIMUM_ORIGINS = 256  # per client; the registry has bounds of its own
PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Choice:
    """The resources of one client. `declared`: what the user gave, brought to Options where it can be.

    `fixed` is the one resource of a client whose options have a name; None: ask `of(url)` at each hop.
    """

    __slots__ = ("_adapter", "_base_url", "_known", "_lock", "_read_timeout", "declared", "fixed")

    def __init__(self, adapter: Adapter, declared: object, base_url: Any, read_timeout: float | None) -> None:
        self._adapter, self._base_url, self._read_timeout = adapter, base_url, read_timeout
        self._known: dict[tuple[str, bytes, int | None], Resource | Late | None] = {}
        self._lock = threading.Lock()
        self.declared = declared
        self.fixed: Resource | Late | None = None
        if isinstance(declared, str) or (
            isinstance(declared, Options) and (declared.name is not None or declared.identifier is not None)
        ):
            self.fixed = adapter.bind(declared, name="", read_timeout=read_timeout)
        elif base_url.host:
            self.of(base_url)  # its mistakes are told where the client is built

    def of(self, url: Any) -> Resource | Late | None:
        """The resource of this URL's origin; None: unprotected. ConfigurationError for options that cannot be used."""
        origin = (url.scheme, url.raw_host, url.port)
        try:
            return self._known[origin]
        except KeyError:
            pass
        host, port = url.host, url.port or PORTS.get(url.scheme)
        found = self._adapter.bind(
            self.declared,
            name=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            host=host,
            port=port,
            extra={"scheme": url.scheme, "base_url": str(self._base_url)},
            read_timeout=self._read_timeout,
        )
        with self._lock:
            if len(self._known) >= MAXIMUM_ORIGINS:
                del self._known[next(iter(self._known))]
            self._known[origin] = found
        return found

    def __repr__(self) -> str:
        return repr(self.fixed) if self.fixed is not None else f"<resources by origin: {list(self._known.values())}>"


def declared_by(raw: object, adapter: Adapter) -> object:
    """What was passed as `bulkhead=`: Options, a name, or a callable; None: the client is unprotected.

    ConfigurationError for anything else, and for options of another kind of client.
    """
    if raw is None:
        raw = resolver()
    if callable(raw) and not isinstance(raw, type):
        return raw
    found = interpret(raw, driver=adapter.driver)
    return found.for_kind(adapter.kind) if isinstance(found, Options) else found

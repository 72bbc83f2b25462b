"""Control of a Toxiproxy server, typed: proxies, toxics as context managers, populate, reset.

It speaks through the client package toxiproxy-python (import name `toxiproxy`) but uses only its request layer, with an
address per server instead of one per process, a time-out, and the server's own words in errors. The package's higher
classes are left alone: their `down` enables what was disabled before, their `populate` is not the server's, a fault of
the server surfaces as a KeyError, and toxics cannot be updated.
Times are milliseconds and sizes bytes, as Toxiproxy has them. `timeout` and `down` close or cut open connections;
`reset_peer` touches only connections opened after it was added; none of them can make a *connect* time out
(`NeverAccepting` of peers.py can).
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

Stream: TypeAlias = Literal["downstream", "upstream"]
REQUEST_SECONDS = 5.0
# What each toxic of Toxiproxy 2.12 takes. A misspelt attribute is otherwise ignored by the server without a word.
TOXICS: dict[str, frozenset[str]] = {
    "latency": frozenset({"latency", "jitter"}),
    "bandwidth": frozenset({"rate"}),
    "slow_close": frozenset({"delay"}),
    "timeout": frozenset({"timeout"}),
    "reset_peer": frozenset({"timeout"}),
    "slicer": frozenset({"average_size", "size_variation", "delay"}),
    "limit_data": frozenset({"bytes"}),
}


class ToxiproxyError(RuntimeError):
    """The server refused, or cannot be reached; the text is the server's."""


class Toxiproxy:
    """One Toxiproxy server. `toxiproxy["redis"]` is the proxy of that name; KeyError names those that exist."""

    def __init__(self, url: str) -> None:
        from toxiproxy.api import APIConsumer  # noqa: PLC0415 - optional

        place = urlsplit(url if "//" in url else f"//{url}")
        # The package keeps the address on the class: a class of our own per server.
        self._api = type("Api", (APIConsumer,), {"host": place.hostname, "port": place.port or 8474})
        self.url = f"http://{place.hostname}:{place.port or 8474}"

    def version(self) -> str:
        """The server's version; "git" if it was built by `go install`."""
        return str(self._call("get", "/version")["version"])

    def proxies(self) -> dict[str, Proxy]:
        """All proxies of the server, ours or not."""
        return {name: Proxy(self, facts) for name, facts in self._call("get", "/proxies").items()}

    def __getitem__(self, name: str) -> Proxy:
        proxies = self.proxies()
        if name not in proxies:
            raise KeyError(f"no proxy {name!r}; there are {sorted(proxies)}")
        return proxies[name]

    def create(self, name: str, upstream: str, listen: str = "127.0.0.1:0") -> Proxy:
        """A new proxy from `listen` (port 0: a free one) to `upstream`, both host:port."""
        return Proxy(self, self._call("post", "/proxies", name=name, upstream=upstream, listen=listen, enabled=True))

    def delete(self, name: str) -> None:
        """Remove a proxy, closing its connections."""
        self._call("delete", f"/proxies/{quote(name, safe='')}")

    def populate(
        self, proxies: Path | Sequence[Mapping[str, Any]], upstreams: Mapping[str, str] | None = None
    ) -> dict[str, Proxy]:
        """Create or replace the listed proxies (a JSON file, or the list itself); returns them by name.

        `upstreams` gives other upstream addresses by name, and then only these proxies are made.
        """
        listed = json.loads(proxies.read_text(encoding="utf-8")) if isinstance(proxies, Path) else proxies
        wanted = [dict(one) for one in listed if upstreams is None or one["name"] in upstreams]
        for one in wanted:
            one["upstream"] = (upstreams or {}).get(one["name"], one["upstream"])
        made = self._call("post", "/populate", wanted)["proxies"]
        return {facts["name"]: Proxy(self, facts) for facts in made}

    def reset(self) -> None:
        """Enable every proxy and remove every toxic."""
        self._call("post", "/reset")

    def _call(self, method: str, path: str, body: object = None, **fields: object) -> Any:
        from requests import RequestException  # noqa: PLC0415 - comes with toxiproxy-python
        from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists  # noqa: PLC0415

        # The empty proxies keep loopback requests from going through a proxy of the environment.
        options: dict[str, Any] = {"timeout": REQUEST_SECONDS, "proxies": {"http": "", "all": ""}}
        if method == "post":
            options["json"] = fields if body is None else body
        try:
            reply = getattr(self._api, method)(path, **options)
        except (InvalidToxic, NotFound, ProxyExists) as error:
            raise ToxiproxyError(_words(error.args[0])) from None
        except RequestException as error:
            raise ToxiproxyError(f"Toxiproxy at {self.url} does not answer: {error}") from error
        if not reply.ok:
            raise ToxiproxyError(f"{reply.status_code}: {_words(reply.content)}")
        return reply.json() if reply.content else {}


class Proxy:
    """One proxy. Its facts are those of the moment it was fetched, `enabled` and `toxics()` are asked anew."""

    def __init__(self, server: Toxiproxy, facts: Mapping[str, Any]) -> None:
        self._server = server
        self.name = str(facts["name"])
        self.address = str(facts["listen"])
        self.upstream_address = str(facts["upstream"])
        host, _, port = self.address.rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)
        self._path = f"/proxies/{quote(self.name, safe='')}"

    def downstream(
        self, kind: str, *, toxicity: float = 1.0, name: str | None = None, **attributes: int
    ) -> contextlib.AbstractContextManager[Toxic]:
        """A toxic on what the server sends to the client, within the block."""
        return self._toxic(kind, "downstream", toxicity, name, attributes)

    def upstream(
        self, kind: str, *, toxicity: float = 1.0, name: str | None = None, **attributes: int
    ) -> contextlib.AbstractContextManager[Toxic]:
        """A toxic on what the client sends to the server, within the block."""
        return self._toxic(kind, "upstream", toxicity, name, attributes)

    @contextlib.contextmanager
    def down(self) -> Generator[None]:
        """Refuse connections and cut the open ones, within the block. What was disabled before stays so after it."""
        before = self.enabled
        self.disable()
        try:
            yield
        finally:
            if before:
                self.enable()

    @property
    def enabled(self) -> bool:
        """Whether it listens."""
        return bool(self._server._call("get", self._path)["enabled"])  # noqa: SLF001 - one subject, two classes

    def enable(self) -> None:
        """Listen."""
        self._server._call("post", self._path, enabled=True)  # noqa: SLF001

    def disable(self) -> None:
        """Cut every connection and stop listening."""
        self._server._call("post", self._path, enabled=False)  # noqa: SLF001

    def toxics(self) -> dict[str, dict[str, Any]]:
        """The toxics in force, by name, as the server describes them."""
        return {toxic["name"]: toxic for toxic in self._server._call("get", f"{self._path}/toxics")}  # noqa: SLF001

    def remove(self, toxic: str) -> None:
        """Remove a toxic by its name."""
        self._server._call("delete", f"{self._path}/toxics/{quote(toxic, safe='')}")  # noqa: SLF001

    @contextlib.contextmanager
    def _toxic(
        self, kind: str, stream: Stream, toxicity: float, name: str | None, attributes: dict[str, int]
    ) -> Generator[Toxic]:
        check(kind, attributes)
        toxic = Toxic(self._server, self._path, kind, name or f"{kind}_{stream}")
        body = {"name": toxic.name, "type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes}
        self._server._call("post", f"{self._path}/toxics", body)  # noqa: SLF001
        try:
            yield toxic
        finally:
            with contextlib.suppress(ToxiproxyError):  # reset() within the block has removed it
                self.remove(toxic.name)


class Toxic:
    """A toxic in force."""

    def __init__(self, server: Toxiproxy, proxy_path: str, kind: str, name: str) -> None:
        self._server = server
        self._path = f"{proxy_path}/toxics/{quote(name, safe='')}"
        self.kind = kind
        self.name = name

    def update(self, *, toxicity: float | None = None, **attributes: int) -> None:
        """Change attributes of the running toxic; those not named stay."""
        check(self.kind, attributes)
        body: dict[str, object] = {"attributes": attributes}
        if toxicity is not None:
            body["toxicity"] = toxicity
        self._server._call("post", self._path, body)  # noqa: SLF001 - one subject


def check(kind: str, attributes: Mapping[str, int]) -> None:
    """Refuse what the server would ignore, or what would crash it."""
    if kind not in TOXICS:
        raise ValueError(f"no toxic {kind!r}; there are {sorted(TOXICS)}")
    unknown = attributes.keys() - TOXICS[kind]
    if unknown:
        raise ValueError(f"{kind} takes {sorted(TOXICS[kind])}, not {sorted(unknown)}")
    negative = [name for name, value in attributes.items() if value < 0]
    if negative:
        raise ValueError(f"{kind}: {negative} must not be negative")
    if kind == "slicer":
        average, variation = attributes.get("average_size", 0), attributes.get("size_variation", 0)
        if not 0 <= variation < average:
            # The server divides by, or slices with, what is left: it panics.
            raise ValueError("slicer needs average_size above 0 and size_variation below it, in every call")


def _words(body: bytes) -> str:
    """The message in the body of an error: JSON, whatever its content type says, or plain text."""
    text = body.decode(errors="replace").strip()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(text)["error"])
    return text

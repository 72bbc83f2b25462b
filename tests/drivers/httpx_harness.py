"""httpx and httpx2 against a private HTTP service, for the shared driver suite.

httpx2 has the adapter's own tests in every run, and the shared cases in a full one: its adapter is the same code.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from counts import FULL
from drivers.harness import AsyncHarness, Harness, SyncHarness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

CONNECTIONS = None  # no limit: httpcore loses places of its pool when calls are cancelled (httpcore#1093)
SECONDS = 30.0

_HEAD = """
import {library}
base = f"http://{{address}}"
"""
_SYNC_SCRIPT = (
    _HEAD
    + """
def make(**kw):
    return {library}.Client(base_url=base, timeout=30, trust_env=False, **kw)

def call(client):
    return client.get("/ok").text

def block(client, seconds):
    return client.get("/slow", params={{"seconds": seconds}}).text
"""
)
_ASYNC_SCRIPT = (
    _HEAD
    + """
import asyncio
import os
loops = {{}}

def run(coroutine):
    loop = loops.setdefault(os.getpid(), None) or asyncio.new_event_loop()
    loops[os.getpid()] = loop
    return loop.run_until_complete(coroutine)

def make(**kw):
    return {library}.AsyncClient(base_url=base, timeout=30, trust_env=False, **kw)

def call(client):
    return run(client.get("/ok")).text

def block(client, seconds):
    return run(client.get("/slow", params={{"seconds": seconds}})).text

def settle():
    async def rest():
        tasks = asyncio.all_tasks() - {{asyncio.current_task()}}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    run(rest())
"""
)


class _Httpx(Harness):
    kind = "http"
    connects = False
    library: ClassVar[Any]

    def default_name(self) -> str:
        return f"{self.server.host}:{self.server.port}"

    def reached(self) -> int:
        count: int = self.server.count("/ok")
        return count

    def _given(self, raw: object, read_timeout: float | None) -> dict[str, Any]:
        given: dict[str, Any] = {} if raw is None else {"bulkhead": raw}
        time_outs = self.library.Timeout(SECONDS, read=read_timeout or SECONDS)
        return {"base_url": self.server.url, "timeout": time_outs, "trust_env": False, **given}

    def _transport(self, kind: Any, retries: int) -> Any:
        # Without verification: reading the certificates takes longer than most cases.
        return kind(
            retries=retries, trust_env=False, verify=False, limits=self.library.Limits(max_connections=CONNECTIONS)
        )


class _Sync(_Httpx, SyncHarness):
    """A Client."""

    def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Any:
        transport = self._transport(self.library.HTTPTransport, retries)
        return self.library.Client(transport=transport, **self._given(raw, read_timeout))

    def shut(self, client: Any) -> None:
        client.close()

    def do(self, client: Any) -> str:
        text: str = client.get("/ok").text
        return text

    def do_block(self, client: Any, seconds: float) -> str:
        text: str = client.get("/slow", params={"seconds": seconds}).text
        return text

    def do_fail(self, client: Any) -> None:
        client.get("/reset")

    def do_neutral(self, client: Any) -> None:
        client.get("/status", params={"code": 404}).raise_for_status()

    def do_connection(self, client: Any) -> Any:
        return client.get("/ok").extensions["network_stream"].get_extra_info("client_addr")

    def do_time_outs(self, client: Any) -> Any:
        response = client.get("/ok")
        return client.timeout.as_dict(), dict(response.request.extensions["timeout"])

    def do_stream(self, client: Any, items: int) -> Iterator[bytes]:
        with client.stream("GET", "/stream", params={"n": items, "size": 1000}) as response:
            yield from response.iter_raw()


class _Async(_Httpx, AsyncHarness):
    """An AsyncClient."""

    def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Any:
        transport = self._transport(self.library.AsyncHTTPTransport, retries)
        return self.library.AsyncClient(transport=transport, **self._given(raw, read_timeout))

    async def shut(self, client: Any) -> None:
        await client.aclose()

    async def do(self, client: Any) -> str:
        text: str = (await client.get("/ok")).text
        return text

    async def do_block(self, client: Any, seconds: float) -> str:
        text: str = (await client.get("/slow", params={"seconds": seconds})).text
        return text

    async def do_fail(self, client: Any) -> None:
        await client.get("/reset")

    async def do_neutral(self, client: Any) -> None:
        (await client.get("/status", params={"code": 404})).raise_for_status()

    async def do_connection(self, client: Any) -> Any:
        return (await client.get("/ok")).extensions["network_stream"].get_extra_info("client_addr")

    async def do_time_outs(self, client: Any) -> Any:
        response = await client.get("/ok")
        return client.timeout.as_dict(), dict(response.request.extensions["timeout"])

    async def do_stream(self, client: Any, items: int) -> AsyncIterator[bytes]:
        async with client.stream("GET", "/stream", params={"n": items, "size": 1000}) as response:
            async for part in response.aiter_raw():
                yield part


def _harness(flavour: type[_Httpx], script: str, name: str) -> type[_Httpx]:
    library = importlib.import_module(name)
    adapter = importlib.import_module(f"adapters.{name}").adapter
    return type(
        f"{name.capitalize()}{flavour.__name__.strip('_')}",
        (flavour,),
        {
            "driver": name,
            "module": name,
            "library": library,
            "base": library.HTTPError,
            "errors": adapter.query.errors,
            "patched": (f"{name}:Client.__init__", f"{name}:AsyncClient.__init__"),
            "script": script.format(library=name),
        },
    )


LIBRARIES = [name for name in ("httpx", "httpx2") if find_spec(name)]
HARNESSES = [
    _harness(flavour, script, name)
    for name in (LIBRARIES if FULL else LIBRARIES[:1])
    for flavour, script in ((_Sync, _SYNC_SCRIPT), (_Async, _ASYNC_SCRIPT))
]

each_library = pytest.mark.parametrize("library", [importlib.import_module(name) for name in LIBRARIES], ids=LIBRARIES)
"""Decorator of tests that are about clients as such: `library` is httpx, then httpx2."""


def errors_of(library: Any) -> Any:
    """The rejections of the library's adapter: `.busy`, `.open`, `.unknown_tenant`."""
    return importlib.import_module(f"adapters.{library.__name__}").adapter.query.errors

"""httpx through Toxiproxy: a slow, silent, cut or absent network opens the circuit, and its return closes it."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any

import pytest
from drivers.httpx_harness import each_library, errors_of
from polling import auntil_due

import bulkhead

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bulkhead.adapter import Resource
    from bulkhead.testing import Toxiproxy

pytestmark = [
    pytest.mark.resilience,
    pytest.mark.anyio,
    each_library,
    pytest.mark.parametrize("flavour", ["Client", "AsyncClient"]),
]
CIRCUIT: dict[str, Any] = {
    "error_threshold": 3,
    "error_threshold_timeout": 30.0,
    "error_timeout": 2.0,
    "success_threshold": 2,
}


class Api:
    """A client of either flavour behind the proxy, and its resource."""

    def __init__(self, library: Any, flavour: str, address: str) -> None:
        self.library = library
        options = bulkhead.options(name=f"proxied-{flavour}", tickets=4, **CIRCUIT)
        self.client = getattr(library, flavour)(base_url=f"http://{address}", timeout=0.5, trust_env=False, **options)

    @property
    def resource(self) -> Resource:
        found = bulkhead.find(f"http:proxied-{type(self.client).__name__}")
        assert found is not None
        return found

    async def get(self, path: str, **options: Any) -> Any:
        if inspect.iscoroutinefunction(self.client.get):
            return await self.client.get(path, **options)
        return await asyncio.to_thread(self.client.get, path, **options)

    async def succeeds(self) -> None:
        assert (await self.get("/ok", timeout=9.0)).text == "ok"

    async def fails(self, *errors: str, path: str = "/ok") -> None:
        """Three times, each for the network's reason; then it is refused at once."""
        for _ in range(3):
            with pytest.raises(tuple(getattr(self.library, name) for name in errors)) as caught:
                await self.get(path)
            assert bulkhead.rejection(caught.value) is None
        assert self.resource.state == "open"
        began = time.monotonic()
        for _ in range(10):
            with pytest.raises(errors_of(self.library).open):
                await self.get(path)
        assert time.monotonic() - began < 1.6, "10 that wait for the time-out would need 5 s"
        assert self.resource.in_use == 0

    async def recovers(self) -> None:
        await auntil_due(self.resource)
        for _ in range(2):
            await self.succeeds()
        assert self.resource.state == "closed"

    async def close(self) -> None:
        closed = self.client.aclose() if hasattr(self.client, "aclose") else self.client.close()
        if inspect.isawaitable(closed):
            await closed


@pytest.fixture
async def api(library: Any, flavour: str, toxiproxy: Toxiproxy) -> AsyncIterator[Api]:
    made = Api(library, flavour, toxiproxy["http"].address)
    await made.succeeds()
    yield made
    await made.close()


async def test_latency_beyond_the_time_out_opens_it(api: Api, toxiproxy: Toxiproxy) -> None:
    with toxiproxy["http"].downstream("latency", latency=2500):
        await api.fails("ReadTimeout", "ConnectTimeout")
    await api.recovers()


async def test_a_little_latency_does_not(api: Api, toxiproxy: Toxiproxy) -> None:
    with toxiproxy["http"].downstream("latency", latency=50):
        for _ in range(4):
            await api.succeeds()
    assert api.resource.state == "closed"


async def test_data_that_never_arrives_opens_it(api: Api, toxiproxy: Toxiproxy) -> None:
    with toxiproxy["http"].downstream("timeout", timeout=0):
        await api.fails("ReadTimeout", "ConnectTimeout")
    await api.recovers()


async def test_resets_open_it(api: Api, toxiproxy: Toxiproxy) -> None:
    with toxiproxy["http"].downstream("reset_peer", timeout=0):
        await api.close()
        other = Api(api.library, type(api.client).__name__, toxiproxy["http"].address)  # connections opened after it
        await other.fails("ReadError", "WriteError", "ConnectError", "RemoteProtocolError")
    await other.recovers()
    await other.close()


async def test_an_absent_server_opens_it(api: Api, toxiproxy: Toxiproxy) -> None:
    with toxiproxy["http"].down():
        await api.fails("ConnectError", "ReadError", "RemoteProtocolError")
    await api.recovers()


async def test_answers_that_are_cut_open_it(api: Api, toxiproxy: Toxiproxy) -> None:
    """The headers arrive, the body does not."""
    with toxiproxy["http"].downstream("limit_data", bytes=2000):
        await api.fails("RemoteProtocolError", "ReadError", path="/stream?n=400&size=1000")
    await api.recovers()

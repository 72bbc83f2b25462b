"""httpx: cancellation at any moment loses no ticket; trio works without waiting."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from counts import CANCELLATIONS, STRESS_THREADS
from drivers.httpx_harness import each_library, errors_of
from polling import auntil, auntil_due

import bulkhead

if TYPE_CHECKING:
    from bulkhead.adapter import Resource
    from bulkhead.testing import HttpServer

pytestmark = each_library
STREAMS = 180
CAP = 7


def found(name: str) -> Resource:
    resource = bulkhead.find(f"http:{name}")
    assert resource is not None
    return resource


class Peak:
    """How many requests are between their beginning and the end of their response, now and at most."""

    def __init__(self, library: Any) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()
        peak = self

        class Stream(library.AsyncByteStream):  # type: ignore[misc]
            def __init__(self, inner: Any) -> None:
                self.inner, self.open = inner, True

            async def __aiter__(self) -> Any:
                async for part in self.inner:
                    yield part

            async def aclose(self) -> None:
                try:
                    await self.inner.aclose()
                finally:
                    if self.open:
                        self.open = False
                        peak.add(-1)

        class Transport(library.AsyncHTTPTransport):  # type: ignore[misc]
            async def handle_async_request(self, request: Any) -> Any:
                peak.add(1)
                try:
                    response = await super().handle_async_request(request)
                except BaseException:
                    peak.add(-1)
                    raise
                response.stream = Stream(response.stream)
                return response

        self.transport = Transport

    def add(self, change: int) -> None:
        with self._lock:
            self.now += change
            self.most = max(self.most, self.now)


@pytest.mark.anyio
async def test_streams_that_are_cancelled_at_random_keep_to_the_cap_and_lose_nothing(
    library: Any, http_server: HttpServer
) -> None:
    """Known faults 27, 38, 44, 46: while waiting, while connecting, between chunks, while closing; thrice in a row."""
    peak, dice = Peak(library), random.Random(11)  # noqa: S311  repeatable
    options = bulkhead.options(name="storm", tickets=CAP, tenant_tickets=3, timeout=20.0, max_waiting=STREAMS)
    limits = library.Limits(max_connections=None)
    ended = 0

    async def stream(client: Any) -> None:
        nonlocal ended
        async with client.stream("GET", "/drip", params={"chunks": 3, "seconds": 0.01}) as response:
            async for _ in response.aiter_bytes():
                if dice.random() < 0.2:
                    break
        ended += 1

    async def one(client: Any, number: int) -> None:
        with bulkhead.tenant(f"tenant-{number % 5}"):
            task = asyncio.ensure_future(stream(client))
        if number % 3:
            await asyncio.sleep(dice.random() * 0.3)
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0)
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, library.TransportError), repr(error)

    transport = peak.transport(limits=limits)
    async with library.AsyncClient(base_url=http_server.url, transport=transport, timeout=20, **options) as client:
        for _ in range(max(1, CANCELLATIONS // 1000)):
            await asyncio.gather(*(one(client, number) for number in range(STREAMS)))
        gc.collect()
        assert found("storm").in_use == 0
        assert found("storm").state == "closed"
        assert ended > STREAMS // 6
        assert 1 < peak.most <= CAP
        with bulkhead.tenant("tenant-0"):
            assert (await client.get("/ok")).text == "ok"


@pytest.mark.anyio
async def test_running_and_waiting_requests_that_are_cancelled_leave_all_tickets(
    library: Any, http_server: HttpServer
) -> None:
    """Known fault 46, to the letter: two run, two wait."""
    options = bulkhead.options(name="two", tickets=2, timeout=5.0)
    async with library.AsyncClient(base_url=http_server.url, **options) as client:
        tasks = [asyncio.ensure_future(client.get("/slow?seconds=5")) for _ in range(4)]
        await auntil(lambda: len(found("two").queue) == 2)
        assert found("two").in_use == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert found("two").in_use == 0
        async with client.stream("GET", "/ok"), client.stream("GET", "/ok"):
            assert found("two").in_use == 2


@pytest.mark.anyio
async def test_a_cancelled_probe_leaves_its_place(library: Any, http_server: HttpServer) -> None:
    """Known fault 1."""
    options = bulkhead.options(
        name="cancelled-probe", error_threshold=1, error_timeout=1.5, success_threshold=1, cancel_counts_after=None
    )
    async with library.AsyncClient(base_url=http_server.url, **options) as client:
        with pytest.raises(library.TransportError):
            await client.get("/reset")
        await auntil_due(found("cancelled-probe"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.get("/slow?seconds=5")
        assert (await client.get("/ok")).text == "ok"
        assert found("cancelled-probe").state == "closed"


def test_threads_keep_to_the_cap(library: Any, http_server: HttpServer) -> None:
    """Known fault 35: one client, many threads; afterwards the circuit still refuses."""
    outcomes: list[str] = []
    with library.Client(base_url=http_server.url, **bulkhead.options(name="threads", tickets=3)) as client:

        def work() -> None:
            for _ in range(15):
                try:
                    outcomes.append(client.get("/ok").text)
                except errors_of(library).busy:
                    outcomes.append("busy")
                assert found("threads").in_use <= 3

        threads = [threading.Thread(target=work) for _ in range(STRESS_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 15 * STRESS_THREADS
        assert "ok" in outcomes
        assert found("threads").in_use == 0
        found("threads").open()
        with pytest.raises(errors_of(library).open):
            client.get("/ok")


def test_trio_works_without_waiting(library: Any, http_server: HttpServer) -> None:
    """A ticket that is not free is a rejection at once; cancellation gives everything back."""
    trio = pytest.importorskip("trio")
    options = bulkhead.options(
        name="trio", tickets=1, timeout=5.0, error_threshold=3, error_timeout=9, success_threshold=1
    )

    async def main() -> None:
        async with library.AsyncClient(base_url=http_server.url, **options) as client:
            assert (await client.get("/ok")).text == "ok"
            async with client.stream("GET", "/stream", params={"n": 300, "size": 1000}) as response:
                began = trio.current_time()
                with pytest.raises(errors_of(library).busy):
                    await client.get("/ok")
                assert trio.current_time() - began < 1
                assert len(await response.aread()) == 300_000
            with trio.move_on_after(0.1) as scope:
                await client.get("/slow?seconds=5")
            assert scope.cancelled_caught
            assert found("trio").in_use == 0
            for _ in range(3):
                with pytest.raises(library.TransportError):
                    await client.get("/reset")
            with pytest.raises(errors_of(library).open):
                await client.get("/ok")

    trio.run(main)

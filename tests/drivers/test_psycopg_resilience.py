"""psycopg behind a bad network: Toxiproxy between it and a real PostgreSQL. Every wait is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from polling import auntil

import bulkhead
from adapters.psycopg import PsycopgCallTimeoutError, PsycopgCircuitOpenError

if TYPE_CHECKING:
    from bulkhead.testing import Toxiproxy

pytestmark = [pytest.mark.resilience, pytest.mark.anyio]
numbers = itertools.count(1)
OPTIONS: dict[str, Any] = {
    "tickets": 4,
    "call_timeout": 0.5,
    "error_threshold": 3,
    "error_threshold_timeout": 20,
    "error_timeout": 2.0,
    "success_threshold": 1,
}


class Client:
    """One connection that reconnects by itself, sync (in a thread) or async."""

    def __init__(self, kind: str, toxiproxy: Toxiproxy) -> None:
        proxy = toxiproxy["postgres"]
        self.kind = kind
        self.dsn = f"host={proxy.host} port={proxy.port} user=postgres dbname=postgres sslmode=disable"
        self.options = bulkhead.options(name=f"bad-network-{next(numbers)}", **OPTIONS)
        self.connection: Any = None
        self._resource: Any = None

    @property
    def resource(self) -> Any:
        found = bulkhead.find(f"postgres:{self.options['bulkhead'].name}")
        assert found is not None
        return found

    async def call(self, statement: str = "SELECT 2") -> Any:
        if self.kind == "sync":
            return await asyncio.to_thread(self._call, statement)
        if self.connection is None or self.connection.closed:
            self.connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True, **self.options)
        return await (await self.connection.execute(statement)).fetchall()

    def _call(self, statement: str) -> Any:
        if self.connection is None or self.connection.closed:
            self.connection = psycopg.connect(self.dsn, autocommit=True, **self.options)
        return self.connection.execute(statement).fetchall()

    async def fails(self, *kinds: type[BaseException]) -> float:
        """A call that fails with one of these; its seconds."""
        began = time.monotonic()
        with pytest.raises(kinds or psycopg.OperationalError) as caught:
            await self.call()
        assert bulkhead.rejection(caught.value) is None
        return time.monotonic() - began

    async def is_refused(self) -> None:
        began = time.monotonic()
        for _ in range(10):
            with pytest.raises(PsycopgCircuitOpenError):
                await self.call()
        assert time.monotonic() - began < 1.6, "10 that wait for the time limit would need 5 s"

    async def recovers(self) -> None:
        async def is_closed() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                await self.call()
            return bool(self.resource.state == "closed")

        await auntil(is_closed)
        assert await self.call() == [(2,)]
        assert self.resource.in_use == 0

    async def close(self) -> None:
        if self.connection is not None:
            done = self.connection.close()
            if done is not None:
                await done


@pytest.fixture(params=["sync", "async"])
async def client(request: pytest.FixtureRequest, toxiproxy: Toxiproxy) -> Any:
    one = Client(request.param, toxiproxy)
    assert await one.call() == [(2,)]
    yield one
    await one.close()


async def test_latency_on_an_open_connection(client: Client, toxiproxy: Toxiproxy) -> None:
    """MY-05, MY-03: the first call on the open connection, then connects that are slow."""
    with toxiproxy["postgres"].downstream("latency", latency=8000):
        for _ in range(3):
            assert await client.fails(PsycopgCallTimeoutError) < 5
        await client.is_refused()
    await client.recovers()


async def test_latency_below_the_limit_is_no_failure(client: Client, toxiproxy: Toxiproxy) -> None:
    client.resource.update(call_timeout=9.0)
    with toxiproxy["postgres"].downstream("latency", latency=80):
        for _ in range(5):
            assert await client.call() == [(2,)]
    assert client.resource.state == "closed"
    assert client.resource.totals()["calls", "failure"] == 0


async def test_data_that_never_arrives(client: Client, toxiproxy: Toxiproxy) -> None:
    with toxiproxy["postgres"].downstream("timeout", timeout=0):
        for _ in range(3):
            assert await client.fails(PsycopgCallTimeoutError) < 5
        await client.is_refused()
    await client.recovers()


async def test_resets(client: Client, toxiproxy: Toxiproxy) -> None:
    """RC-07 deviates: they count."""
    await client.close()
    with toxiproxy["postgres"].downstream("reset_peer", timeout=0):
        for _ in range(3):
            assert await client.fails() < 5
        await client.is_refused()
    await client.recovers()


async def test_down(client: Client, toxiproxy: Toxiproxy) -> None:
    with toxiproxy["postgres"].down():
        for _ in range(3):
            assert await client.fails() < 5
        await client.is_refused()
    await client.recovers()


async def test_an_answer_that_breaks_off(client: Client, toxiproxy: Toxiproxy) -> None:
    wide = "SELECT repeat('x', 1000) FROM generate_series(1, 100)"
    assert len(await client.call(wide)) == 100
    with toxiproxy["postgres"].downstream("limit_data", bytes=600):
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(psycopg.OperationalError) as caught:
                await client.call(wide)
            assert bulkhead.rejection(caught.value) is None
            assert time.monotonic() - began < 5
        await client.is_refused()
    await client.recovers()


async def test_a_stream_that_stalls_gives_its_ticket_back(client: Client, toxiproxy: Toxiproxy) -> None:
    """The verdict was success at the first row; the stall counts besides."""
    rows = 0

    def stream() -> None:
        nonlocal rows
        for _row in client.connection.cursor().stream("SELECT repeat('x', 1000) FROM generate_series(1, 20000)"):
            rows += 1
            if rows == 10:
                toxiproxy["postgres"].disable()
                toxiproxy["postgres"].enable()

    async def astream() -> None:
        nonlocal rows
        query = "SELECT repeat('x', 1000) FROM generate_series(1, 20000)"
        async for _row in client.connection.cursor().stream(query):
            rows += 1
            if rows == 10:
                toxiproxy["postgres"].disable()
                toxiproxy["postgres"].enable()

    began = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        await (asyncio.to_thread(stream) if client.kind == "sync" else astream())
    assert time.monotonic() - began < 5
    assert rows >= 10
    assert client.resource.in_use == 0
    assert client.resource.totals()["calls", "failure"] == 1

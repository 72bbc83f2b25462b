"""The same for AsyncConnection, and what only tasks can do: be cancelled, be abandoned by their loop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from counts import CANCELLATIONS
from polling import auntil, auntil_due
from psycopg.pq import TransactionStatus

import bulkhead
from adapters.psycopg import PsycopgCallTimeoutError, PsycopgCircuitOpenError, PsycopgResourceBusyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bulkhead.testing import PostgresServer

pytestmark = pytest.mark.anyio
numbers = itertools.count(1)
# Wide rows that come slowly: there is little to drain when a stream is abandoned.
MANY = "SELECT repeat('x', 20000), pg_sleep(0.001) FROM generate_series(1, 5000)"

# When a pipeline or a block is cancelled, psycopg 3.1 now and then waits for an answer that it has read already,
# protected or not. call_timeout ends that, and counts it.
LOSES_ANSWERS = tuple(int(part) for part in psycopg.__version__.split(".")[:2]) < (3, 3)


@pytest.fixture
async def connect(postgres_server: PostgresServer) -> AsyncIterator[Callable[..., Any]]:
    made: list[Any] = []

    async def connect(**options: Any) -> Any:
        options.setdefault("name", f"async-{next(numbers)}")
        options.setdefault("call_timeout", 20)
        given = bulkhead.options(**options)
        made.append(await psycopg.AsyncConnection.connect(postgres_server.dsn, autocommit=True, **given))
        return made[-1]

    yield connect
    for connection in made:
        await connection.close()


def outcomes(connection: Any) -> tuple[float, float]:
    totals = connection.bulkhead.totals()
    return totals["calls", "failure"], totals["calls", "ignored"]


async def test_streams_copies_pipelines_and_cursors_hold_one_ticket(connect: Callable[..., Any]) -> None:
    connection = await connect(tickets=1)
    resource = connection.bulkhead
    async for row in connection.cursor().stream("SELECT generate_series(1, 5)"):
        assert row[0] in range(1, 6)
        assert resource.in_use == 1
    assert resource.in_use == 0
    await connection.execute("CREATE TEMPORARY TABLE copied (n int)")
    async with connection.cursor().copy("COPY copied FROM STDIN") as copy:
        for number in range(100):
            await copy.write_row((number,))
        assert resource.in_use == 1
    async with connection.cursor().copy("COPY copied TO STDOUT") as copy:
        assert len([row async for row in copy.rows()]) == 100
    async with connection.pipeline():
        cursor = await connection.execute("SELECT 2")
        assert resource.in_use == 1
        assert await cursor.fetchone() == (2,)
    await connection.cursor().executemany("INSERT INTO copied VALUES (%s)", [(n,) for n in range(300)])
    async with connection.transaction(), connection.cursor("named") as named:
        await named.execute("SELECT * FROM copied")
        assert len(await named.fetchmany(10)) == 10
        assert len([row async for row in named]) == 390
    assert resource.in_use == 0
    assert outcomes(connection) == (0, 0)


async def test_breaking_out_of_a_stream_gives_back_when_the_loop_has_closed_it(
    connect: Callable[..., Any], aeventually: Any
) -> None:
    """Known fault 44. The connection is ACTIVE until then, so the ticket is rightly out."""
    connection = await connect(tickets=1, error_threshold=1, error_timeout=5, success_threshold=1)
    for _ in range(3):
        async for _row in connection.cursor().stream(MANY):
            break
        gc.collect()
        await aeventually(lambda: connection.bulkhead.in_use == 0)
        assert await (await connection.execute("SELECT 2")).fetchone() == (2,)
    assert connection.bulkhead.state == "closed"
    assert outcomes(connection)[0] == 0


async def test_transactions_are_refused_before_they_begin_and_end_while_it_is_open(connect: Callable[..., Any]) -> None:
    connection = await connect(tickets=1)
    connection.bulkhead.open()
    with pytest.raises(PsycopgCircuitOpenError):
        async with connection.transaction():
            pytest.fail("entered")
    connection.bulkhead.close()
    async with connection.transaction():
        await connection.execute("SELECT 2")
        connection.bulkhead.open()
        with pytest.raises(PsycopgCircuitOpenError):
            await connection.execute("SELECT 2")
    assert connection.pgconn.transaction_status == TransactionStatus.IDLE
    connection.bulkhead.close()
    await connection.execute("SELECT 2")


async def test_a_late_call_is_ended_and_others_of_the_loop_go_on(connect: Callable[..., Any]) -> None:
    connection, other = await connect(tickets=1, call_timeout=0.5), await connect(tickets=1)
    began = time.monotonic()
    late = asyncio.ensure_future(connection.execute("SELECT pg_sleep(9)"))
    await other.execute("SELECT 2")
    with pytest.raises(PsycopgCallTimeoutError):
        await late
    assert time.monotonic() - began < 4
    assert connection.closed
    assert connection.bulkhead.in_use == 0
    assert outcomes(connection) == (1, 0)


async def test_a_cancellation_counts_from_cancel_counts_after_on(connect: Callable[..., Any]) -> None:
    """Known faults 1, 27, 27b."""
    patient = await connect(tickets=1, error_threshold=2, error_timeout=5, success_threshold=1)
    for _ in range(4):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await patient.execute("SELECT pg_sleep(9)")
    assert outcomes(patient)[0] == 0
    assert patient.bulkhead.state == "closed"
    hasty = await connect(tickets=1, error_threshold=2, error_timeout=5, success_threshold=1, cancel_counts_after=0.05)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.15):
                await hasty.execute("SELECT pg_sleep(9)")
    assert hasty.bulkhead.state == "open"
    assert hasty.bulkhead.in_use == 0


async def test_a_cancelled_probe_makes_room_for_the_next(connect: Callable[..., Any]) -> None:
    """Known fault 1."""
    connection = await connect(tickets=2, error_threshold=1, error_timeout=1.5, success_threshold=1)
    with pytest.raises(psycopg.errors.DiskFull):
        await connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$")
    await auntil_due(connection.bulkhead)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):  # error_timeout is the probe's lease too, and psycopg cleans up within it
            await connection.execute("SELECT pg_sleep(9)")
    assert connection.bulkhead.state == "half_open"
    await connection.execute("SELECT 2")
    assert connection.bulkhead.state == "closed"


# psycopg drops a pipeline's generator in the middle where a second cancellation interrupts its clean-up.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_storm_of_cancellations_of_every_shape_loses_nothing(
    connect: Callable[..., Any],
) -> None:
    """Known fault 46."""
    options: dict[str, Any] = {"name": "storm", "tickets": 3, "tenant_tickets": 2, "timeout": 0.02}
    if LOSES_ANSWERS:
        options |= {"call_timeout": 2, "error_threshold": 1000, "error_timeout": 1, "success_threshold": 1}
    connections = [await connect(**options) for _ in range(5)]
    resource = connections[0].bulkhead
    dice = random.Random(11)  # noqa: S311  repeatable
    await connections[0].execute("CREATE TABLE IF NOT EXISTS storm (n int)")

    async def stream(connection: Any) -> None:
        async for _row in connection.cursor().stream(MANY):
            if dice.random() < 0.01:
                break

    async def copy(connection: Any) -> None:
        async with connection.cursor().copy("COPY storm FROM STDIN") as copying:
            for number in range(200):
                await copying.write_row((number,))
                await asyncio.sleep(0)

    async def block(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute("SELECT pg_sleep(0.005)")

    async def pipeline(connection: Any) -> None:
        async with connection.pipeline():
            for _ in range(5):
                await connection.execute("SELECT pg_sleep(0.002)")

    async def many(connection: Any) -> None:
        await connection.cursor().executemany("INSERT INTO storm VALUES (%s)", [(n,) for n in range(50)])

    shapes = [stream, copy, block, pipeline, many]

    async def worker(index: int) -> None:
        for _ in range(CANCELLATIONS // 25):
            if connections[index].closed:
                with suppress(PsycopgResourceBusyError):
                    connections[index] = await connect(**options)
                continue
            with bulkhead.tenant(f"tenant-{dice.randint(0, 2)}"):
                task = asyncio.ensure_future(dice.choice(shapes)(connections[index]))
                await asyncio.sleep(dice.random() * 0.02)
                for _ in range(dice.randint(0, 3)):
                    task.cancel()
                    await asyncio.sleep(0)
                await asyncio.gather(task, return_exceptions=True)
            try:
                await connections[index].rollback()
            except psycopg.Error:  # psycopg closes what it cannot drain; before 3.3 it miscounts interrupted blocks
                await connections[index].close()

    await asyncio.gather(*(worker(index) for index in range(5)))
    gc.collect()
    await asyncio.sleep(0)
    gc.collect()
    for connection in connections:
        if LOSES_ANSWERS or connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
            await connection.close()
    assert resource.in_use == 0
    assert resource.state == "closed"
    assert not resource.queue.lines
    fresh = await connect(**options)
    await fresh.execute("DROP TABLE storm")


async def test_a_task_waits_for_a_ticket_while_the_loop_goes_on(connect: Callable[..., Any]) -> None:
    one = await connect(name="waiting", tickets=1, timeout=20)
    two = await connect(name="waiting", tickets=1, timeout=20)
    slow = asyncio.ensure_future(one.execute("SELECT pg_sleep(1.5)"))
    await auntil(lambda: one.bulkhead.in_use == 1)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    await two.execute("SELECT 2")
    ticking.cancel()
    assert ticks > 5
    await slow
    one.bulkhead.update(timeout=0.0)
    slow = asyncio.ensure_future(one.execute("SELECT pg_sleep(3)"))
    await auntil(lambda: one.bulkhead.in_use == 1)
    with pytest.raises(PsycopgResourceBusyError):
        await two.execute("SELECT 2")
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)

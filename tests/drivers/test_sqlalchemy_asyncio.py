"""asyncio engines: waiting never stops the loop, cancelled work gives everything back and counts by its length."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from drivers.sqlalchemy_engines import FAIL, failures, full
from polling import auntil, auntil_due
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

import adapters.sqlalchemy
import bulkhead

if TYPE_CHECKING:
    from drivers.sqlalchemy_engines import Engines
    from sqlalchemy.ext.asyncio import AsyncEngine

    from bulkhead.testing import PostgresServer

pytestmark = pytest.mark.anyio


async def run(engine: AsyncEngine, statement: str = "SELECT 1") -> Any:
    async with engine.connect() as connection:
        return (await connection.execute(text(statement))).scalar()


async def test_a_task_waits_for_a_ticket_and_the_loop_goes_on(
    engines: Engines, postgres_server: PostgresServer
) -> None:
    engine, resource = engines.make_async(postgres_server.sqlalchemy_url, tickets=1, timeout=5, max_waiting=9)
    await run(engine)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.01)

    heart = asyncio.create_task(beat())
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(run(engine, "SELECT pg_sleep(0.4)"))
    heart.cancel()
    assert beats >= 15
    assert resource.in_use == 0
    await engines.close()


async def test_without_waiting_a_second_task_is_refused_at_once(
    engines: Engines, postgres_server: PostgresServer
) -> None:
    engine, resource = engines.make_async(postgres_server.sqlalchemy_url, tickets=1)
    async with engine.connect() as first, engine.connect() as second:
        slow = asyncio.create_task(first.execute(text("SELECT pg_sleep(1.5)")))
        await auntil(lambda: resource.in_use == 1)
        with pytest.raises(sa.exc.OperationalError) as refused:
            await second.execute(text("SELECT 1"))
        assert isinstance(refused.value, adapters.sqlalchemy.SQLAlchemyResourceBusyError)
        await slow
        assert (await second.execute(text("SELECT 1"))).scalar() == 1
    assert resource.in_use == 0
    await engines.close()


async def test_a_cancelled_waiter_keeps_nothing(engines: Engines, postgres_server: PostgresServer) -> None:
    """Known faults 38 and 46."""
    engine, resource = engines.make_async(postgres_server.sqlalchemy_url, tickets=1, timeout=5, max_waiting=9)
    await run(engine)
    with full(resource):
        waiters = [asyncio.create_task(run(engine)) for _ in range(3)]
        await auntil(lambda: len(resource.queue) == 3)
        for waiter in waiters:
            waiter.cancel()
        ended = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)
    assert resource.in_use == 0
    assert await run(engine) == 1
    await engines.close()


async def test_a_storm_of_cancellations_loses_no_ticket_and_no_connection(
    engines: Engines, postgres_server: PostgresServer
) -> None:
    """Known fault 27: a cancelled call is no failure."""
    engine, resource = engines.make_async(
        postgres_server.sqlalchemy_url,
        {"pool_size": 5, "max_overflow": 0},
        tickets=5,
        timeout=5,
        max_waiting=100,
        tenant_connections=4,
    )
    await run(engine)

    async def some(number: int) -> None:
        with bulkhead.tenant(f"t{number % 3}"):
            try:
                async with asyncio.timeout(0.001 * (number % 17)):
                    await run(engine, "SELECT pg_sleep(0.01)")
            except (TimeoutError, bulkhead.ResourceBusyError):
                pass

    for start in range(0, 60, 20):
        await asyncio.gather(*(some(start + number) for number in range(20)))
    assert resource.in_use == 0
    assert resource.state == "closed"
    assert failures(resource) == 0
    with bulkhead.tenant("t1"):
        async with engine.connect(), engine.connect(), engine.connect(), engine.connect() as last:
            assert (await last.execute(text("SELECT 1"))).scalar() == 1
    await engines.close()


@pytest.mark.parametrize(("after", "state"), [(0.05, "open"), (5.0, "closed"), (None, "closed")])
async def test_a_cancelled_statement_counts_when_it_lasted_long_enough(
    engines: Engines, postgres_server: PostgresServer, after: float | None, state: str
) -> None:
    """Known fault 27b: deadlines of the application shorter than the driver's must not hide a hanging server."""
    engine, resource = engines.make_async(postgres_server.sqlalchemy_url, cancel_counts_after=after)
    await run(engine)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run(engine, "SELECT pg_sleep(5)"), 0.2)
    assert resource.state == state
    assert resource.in_use == 0
    await engines.close()


async def test_a_cancelled_probe_frees_its_place(engines: Engines, postgres_server: PostgresServer) -> None:
    """Known fault 1."""
    engine, resource = engines.make_async(postgres_server.sqlalchemy_url, error_threshold=1, error_timeout=1.5)
    await run(engine)
    with pytest.raises(sa.exc.OperationalError):
        await run(engine, FAIL)
    await auntil_due(resource)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run(engine, "SELECT pg_sleep(5)"), 0.1)
    assert resource.state == "half_open"
    assert await run(engine) == 1
    assert resource.state == "closed"
    await engines.close()


async def test_tasks_keep_their_own_tenants(engines: Engines, postgres_server: PostgresServer) -> None:
    """Known fault 60."""
    engine, resource = engines.make_async(postgres_server.sqlalchemy_url, tenant_tickets=1)
    await run(engine)

    async def of(tenant: str) -> list[Any]:
        with bulkhead.tenant(tenant):
            slow = asyncio.create_task(run(engine, "SELECT pg_sleep(1.5)"))
            await auntil(lambda: any(use.tenant == tenant and use.in_use for use in resource.top_tenants()))
            try:
                await run(engine)
            except bulkhead.ResourceBusyError as error:
                await slow
                return [error.tenant, error.limit]
        return []

    assert list(await asyncio.gather(of("a"), of("b"))) == [["a", "tenant"], ["b", "tenant"]]
    assert resource.in_use == 0
    await engines.close()


async def test_a_refusal_inside_a_transaction_and_a_session(engines: Engines, postgres_server: PostgresServer) -> None:
    engine, resource = engines.make_async(postgres_server.sqlalchemy_url, {"pool_size": 1, "max_overflow": 0})
    async with engine.connect() as connection:
        raw = (await connection.get_raw_connection()).driver_connection
    async with AsyncSession(engine) as session:
        await session.execute(text("SELECT 1"))
        resource.open()
        with pytest.raises(bulkhead.CircuitOpenError):
            await session.execute(text("SELECT 2"))
        await session.rollback()
        resource.close()
        await session.execute(text("SELECT 1"))
        resource.open()
        await session.commit()
    resource.close()
    async with engine.connect() as connection:
        assert (await connection.get_raw_connection()).driver_connection is raw
        assert (await connection.execute(text("SELECT 1"))).scalar() == 1
    await engines.close()


async def test_a_stream_left_early_keeps_nothing(engines: Engines, postgres_server: PostgresServer) -> None:
    """Known fault 44."""
    engine, resource = engines.make_async(postgres_server.sqlalchemy_url, tickets=1)
    async with engine.connect() as connection:
        async with connection.stream(text("SELECT generate_series(1, 1000)")) as rows:
            async for _ in rows:
                break
        assert resource.in_use == 0
        assert (await connection.execute(text("SELECT 1"))).scalar() == 1
    await engines.close()


async def test_a_refused_connect_does_not_stop_the_loop(engines: Engines) -> None:
    engine, resource = engines.make_async("postgresql+psycopg://postgres@127.0.0.1:1/postgres")
    for _ in range(2):
        with pytest.raises(sa.exc.OperationalError) as failed:
            await run(engine)
        assert failed.value.bulkhead_identifier == resource.identifier  # type: ignore[attr-defined]
    began = time.monotonic()
    with pytest.raises(bulkhead.CircuitOpenError):
        await run(engine)
    assert time.monotonic() - began < 2
    await engines.close()

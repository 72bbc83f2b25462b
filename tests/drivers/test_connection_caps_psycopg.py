"""max_db_connections over psycopg_pool, sync and async, alone and together with engines; plain connects do not count."""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa

import bulkhead
from adapters.psycopg import PsycopgCircuitOpenError, PsycopgResourceBusyError, PsycopgUnknownTenantError
from adapters.sqlalchemy import SQLAlchemyResourceBusyError
from bulkhead import connections, events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from conftest import AsyncEventually
    from psycopg.abc import Query

    from bulkhead.testing import PostgresServer

SYNC: list[Any] = [psycopg_pool.ConnectionPool, psycopg_pool.NullConnectionPool]
ASYNC: list[Any] = [psycopg_pool.AsyncConnectionPool, psycopg_pool.AsyncNullConnectionPool]
QUERY: Query = "SELECT 2"
CLOSE_RETURNS = pytest.mark.skipif(
    "close_returns" not in inspect.signature(psycopg_pool.ConnectionPool).parameters, reason="since psycopg_pool 3.3"
)


@pytest.fixture
def pool(postgres_server: PostgresServer) -> Iterator[Callable[..., Any]]:
    """`pool(kind, **arguments)`: an open pool, closed after the test."""
    made: list[Any] = []

    def pool(kind: Any = psycopg_pool.ConnectionPool, **arguments: Any) -> Any:
        arguments = {"min_size": 0, "max_size": 4, "timeout": 50} | arguments
        made.append(kind(postgres_server.dsn, open=False, **arguments))
        made[-1].open()
        return made[-1]

    yield pool
    for one in made:
        one.close()


@pytest.fixture
async def apool(postgres_server: PostgresServer) -> AsyncIterator[Callable[..., Any]]:
    made: list[Any] = []

    async def pool(kind: Any, **arguments: Any) -> Any:
        arguments = {"min_size": 0, "max_size": 4, "timeout": 50} | arguments
        made.append(kind(postgres_server.dsn, open=False, **arguments))
        await made[-1].open()
        return made[-1]

    yield pool
    for one in made:
        await one.close()


def refused(pool: Any) -> bool:
    try:
        pool.putconn(pool.getconn())
    except PsycopgResourceBusyError as error:
        return (error.identifier, error.limit) == (connections.IDENTIFIER, "connections")
    return False


@pytest.mark.parametrize("kind", SYNC)
def test_a_tenant_at_its_cap_is_refused_at_once_by_the_drivers_own_error(kind: Any, pool: Callable[..., Any]) -> None:
    one = pool(kind, max_size=2)
    connections.set_limit(1)
    seen: list[events.Event] = []
    with bulkhead.tenant("a"), one.connection() as connection, bulkhead.subscribe(seen.append, events.Busy):
        began = time.monotonic()
        with pytest.raises(psycopg.OperationalError) as caught, one.connection():
            pytest.fail("given")
        assert time.monotonic() - began < 10
        assert connection.execute(QUERY).fetchone() == (2,)
        with bulkhead.tenant("b"):
            assert not refused(one)
    error = bulkhead.rejection(caught.value)
    assert isinstance(error, PsycopgResourceBusyError)
    assert (error.tenant, error.limit) == ("a", "connections")
    assert "the tenant holds 1 database connection of this process, max_db_connections is 1; a nested" in str(error)
    assert seen == [events.Busy("server:connections", "a", "psycopg", "connection", "connections")]
    assert connections.totals() == {("rejections", "connections"): 1}
    with bulkhead.tenant("a"):
        assert not refused(one)


def test_engines_and_pools_have_one_cap_together(pool: Callable[..., Any], postgres_server: PostgresServer) -> None:
    first, second = pool(), pool(psycopg_pool.NullConnectionPool, kwargs=bulkhead.options(name="caps", tickets=9))
    engine = sa.create_engine(postgres_server.sqlalchemy_url)
    connections.set_limit(3)
    with bulkhead.tenant("a"):
        with first.connection(), second.connection(), engine.connect():
            assert connections.held("a") == 3
            assert refused(first)
            assert refused(second)
            with pytest.raises(SQLAlchemyResourceBusyError):
                engine.connect()
        assert connections.held("a") == 0
    engine.dispose()


@CLOSE_RETURNS
def test_an_engine_whose_connections_come_from_a_pool_counts_each_once(pool: Callable[..., Any]) -> None:
    """The way that psycopg's documentation recommends."""
    below = pool(close_returns=True)
    engine = sa.create_engine("postgresql+psycopg://", creator=below.getconn, poolclass=sa.NullPool)
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        for _ in range(3):
            with engine.connect() as connection:
                assert connection.execute(sa.text("SELECT 2")).scalar() == 2
                assert connections.held("a") == 1
                with pytest.raises(SQLAlchemyResourceBusyError):
                    engine.connect()
                assert refused(below)
            assert connections.held("a") == 0


def test_plain_connects_are_not_counted(postgres_server: PostgresServer) -> None:
    connections.set_limit(1)
    with bulkhead.tenant("a"), psycopg.connect(postgres_server.dsn), psycopg.connect(postgres_server.dsn):
        assert connections.held("a") == 0


def put(pool: Any, connection: Any) -> None:
    pool.putconn(connection)


def close_and_put(pool: Any, connection: Any) -> None:
    connection.close()
    assert connections.held("a") == 1  # the database has one less already
    connection.close()
    pool.putconn(connection)


def break_and_put(pool: Any, connection: Any) -> None:
    connection.pgconn.finish()
    pool.putconn(connection)


@pytest.mark.parametrize("kind", SYNC)
@pytest.mark.parametrize("end", [put, close_and_put, break_and_put])
def test_every_end_gives_the_connection_back_once(
    end: Callable[[Any, Any], None], kind: Any, pool: Callable[..., Any]
) -> None:
    one = pool(kind)
    connections.set_limit(2)
    with bulkhead.tenant("a"), one.connection():
        for _ in range(3):
            connection = one.getconn()
            assert refused(one)
            end(one, connection)
            assert connections.held("a") == 1
            assert not refused(one)


def test_another_pools_connection_and_a_closed_pool(pool: Callable[..., Any]) -> None:
    one, other = pool(), pool()
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        connection = one.getconn()
        with pytest.raises(ValueError, match="pool"):
            other.putconn(connection)
        assert connections.held("a") == 1
        one.close()
        one.putconn(connection)
        assert connections.held("a") == 0
        assert not refused(other)


def test_a_connection_dropped_on_the_floor_comes_back(pool: Callable[..., Any]) -> None:
    one = pool()
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        lost = one.getconn()
        assert refused(one)
        lost.pgconn.finish()
        del lost
        gc.collect()
        assert not refused(one)


@CLOSE_RETURNS
def test_a_close_that_returns_takes_no_ticket_from_the_next_user(pool: Callable[..., Any]) -> None:
    """When `close` ends, somebody else may have the connection."""
    next_one: list[Any] = []

    def reset(connection: Any) -> None:
        pass

    one = pool(max_size=1, close_returns=True, reset=reset)
    original = one.putconn

    def putconn(connection: Any) -> None:
        original(connection)
        with bulkhead.tenant("b"):
            next_one.append(one.getconn())

    connections.set_limit(1)
    with bulkhead.tenant("a"):
        connection = one.getconn()
    one.putconn = putconn
    connection.close()
    del one.putconn
    assert next_one == [connection]
    assert (connections.held("a"), connections.held("b")) == (0, 1)
    connection.close()
    assert connections.held("b") == 0


def test_a_checkout_needs_both_tickets_and_a_refusal_keeps_neither(pool: Callable[..., Any]) -> None:
    plain = pool()
    own = pool(kwargs=bulkhead.options(name="both-caps", tenant_connections=2))
    connections.set_limit(2)
    with bulkhead.tenant("a"):
        with plain.connection(), plain.connection():
            for _ in range(5):
                assert refused(own)  # by the second ticket: the first went back
        with own.connection(), own.connection():  # so there are two still
            connections.set_limit(9)
            with pytest.raises(PsycopgResourceBusyError) as caught:
                own.getconn()
            assert caught.value.identifier == "postgres:both-caps"
        assert connections.held("a") == 0
        resource = bulkhead.find("postgres:both-caps")
        assert resource is not None
        resource.open()
        for _ in range(12):
            with pytest.raises(PsycopgCircuitOpenError):
                own.getconn()
        assert connections.held("a") == 0


def test_outside_any_tenant_the_policy_holds(pool: Callable[..., Any]) -> None:
    one = pool()
    connections.set_limit(1)
    with one.connection(), one.connection():
        assert connections.held(None) == 0
    bulkhead.unknown_tenant("share")
    with one.connection():
        assert refused(one)
    bulkhead.unknown_tenant("reject")
    with pytest.raises(PsycopgUnknownTenantError):
        one.getconn()


def test_the_pools_own_time_out_and_its_own_connects_keep_nothing(pool: Callable[..., Any]) -> None:
    connections.set_limit(2)
    with bulkhead.tenant("a"):
        one = pool(min_size=3, max_size=3, timeout=0.1)
        one.wait(30)
        assert connections.held("a") == 0
        with bulkhead.tenant("b"):
            taken = [one.getconn(timeout=50) for _ in range(2)]
        with bulkhead.tenant("c"):
            taken.append(one.getconn(timeout=50))
        for _ in range(4):
            with pytest.raises(psycopg_pool.PoolTimeout):
                one.getconn()
        assert connections.held("a") == 0
        for connection in taken:
            one.putconn(connection)


# ---- asyncio


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ASYNC)
async def test_the_cap_in_asyncio(kind: Any, apool: Callable[..., Any]) -> None:
    one = await apool(kind)
    connections.set_limit(2)

    async def refused() -> bool:
        try:
            await one.putconn(await one.getconn())
        except PsycopgResourceBusyError as error:
            return error.tenant == "a"
        return False

    with bulkhead.tenant("a"):
        async with one.connection() as first:
            for closed in (False, True):
                second = await one.getconn()
                assert await asyncio.create_task(refused())
                with bulkhead.tenant("b"):
                    assert not await refused()
                if closed:
                    await second.close()
                    assert connections.held("a") == 1
                await one.putconn(second)
                assert connections.held("a") == 1
            assert not await refused()
            await first.execute(QUERY)
        assert connections.held("a") == 0


@pytest.mark.anyio
async def test_a_cancelled_wait_gives_back_at_every_moment(
    apool: Callable[..., Any], aeventually: AsyncEventually
) -> None:
    """Known fault 46. In the pool's queue; and granted and cancelled in the same tick."""
    one = await apool(psycopg_pool.AsyncConnectionPool, min_size=1, max_size=1)
    connections.set_limit(1)
    for granted in (False, True):
        with bulkhead.tenant("other"):
            taken = await one.getconn()
        with bulkhead.tenant("a"):
            waiting = asyncio.create_task(one.getconn())
            await aeventually(lambda: connections.held("a") == 1)
            await aeventually(lambda: one.get_stats().get("requests_waiting") == 1)
            if granted:
                await one.putconn(taken)
            waiting.cancel()
            answer: Any = (await asyncio.gather(waiting, return_exceptions=True))[0]
            if isinstance(answer, BaseException):
                assert connections.held("a") == 0
            else:
                await one.putconn(answer)
            if not granted:
                await one.putconn(taken)
            async with one.connection() as connection:
                await connection.execute(QUERY)
        assert (connections.held("a"), connections.held("other")) == (0, 0)

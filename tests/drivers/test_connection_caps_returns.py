"""max_db_connections over SQLAlchemy: every way a connection comes back, once; and pools of every kind."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from drivers.sqlalchemy_engines import refused
from polling import auntil
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool, StaticPool

import bulkhead
from adapters.sqlalchemy import SQLAlchemyResourceBusyError
from bulkhead import connections

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drivers.sqlalchemy_engines import Engines
    from sqlalchemy.engine import Connection

    from bulkhead.testing import PostgresServer


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db"


def close(connection: Connection) -> None:
    connection.close()


def invalidate(connection: Connection) -> None:
    connection.invalidate()


def detach(connection: Connection) -> None:
    connection.detach()
    connection.close()


def close_raw(connection: Connection) -> None:
    connection.connection.close()


def break_it(connection: Connection) -> None:
    raw: Any = connection.connection.driver_connection
    raw.close()
    with pytest.raises(sa.exc.ProgrammingError):
        connection.execute(text("SELECT 1"))
    connection.invalidate()


def twice(connection: Connection) -> None:
    connection.invalidate()
    connection.close()
    connection.close()


@pytest.mark.parametrize("pool", [None, NullPool])
@pytest.mark.parametrize("end", [close, invalidate, detach, close_raw, break_it, twice])
def test_every_end_of_a_checkout_gives_the_connection_back_once(
    end: Callable[[Connection], None], pool: Any, engines: Engines, url: str
) -> None:
    engine = engines.plain(url, poolclass=pool)
    connections.set_limit(2)
    with bulkhead.tenant("a"), engine.connect():
        for _ in range(3):
            connection = engine.connect()
            assert refused(engine)
            end(connection)
            assert connections.held("a") == 1
            assert not refused(engine)


def test_a_connection_dropped_on_the_floor_comes_back(engines: Engines, url: str) -> None:
    engine = engines.plain(url)
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        for _ in range(3):
            connection = engine.connect()
            assert refused(engine)
            del connection
            gc.collect()
            assert not refused(engine)


def test_a_soft_invalidated_connection_is_out_until_it_is_closed(engines: Engines, url: str) -> None:
    engine = engines.plain(url)
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        raw = engine.raw_connection()
        raw.invalidate(soft=True)
        assert refused(engine)
        raw.close()
        assert not refused(engine)


def test_an_invalidated_connection_that_is_used_again_counts_again(engines: Engines, url: str) -> None:
    engine = engines.plain(url)
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        with engine.connect() as connection:
            connection.invalidate()
            assert not refused(engine)
            connection.execute(text("SELECT 1"))
            assert refused(engine)
        assert not refused(engine)


def test_the_record_of_a_detached_connection_may_be_lent_at_once(engines: Engines, url: str) -> None:
    """The pool has it again before listeners hear of the detaching: the ticket of its next user must stay out."""
    for engine in (engines.plain(url, pool_size=1), engines.make(url, {"pool_size": 1}, tenant_connections=2)[0]):
        connections.set_limit(2)
        later: list[Connection] = []
        event.listen(engine.pool, "detach", lambda *_, engine=engine, later=later: later.append(engine.connect()))
        with bulkhead.tenant("a"):
            first = engine.connect()
            first.detach()
            assert connections.held("a") == 1
            with engine.connect(), pytest.raises(SQLAlchemyResourceBusyError):
                engine.connect()
            later.pop().close()
            assert connections.held("a") == 0
            first.close()


def test_a_listener_that_detaches_keeps_nothing(engines: Engines, url: str) -> None:
    engine = engines.plain(url)
    connections.set_limit(1)
    event.listen(engine.pool, "checkout", lambda _connection, _record, fairy: fairy.detach())
    with bulkhead.tenant("a"), engine.connect():
        assert connections.held("a") == 0
        assert not refused(engine)


def test_what_fails_keeps_nothing(engines: Engines, url: str, tmp_path: Path) -> None:
    missing = engines.plain(f"sqlite:///{tmp_path}/no/folder.db")
    small = engines.plain(url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    connections.set_limit(2)
    with bulkhead.tenant("a"):
        for _ in range(4):
            with pytest.raises(sa.exc.OperationalError) as failed:
                missing.connect()
            assert bulkhead.rejection(failed.value) is None
        with bulkhead.tenant("b"):
            taken = small.connect()
        for _ in range(4):
            with pytest.raises(sa.exc.TimeoutError):
                small.connect()
        assert connections.held("a") == 0
        taken.close()


def test_the_cap_holds_over_dispose(engines: Engines, url: str) -> None:
    engine = engines.plain(url)
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        with engine.connect():
            engine.dispose()
            assert refused(engine)
        assert not refused(engine)


def test_a_ping_that_replaces_the_connection_keeps_the_one_checkout(
    engines: Engines, postgres_server: PostgresServer
) -> None:
    engine = engines.plain(postgres_server.sqlalchemy_url, pool_size=1, pool_pre_ping=True)
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        with engine.connect() as connection:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        with engines.plain(postgres_server.sqlalchemy_url).connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        with engine.connect() as connection:
            assert connection.execute(text("SELECT pg_backend_pid()")).scalar() != pid
            assert connections.held("a") == 1
            assert refused(engine)
        assert connections.held("a") == 0


# ---- pools


def test_pools_that_lend_one_connection_to_all_have_no_cap(engines: Engines) -> None:
    connections.set_limit(1)
    for engine in (engines.plain("sqlite://", poolclass=StaticPool), engines.plain("sqlite://")):
        with bulkhead.tenant("a"), engine.connect(), engine.connect():
            assert not refused(engine)
            assert connections.held("a") == 0


def test_a_pool_without_an_engine_has_the_cap(url: str) -> None:
    def connect() -> Any:
        return sqlite3.connect(url.removeprefix("sqlite:///"))

    pool = sa.QueuePool(connect)
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        first = pool.connect()
        with pytest.raises(bulkhead.ResourceBusyError):
            pool.connect()
        first.close()
        pool.connect().close()
    pool.dispose()


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:The garbage collector is trying to clean up")
async def test_a_task_that_is_abandoned_gives_its_connection_back(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/a.db")
    connections.set_limit(1)
    held = asyncio.Event()

    async def hold() -> None:
        connection = await engine.connect()
        held.set()
        await asyncio.get_running_loop().create_future()
        await connection.close()

    with bulkhead.tenant("a"):
        task = asyncio.create_task(hold())
        await held.wait()
        assert connections.held("a") == 1
        del task  # nobody else knows it
        gc.collect()
        assert connections.held("a") == 0
        async with engine.connect():
            pass
    await engine.dispose()
    await auntil(lambda: set(threading.enumerate()) <= before)  # aiosqlite's threads still answer to this loop

"""tenant_connections: what one tenant may have checked out of an engine's pool, and every way a connection comes back."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy import text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, StaticPool

import adapters.sqlalchemy
import bulkhead

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drivers.sqlalchemy_engines import Engines
    from sqlalchemy.engine import Connection, Engine

    from bulkhead.testing import PostgresServer


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db"


def refused(engine: Engine) -> bool:
    try:
        engine.connect().close()
    except adapters.sqlalchemy.SQLAlchemyResourceBusyError as error:
        return error.limit == "connections"
    return False


def test_a_tenant_at_its_cap_is_refused_at_once_and_others_are_not(engines: Engines, url: str) -> None:
    """Before the pool's queue: it would have waited pool_timeout."""
    engine, _ = engines.make(
        url, {"pool_size": 1, "max_overflow": 1, "pool_timeout": 20}, tenant_connections=1, tickets=9
    )
    with bulkhead.tenant("a"), engine.connect():
        began = time.monotonic()
        assert refused(engine)
        assert time.monotonic() - began < 1
        with bulkhead.tenant("b"):
            assert not refused(engine)
        with bulkhead.tenant(None):
            assert not refused(engine)  # no tenant: only the pool's own limit
    with bulkhead.tenant("a"):
        assert not refused(engine)


def close(connection: Connection) -> None:
    connection.close()


def invalidate(connection: Connection) -> None:
    connection.invalidate()


def detach(connection: Connection) -> None:
    connection.detach()
    connection.close()


def break_it(connection: Connection) -> None:
    raw: Any = connection.connection.driver_connection
    raw.close()
    with pytest.raises(sa.exc.ProgrammingError):
        connection.execute(text("SELECT 1"))
    connection.invalidate()


@pytest.mark.parametrize("end", [close, invalidate, detach, break_it])
def test_every_end_of_a_checkout_gives_the_connection_back(
    end: Callable[[Connection], None], engines: Engines, url: str
) -> None:
    engine, _ = engines.make(url, tenant_connections=1)
    with bulkhead.tenant("a"):
        for _ in range(3):
            connection = engine.connect()
            assert refused(engine)
            end(connection)
            assert not refused(engine)


def test_a_connection_dropped_on_the_floor_comes_back(engines: Engines, url: str) -> None:
    engine, _ = engines.make(url, tenant_connections=1)
    with bulkhead.tenant("a"):
        connection = engine.connect()
        assert refused(engine)
        del connection
        gc.collect()
        assert not refused(engine)


def test_raw_connections_and_sessions_are_checkouts_too(engines: Engines, url: str) -> None:
    engine, _ = engines.make(url, tenant_connections=1)
    with bulkhead.tenant("a"):
        raw = engine.raw_connection()
        assert refused(engine)
        raw.close()
        with Session(engine) as session:
            assert not refused(engine)  # no connection before the first statement
            session.execute(text("SELECT 1"))
            assert refused(engine)
            session.commit()
            assert not refused(engine)
        assert not refused(engine.execution_options(logging_token="copy"))


def test_a_connect_that_fails_keeps_nothing(engines: Engines, tmp_path: Path) -> None:
    engine, resource = engines.make(f"sqlite:///{tmp_path}/no/folder.db", tenant_connections=1, error_threshold=9)
    with bulkhead.tenant("a"):
        for _ in range(3):
            with pytest.raises(sa.exc.OperationalError) as failed:
                engine.connect()
            assert bulkhead.rejection(failed.value) is None
    assert resource.in_use == 0


def test_the_pools_own_time_out_keeps_nothing(engines: Engines, url: str) -> None:
    engine, _ = engines.make(url, {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.05}, tenant_connections=2)
    with bulkhead.tenant("b"), engine.connect(), bulkhead.tenant("a"):
        for _ in range(4):
            with pytest.raises(sa.exc.TimeoutError):
                engine.connect()
    with bulkhead.tenant("a"):
        assert not refused(engine)


def test_the_cap_holds_after_dispose_and_may_change_at_run_time(engines: Engines, url: str) -> None:
    engine, resource = engines.make(url, tenant_connections=1)
    with bulkhead.tenant("a"):
        with engine.connect():
            engine.dispose()
            assert refused(engine)
        engine.dispose()
        with engine.connect():
            assert refused(engine)
            resource.update(tenant_connections=2)
            assert not refused(engine)
            resource.update(tenant_connections=None)
            with engine.connect():
                assert not refused(engine)


def test_engines_of_one_resource_share_the_cap(engines: Engines, url: str) -> None:
    first, resource = engines.make(url, tenant_connections=1)
    second, _ = engines.make(url, identifier=resource.identifier, tenant_connections=1)
    with bulkhead.tenant("a"), first.connect():
        assert refused(second)


def test_pools_that_lend_one_connection_to_all_have_no_cap(engines: Engines) -> None:
    engine, _ = engines.make("sqlite://", {"poolclass": StaticPool}, tenant_connections=1)
    other, _ = engines.make("sqlite://", tenant_connections=1)
    with bulkhead.tenant("a"):
        for one in (engine, other):
            with one.connect():
                assert not refused(one)


def test_a_pool_without_a_pool_has_the_cap(engines: Engines, url: str) -> None:
    engine, _ = engines.make(url, {"poolclass": NullPool}, tenant_connections=1)
    with bulkhead.tenant("a"):
        with engine.connect():
            assert refused(engine)
        assert not refused(engine)


def test_a_ping_that_replaces_the_connection_keeps_the_one_checkout(
    engines: Engines, postgres_server: PostgresServer
) -> None:
    engine, _ = engines.make(
        postgres_server.sqlalchemy_url, {"pool_size": 1, "pool_pre_ping": True}, tenant_connections=1, error_threshold=9
    )
    with bulkhead.tenant("a"):
        with engine.connect() as connection:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        with engines.plain(postgres_server.sqlalchemy_url).connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        with engine.connect() as connection:
            assert connection.execute(text("SELECT pg_backend_pid()")).scalar() != pid
            assert refused(engine)
        assert not refused(engine)


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:The garbage collector is trying to clean up")
async def test_the_cap_in_asyncio(engines: Engines, tmp_path: Path) -> None:
    engine, _ = engines.make_async(f"sqlite+aiosqlite:///{tmp_path}/a.db", tenant_connections=1)
    with bulkhead.tenant("a"):
        async with engine.connect() as connection:
            with pytest.raises(bulkhead.ResourceBusyError):
                await engine.connect()
            await connection.invalidate()
            async with engine.connect():
                pass
        async with engine.connect() as connection:
            raw: Any = await connection.get_raw_connection()
            raw.detach()
            async with engine.connect():
                pass
            await connection.run_sync(lambda _: raw.dbapi_connection.close())
    await engines.close()

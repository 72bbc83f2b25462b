"""call_timeout and half_open_resource_timeout: statements that end in time where the driver can, and are counted where not."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from drivers.sqlalchemy_engines import FAIL, failures, found
from polling import until_due
from sqlalchemy import text

import bulkhead

if TYPE_CHECKING:
    from pathlib import Path

    from drivers.sqlalchemy_engines import Engines

    from bulkhead.testing import PostgresServer

PLAIN = {"error_threshold": 5, "error_timeout": 10.0, "success_threshold": 2}


def test_a_late_statement_is_ended_and_only_its_own_connection_is_dropped(
    engines: Engines, postgres_server: PostgresServer
) -> None:
    """MY-05 with the means there are: psycopg has no read time-out. Others' connections stay in the pool."""
    engine, resource = engines.make(postgres_server.sqlalchemy_url, {"pool_size": 2})
    with engine.connect() as other:
        raw = other.connection.driver_connection
        other.execute(text("SELECT 1"))
        other.rollback()
        with engine.connect() as connection:
            resource.update(call_timeout=0.5)  # connecting may take longer
            began = time.monotonic()
            with pytest.raises(sa.exc.OperationalError) as late:
                connection.execute(text("SELECT pg_sleep(8)"))
            resource.update(call_timeout=20.0)
            assert time.monotonic() - began < 4
            assert type(late.value.orig).__name__ == "PsycopgCallTimeoutError"
            assert late.value.connection_invalidated
            assert late.value.bulkhead_identifier == resource.identifier  # type: ignore[attr-defined]
    assert failures(resource) == 1
    with engine.connect() as first, engine.connect() as second:
        assert raw in (first.connection.driver_connection, second.connection.driver_connection)
        assert "wait" not in vars(raw)
        assert second.execute(text("SELECT 1")).scalar() == 1
    assert resource.in_use == 0


def test_a_hung_statement_opens_the_circuit(engines: Engines, postgres_server: PostgresServer) -> None:
    """MY-05: queries work again after error_timeout."""
    engine, resource = engines.make(
        postgres_server.sqlalchemy_url, call_timeout=1.0, error_timeout=1.0, error_threshold_timeout=9
    )
    for _ in range(2):
        with engine.connect() as connection, pytest.raises(sa.exc.OperationalError):
            connection.execute(text("SELECT pg_sleep(8)"))
    assert resource.state == "open"
    until_due(resource)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1
    assert resource.state == "closed"


@pytest.mark.anyio
async def test_a_late_statement_is_ended_in_asyncio(engines: Engines, postgres_server: PostgresServer) -> None:
    engine, resource = engines.make_async(postgres_server.sqlalchemy_url)
    async with engine.connect() as connection:
        resource.update(call_timeout=0.5)
        began = time.monotonic()
        with pytest.raises(sa.exc.OperationalError) as late:
            await connection.execute(text("SELECT pg_sleep(8)"))
        assert time.monotonic() - began < 4
        assert type(late.value.orig).__name__ == "PsycopgCallTimeoutError"
        resource.update(call_timeout=20.0)
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT 1"))).scalar() == 1
    assert failures(resource) == 1
    await engines.close()


def test_a_probe_is_ended_at_its_own_limit_and_other_calls_are_not(
    engines: Engines, postgres_server: PostgresServer
) -> None:
    """MY-26, known fault 9."""
    engine, resource = engines.make(
        postgres_server.sqlalchemy_url, error_threshold=1, error_timeout=0.4, half_open_resource_timeout=0.65
    )
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_sleep(0.9)"))  # closed: no limit
        with pytest.raises(sa.exc.OperationalError):
            connection.execute(text(FAIL))
        connection.rollback()
        until_due(resource)
        began = time.monotonic()
        with pytest.raises(sa.exc.OperationalError, match=r"0\.65"):
            connection.execute(text("SELECT pg_sleep(8)"))
        assert time.monotonic() - began < 4
    assert resource.state == "open"
    until_due(resource)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        assert resource.state == "closed"
        connection.execute(text("SELECT pg_sleep(0.9)"))


def test_sqlite_waits_for_a_lock_no_longer_and_its_setting_is_put_back(engines: Engines, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    engine, resource = engines.make(url, call_timeout=0.2)
    with engines.plain(url).begin() as holder:
        holder.execute(text("CREATE TABLE t (n int)"))
        holder.execute(text("INSERT INTO t VALUES (1)"))
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            before = raw.execute("PRAGMA busy_timeout").fetchone()
            began = time.monotonic()
            with pytest.raises(sa.exc.OperationalError, match="locked"):
                connection.execute(text("CREATE TABLE u (n int)"))
            assert time.monotonic() - began < 3, "its own setting is 5 s"
            assert raw.execute("PRAGMA busy_timeout").fetchone() == before == (5000,)
    assert failures(resource) == 1


@pytest.mark.anyio
async def test_aiosqlite_waits_for_a_lock_no_longer(engines: Engines, tmp_path: Path) -> None:
    engine, resource = engines.make_async(f"sqlite+aiosqlite:///{tmp_path}/a.db", call_timeout=0.2)
    with engines.plain(f"sqlite:///{tmp_path}/a.db").begin() as holder:
        holder.execute(text("CREATE TABLE t (n int)"))
        holder.execute(text("INSERT INTO t VALUES (1)"))
        async with engine.connect() as connection:
            began = time.monotonic()
            with pytest.raises(sa.exc.OperationalError, match="locked"):
                await asyncio.wait_for(connection.execute(text("CREATE TABLE u (n int)")), 10)
            assert time.monotonic() - began < 3, "its own setting is 5 s"
    assert failures(resource) == 1
    await engines.close()


def test_a_late_statement_of_a_driver_without_a_limit_is_counted(engines: Engines) -> None:
    """SQLite itself at work, not waiting for a lock: nothing can end it, so it counts when it is over."""
    engine, resource = engines.make("sqlite://", call_timeout=0.5, tickets=1)
    with engine.connect() as connection:
        raw: Any = connection.connection.driver_connection
        raw.create_function("pause", 0, lambda: time.sleep(0.7))
        connection.execute(text("SELECT pause()"))
    assert failures(resource) == 1


@pytest.mark.resilience
def test_a_server_that_hangs_opens_the_circuit_through_pings_and_connects(
    engines: Engines, postgres_server: PostgresServer
) -> None:
    """A pre-ping has no time-out of its own, a connect one of two minutes."""
    engine, resource = engines.make(
        postgres_server.sqlalchemy_url, {"pool_size": 1, "pool_pre_ping": True}, error_timeout=9.0
    )
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    resource.update(call_timeout=0.6)
    with postgres_server.paused():
        began = time.monotonic()
        with pytest.raises(sa.exc.OperationalError) as late:
            engine.connect()  # the ping, and the connect that replaces it
        assert time.monotonic() - began < 6
        assert type(late.value.orig).__name__ == "PsycopgCallTimeoutError"
        assert resource.state == "open"
        began = time.monotonic()
        for _ in range(10):
            with pytest.raises(bulkhead.CircuitOpenError):
                engine.connect()
        assert time.monotonic() - began < 2, "10 that wait for the server would need 6 s"


@pytest.mark.resilience
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_server_that_hangs_does_not_hold_a_commit_for_ever(
    how: str, engines: Engines, postgres_server: PostgresServer
) -> None:
    engine, resource = engines.make(postgres_server.sqlalchemy_url, error_threshold=9)
    with engine.connect() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE held (n int)"))
        resource.update(call_timeout=0.5)
        with postgres_server.paused():
            began = time.monotonic()
            with pytest.raises(sa.exc.OperationalError) as late:
                getattr(connection, how)()
            assert time.monotonic() - began < 4
        assert late.value.connection_invalidated
    assert failures(resource) == 1


@pytest.mark.parametrize("options", [{"identifier": "postgres:limits-below"}, {}], ids=["one identifier", "two"])
def test_limits_and_a_protected_driver_below_go_together(
    options: dict[str, str], engines: Engines, postgres_server: PostgresServer
) -> None:
    """The driver's adapter still knows a commit when it sees one."""
    below = bulkhead.options(identifier="postgres:limits-below", call_timeout=9.0)
    engine, resource = engines.make(
        postgres_server.sqlalchemy_url, {"connect_args": below}, call_timeout=9.0, **(options | PLAIN)
    )
    with engine.connect() as connection:
        connection.execute(text("SELECT 2"))
        lower = found("postgres:limits-below")
        assert (lower is resource) is bool(options)
        lower.open()
        connection.commit()
        lower.close()
        connection.execute(text("SELECT 2"))
        lower.open()
        connection.rollback()
        with pytest.raises(sa.exc.OperationalError) as refused:
            connection.execute(text("SELECT 2"))
        assert bulkhead.rejection(refused.value) is not None

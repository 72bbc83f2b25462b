"""SQLAlchemy over psycopg when both are protected: by one resource, or each by its own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from drivers.sqlalchemy_engines import DEFAULTS, FAIL, failures, found
from sqlalchemy import text

import adapters.psycopg
import bulkhead
from bulkhead import events

if TYPE_CHECKING:
    from drivers.sqlalchemy_engines import Engines

    from bulkhead.testing import PostgresServer

numbers = itertools.count()
SHARED: dict[str, Any] = {**DEFAULTS, "tickets": 1, "error_threshold": 9, "call_timeout": 20.0}


@pytest.fixture
def identifier() -> str:
    return f"postgres:nested-{next(numbers)}"


def below(identifier: str) -> dict[str, Any]:
    """Engine options that protect the driver by a resource of that identifier."""
    return {"connect_args": bulkhead.options(identifier=identifier, **SHARED), "pool_size": 1}


def ended_backend(engines: Engines, server: PostgresServer, connection: Any) -> None:
    """End the backend of a connection from outside, and wait until it is gone."""
    pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
    with engines.plain(server.sqlalchemy_url).connect() as other:
        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})


def test_one_identifier_on_both_levels_takes_one_ticket(
    engines: Engines, postgres_server: PostgresServer, identifier: str
) -> None:
    engine, resource = engines.make(postgres_server.sqlalchemy_url, below(identifier), identifier=identifier, **SHARED)
    heard: list[events.Event] = []
    with engine.begin() as connection:
        assert connection.connection.driver_connection.bulkhead is resource  # type: ignore[union-attr]
        with bulkhead.subscribe(heard.append, events.Success, events.Busy):
            assert connection.execute(text("SELECT 2")).scalar() == 2
    assert [(one.driver, one.scope) for one in heard] == [("sqlalchemy", "query")]
    assert resource.in_use == 0
    with engine.begin() as connection:  # savepoints, streams and the driver's own commit do with the one ticket too
        with connection.begin_nested():
            connection.execute(text("SELECT 2"))
        rows = connection.execution_options(stream_results=True).execute(text("SELECT generate_series(1, 500)"))
        assert len(rows.all()) == 500
    assert resource.in_use == 0


def test_one_identifier_on_both_levels_counts_a_failure_once(
    engines: Engines, postgres_server: PostgresServer, identifier: str
) -> None:
    engine, resource = engines.make(postgres_server.sqlalchemy_url, below(identifier), identifier=identifier, **SHARED)
    with engine.connect() as connection:
        with pytest.raises(sa.exc.OperationalError):
            connection.execute(text(FAIL))
        assert failures(resource) == 1
        connection.rollback()
        ended_backend(engines, postgres_server, connection)
        with pytest.raises(sa.exc.OperationalError):
            connection.commit()  # which passes both levels free
    assert failures(resource) == 2


@pytest.mark.anyio
async def test_one_identifier_on_both_levels_takes_one_ticket_in_asyncio(
    engines: Engines, postgres_server: PostgresServer, identifier: str
) -> None:
    engine, resource = engines.make_async(
        postgres_server.sqlalchemy_url, below(identifier), identifier=identifier, **SHARED
    )
    heard: list[events.Event] = []
    async with engine.begin() as connection:
        with bulkhead.subscribe(heard.append, events.Success):
            assert (await connection.execute(text("SELECT 2"))).scalar() == 2
        assert [one.driver for one in heard] == ["sqlalchemy"]
        raw: Any = await connection.get_raw_connection()
        heard.clear()
        with bulkhead.subscribe(heard.append, events.Success):
            await (await raw.driver_connection.execute("SELECT 2")).fetchone()  # not inside: a call of its own
        assert [one.driver for one in heard] == ["psycopg"]
    assert resource.in_use == 0
    await engines.close()


def test_a_protected_driver_below_an_unprotected_engine_is_wrapped_and_keeps_its_connection(
    engines: Engines, postgres_server: PostgresServer, identifier: str
) -> None:
    engine = engines.plain(postgres_server.sqlalchemy_url, pool_pre_ping=True, **below(identifier))
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        connection.execute(text("SELECT 2"))
        found(identifier).open()
        with pytest.raises(sa.exc.OperationalError) as refused:
            connection.execute(text("SELECT 2"))
        error = refused.value
        assert not isinstance(error, bulkhead.BulkheadError)
        assert isinstance(error.orig, adapters.psycopg.PsycopgCircuitOpenError)
        assert bulkhead.rejection(error) is error.orig
        assert not error.connection_invalidated
    with engine.connect() as connection:  # the ping passes
        assert connection.connection.driver_connection is raw


def test_a_refusal_of_the_drivers_own_resource_counts_nowhere(
    engines: Engines, postgres_server: PostgresServer, identifier: str
) -> None:
    engine, upper = engines.make(
        postgres_server.sqlalchemy_url, below(identifier), error_threshold=1, call_timeout=20.0
    )
    with engine.connect() as connection:
        connection.execute(text("SELECT 2"))
        lower = found(identifier)
        assert lower is not upper
        lower.open()
        with pytest.raises(sa.exc.OperationalError) as refused:
            connection.execute(text("SELECT 2"))
        assert bulkhead.rejection(refused.value) is refused.value.orig
        assert failures(upper) == 0
        assert upper.state == "closed"

"""max_db_connections over SQLAlchemy: what counts, what is refused and how, which limits hold."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from drivers.sqlalchemy_engines import refused
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import adapters.sqlalchemy
import bulkhead
from adapters.sqlalchemy import SQLAlchemyResourceBusyError
from bulkhead import connections, events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drivers.sqlalchemy_engines import Engines
    from sqlalchemy.engine import Connection


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db"


# ---- what is refused, and how


def test_a_tenant_at_its_cap_is_refused_at_once_by_the_drivers_own_error(engines: Engines, url: str) -> None:
    """Before the pool's queue: it would have waited pool_timeout."""
    engine = engines.plain(url, pool_size=1, max_overflow=1, pool_timeout=50)
    connections.set_limit(1)
    with bulkhead.tenant("a"), engine.connect():
        began = time.monotonic()
        with pytest.raises(sa.exc.OperationalError) as caught:
            engine.connect()
        assert time.monotonic() - began < 10
        with bulkhead.tenant("b"):
            assert not refused(engine)
    error = bulkhead.rejection(caught.value)
    assert isinstance(error, bulkhead.ResourceBusyError)
    assert isinstance(error, SQLAlchemyResourceBusyError)
    assert (error.identifier, error.tenant, error.limit) == ("server:connections", "a", "connections")
    assert error.retry_after is None
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  our own
    assert (type(again), str(again), again.tenant) == (type(error), str(error), "a")
    with bulkhead.tenant("a"):
        assert not refused(engine)


def test_a_nested_session_is_a_second_connection_and_the_refusal_says_so(engines: Engines, url: str) -> None:
    """Known fault 47: it is refused; waiting for each other is not possible."""
    engine = engines.plain(url)
    connections.set_limit(2)
    with bulkhead.tenant("acme"), Session(engine) as first, Session(engine) as second, Session(engine) as third:
        first.execute(text("SELECT 1"))
        second.execute(text("SELECT 1"))
        with pytest.raises(SQLAlchemyResourceBusyError) as caught:
            third.execute(text("SELECT 1"))
        assert str(caught.value) == (
            "'server:connections' is busy for tenant 'acme': the connections limit is reached; the tenant holds 2 "
            "database connections of this process, max_db_connections is 2; a nested second Session or connection is "
            "a second connection: max_db_connections must be at least what one handler holds"
        )
        first.commit()
        assert third.execute(text("SELECT 3")).scalar() == 3  # the session that was refused is as good as before


def test_the_cap_is_one_for_all_engines_configured_or_not(engines: Engines, url: str) -> None:
    plain, other = engines.plain(url), engines.plain(url, poolclass=NullPool)
    configured, _ = engines.make(url, tickets=9)
    shadowed, _ = engines.make(url, tickets=9, mode="shadow")
    connections.set_limit(2)
    everyone = (plain, other, configured, shadowed)
    with bulkhead.tenant("a"), plain.connect():
        assert not any(map(refused, everyone))
        with configured.connect():
            assert all(map(refused, everyone))
            assert connections.held("a") == 2
        assert not any(map(refused, everyone))
    assert connections.held("a") == 0


def test_a_checkout_needs_both_tickets_and_a_refusal_keeps_neither(engines: Engines, url: str) -> None:
    plain = engines.plain(url)
    own, resource = engines.make(url, tenant_connections=2)
    connections.set_limit(2)
    with bulkhead.tenant("a"):
        with plain.connect(), plain.connect():
            for _ in range(5):
                assert refused(own)  # by the second ticket: the first went back
        with own.connect(), own.connect():  # so there are two still
            assert connections.held("a") == 2
        connections.set_limit(9)
        with own.connect(), own.connect():
            for _ in range(5):
                with pytest.raises(SQLAlchemyResourceBusyError) as caught:
                    own.connect()
                assert caught.value.identifier == resource.identifier
            assert connections.held("a") == 2
        assert connections.held("a") == 0


def test_refusals_are_counted_announced_and_logged(
    engines: Engines, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines.plain(url)
    connections.set_limit(1)
    seen: list[events.Event] = []
    with bulkhead.subscribe(seen.append, events.Busy), bulkhead.tenant("a"), engine.connect():
        for _ in range(3):
            assert refused(engine)
    assert seen == [events.Busy("server:connections", "a", "sqlalchemy", "connection", "connections")] * 3
    assert connections.totals() == {("rejections", "connections"): 3}
    lines = [one.getMessage() for one in caplog.records if "rejected" in one.getMessage()]
    assert lines == [
        f"[BULKHEAD] rejected identifier=server:connections reason=connections count={number}" for number in (1, 2)
    ]


# ---- limits


def test_a_limit_is_a_number_a_mapping_or_a_callable(engines: Engines, url: str) -> None:
    engine = engines.plain(url, pool_size=20)

    def most(tenant: str) -> int:
        with bulkhead.tenant(tenant):
            taken: list[Connection] = []
            try:
                while len(taken) < 9:
                    taken.append(engine.connect())
            except SQLAlchemyResourceBusyError:
                pass
            for one in taken:
                one.close()
            return len(taken)

    for value, expected in (
        (3, {"a": 3, "b": 3}),
        ({"a": 1, "default": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": 1, "b": 9}),
        ({"a": 0, "default": 2}, {"a": 9, "b": 2}),
        (lambda tenant: 4 if tenant == "a" else 0, {"a": 4, "b": 9}),
        (0, {"a": 9}),
        (None, {"a": 9}),
        ({}, {"a": 9}),
    ):
        connections.set_limit(value)
        assert {tenant: most(tenant) for tenant in expected} == expected
        assert {tenant: connections.limit(tenant) or 9 for tenant in expected} == expected


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "5", {"a": -1}, {"": 1}, {"a": "x"}, int, lambda: 1, 2_000_000, [1]])
def test_a_wrong_limit_changes_nothing(wrong: Any) -> None:
    connections.set_limit(3)
    with pytest.raises(bulkhead.ConfigurationError, match="max_db_connections"):
        connections.set_limit(wrong)
    assert connections.limit("a") == 3


def test_a_callable_that_fails_caps_nothing_and_says_so_once(
    engines: Engines, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines.plain(url)
    for wrong in (lambda _: 1 // 0, lambda _: -5):
        caplog.clear()
        connections.set_limit(wrong)
        with bulkhead.tenant("a"), engine.connect(), engine.connect():
            assert not refused(engine)
        assert len([one for one in caplog.records if "max_db_connections" in one.getMessage()]) == 1


def test_a_callable_may_look_the_limit_up_in_a_database(engines: Engines, url: str) -> None:
    """Its own connection is not counted, or it would be asked for that one too, and so on."""
    engine = engines.plain(url)
    asked: list[int] = []

    def look_up(tenant: str) -> int:
        asked.append(connections.held("a"))
        with engine.connect() as connection:
            return int(connection.scalar(sa.text("SELECT 1")))

    connections.set_limit(look_up)
    with bulkhead.tenant("a"), engine.connect():
        assert asked == [0]
        assert connections.held("a") == 1
        assert refused(engine)
        assert asked == [0, 1]


def test_a_limit_may_change_at_run_time(engines: Engines, url: str) -> None:
    engine = engines.plain(url, pool_size=9)
    connections.set_limit(3)
    with bulkhead.tenant("a"):
        three = [engine.connect() for _ in range(3)]
        connections.set_limit(1)
        for held in (3, 2, 1):  # those that are out stay out, and none is given before they are below the limit
            assert connections.held("a") == held
            assert refused(engine)
            three.pop().close()
        assert not refused(engine)
        connections.set_limit(2)
        with engine.connect(), engine.connect():
            assert refused(engine)
            connections.set_limit(None)
            assert not refused(engine)
            with engine.connect():
                connections.set_limit(3)
                assert connections.held("a") == 2  # what was checked out without a cap is not counted
                assert not refused(engine)
        assert connections.held("a") == 0


def test_outside_any_tenant_the_policy_holds(engines: Engines, url: str) -> None:
    engine = engines.plain(url)
    connections.set_limit({"default": 1})
    with engine.connect(), engine.connect(), engine.connect():
        assert connections.held(None) == 0
    bulkhead.unknown_tenant("share")
    with engine.connect(), bulkhead.tenant("a"), engine.connect(), bulkhead.tenant(None):
        assert refused(engine)
        assert connections.held(None) == 1
    bulkhead.unknown_tenant("reject")
    with pytest.raises(adapters.sqlalchemy.SQLAlchemyUnknownTenantError):
        engine.connect()
    assert connections.totals() == {("rejections", "connections"): 1, ("rejections", "unknown_tenant"): 1}
    with bulkhead.tenant("a"):
        assert not refused(engine)


def test_bypass_and_the_environment_switch_it_off(engines: Engines, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.plain(url)
    connections.set_limit(1)
    with bulkhead.tenant("a"), engine.connect(), bulkhead.bypass(connections.IDENTIFIER):
        assert not refused(engine)
        assert connections.held("a") == 1
    monkeypatch.setenv("BULKHEAD_TICKETS_DISABLED", "1")
    connections.set_limit(1)
    with bulkhead.tenant("a"), engine.connect():
        assert not refused(engine)
    assert connections.limit("a") is None


# ---- where it counts


def test_it_counts_wherever_the_context_was_carried(engines: Engines, url: str) -> None:
    engine = engines.plain(url)
    connections.set_limit(1)
    answers: list[bool] = []

    def ask() -> None:
        answers.append(refused(engine))

    def in_thread(target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    async def in_tasks() -> None:
        async def task() -> None:
            ask()

        await asyncio.create_task(task())
        await asyncio.to_thread(ask)

    def body() -> Iterator[bool]:
        with engine.connect() as connection:
            yield refused(engine)
            connection.execute(text("SELECT 1"))
            yield refused(engine)

    with bulkhead.tenant("a"), engine.connect():
        in_thread(bulkhead.carry(ask))
        with bulkhead.CarryingExecutor(max_workers=1) as executor:
            executor.submit(ask).result()
        asyncio.run(in_tasks())
        assert answers == [True] * 4
        in_thread(ask)  # a bare thread works for nobody
        assert answers.pop() is False
    with bulkhead.tenant("a"):
        stream = body()
        assert next(stream)
    assert connections.held("a") == 1  # between two items
    with bulkhead.tenant("a"):
        assert list(stream) == [True]
    assert connections.held("a") == 0


def test_whose_connection_it_is_is_decided_at_the_checkout(engines: Engines, url: str) -> None:
    engine = engines.plain(url)
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        connection = engine.connect()
    with bulkhead.tenant("b"):
        connection.close()
        assert (connections.held("a"), connections.held("b")) == (0, 0)


@pytest.mark.anyio
async def test_the_cap_in_asyncio(engines: Engines, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/a.db", pool_timeout=50)
    connections.set_limit(1)
    with bulkhead.tenant("a"):
        async with engine.connect() as connection:
            with pytest.raises(SQLAlchemyResourceBusyError):
                await engine.connect()
            async with AsyncSession(engine) as session:
                with pytest.raises(SQLAlchemyResourceBusyError):
                    await session.execute(text("SELECT 1"))
            await connection.invalidate()
            async with engine.connect():
                pass
        async with engine.connect() as connection:
            raw: Any = await connection.get_raw_connection()
            raw.detach()
            assert connections.held("a") == 0
            await connection.run_sync(lambda _: raw.dbapi_connection.close())
    await engine.dispose()

"""SQLAlchemy engines with a bad network between them and PostgreSQL: Toxiproxy in front of a real server."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from drivers.sqlalchemy_engines import failures
from polling import auntil_due, until, until_due
from sqlalchemy import text

import bulkhead

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivers.sqlalchemy_engines import Engines
    from sqlalchemy.engine import Engine

    from bulkhead.adapter import Resource
    from bulkhead.testing import Toxiproxy

pytestmark = pytest.mark.resilience
QUICK = {"call_timeout": 0.5, "error_threshold": 3, "error_timeout": 2.0, "error_threshold_timeout": 30.0, "tickets": 8}


@pytest.fixture
def behind(engines: Engines, toxiproxy: Toxiproxy) -> Callable[..., tuple[Engine, Resource]]:
    proxy = toxiproxy["postgres"]
    url = f"postgresql+psycopg://postgres@{proxy.host}:{proxy.port}/postgres"

    def make(**options: Any) -> tuple[Engine, Resource]:
        engine, resource = engines.make(url, {"pool_size": 2}, **(QUICK | options))
        assert ask(engine) == 1
        return engine, resource

    return make


def ask(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(text("SELECT 1")).scalar()


def fails(engine: Engine, times: int, within: float) -> None:
    began = time.monotonic()
    for _ in range(times):
        with pytest.raises(sa.exc.OperationalError) as failed:
            ask(engine)
        assert bulkhead.rejection(failed.value) is None
    assert time.monotonic() - began < within


def refuses_at_once(engine: Engine) -> None:
    began = time.monotonic()
    for _ in range(10):
        with pytest.raises(bulkhead.CircuitOpenError):
            ask(engine)
    assert time.monotonic() - began < 1.6, "10 that wait for the time limit would need 5 s"


def recovers(engine: Engine, resource: Resource) -> None:
    until_due(resource)
    assert ask(engine) == 1
    assert resource.state == "closed"
    assert resource.in_use == 0


def test_latency_above_call_timeout_opens_and_recovery_closes(behind: Any, toxiproxy: Toxiproxy) -> None:
    """MY-03, AR-05: slow connects count as slow statements do."""
    engine, resource = behind()
    with toxiproxy["postgres"].downstream("latency", latency=6000):
        fails(engine, 3, within=5)
        refuses_at_once(engine)
    recovers(engine, resource)


def test_latency_below_call_timeout_is_only_slow(behind: Any, toxiproxy: Toxiproxy) -> None:
    engine, resource = behind(call_timeout=5.0)
    with toxiproxy["postgres"].downstream("latency", latency=100):
        for _ in range(3):
            assert ask(engine) == 1
    assert failures(resource) == 0


def test_data_that_never_arrives_opens(behind: Any, toxiproxy: Toxiproxy) -> None:
    engine, resource = behind()
    with toxiproxy["postgres"].downstream("timeout", timeout=0):
        fails(engine, 3, within=5)
        refuses_at_once(engine)
    recovers(engine, resource)


def test_resets_count(behind: Any, toxiproxy: Toxiproxy) -> None:
    engine, resource = behind()
    engine.dispose()
    with toxiproxy["postgres"].downstream("reset_peer", timeout=0):
        fails(engine, 3, within=5)
        refuses_at_once(engine)
    recovers(engine, resource)


def test_a_proxy_that_is_down_opens(behind: Any, toxiproxy: Toxiproxy) -> None:
    engine, resource = behind()
    with toxiproxy["postgres"].down():
        fails(engine, 3, within=5)
        refuses_at_once(engine)
    recovers(engine, resource)


def test_a_connection_cut_in_the_middle_of_a_result_counts(behind: Any, toxiproxy: Toxiproxy) -> None:
    engine, resource = behind(call_timeout=5.0)
    with (
        toxiproxy["postgres"].downstream("limit_data", bytes=3000),
        pytest.raises(sa.exc.OperationalError) as cut,
        engine.connect() as connection,
    ):
        connection.execute(text("SELECT repeat('x', 100000)")).scalar()
    assert bulkhead.rejection(cut.value) is None
    assert failures(resource) >= 1
    assert ask(engine) == 1
    assert resource.in_use == 0


def test_a_slow_database_of_one_tenant_leaves_the_other_alone(behind: Any, toxiproxy: Toxiproxy) -> None:
    engine, resource = behind(tenant_tickets=1, call_timeout=5.0)
    with engine.connect() as one, engine.connect() as other, toxiproxy["postgres"].downstream("latency", latency=1500):

        def noisy() -> None:
            with bulkhead.tenant("noisy"):
                one.execute(text("SELECT 1"))

        thread = threading.Thread(target=noisy)
        thread.start()
        until(lambda: resource.in_use == 1)
        with bulkhead.tenant("noisy"), pytest.raises(bulkhead.ResourceBusyError):
            other.execute(text("SELECT 1"))
        with bulkhead.tenant("quiet"):
            assert other.execute(text("SELECT 1")).scalar() == 1
        thread.join(30)
    assert resource.in_use == 0


def test_answers_that_are_cut_open(behind: Any, toxiproxy: Toxiproxy) -> None:
    engine, resource = behind(call_timeout=5.0)
    with toxiproxy["postgres"].downstream("limit_data", bytes=3000):
        for _ in range(3):
            with pytest.raises(sa.exc.OperationalError) as cut, engine.connect() as connection:
                connection.execute(text("SELECT repeat('x', 100000)")).scalar()
            assert bulkhead.rejection(cut.value) is None
        refuses_at_once(engine)
    recovers(engine, resource)


TOXICS: dict[str, tuple[str, dict[str, Any]]] = {
    "latency": ("latency", {"latency": 6000}),
    "data that never arrives": ("timeout", {"timeout": 0}),
    "resets": ("reset_peer", {"timeout": 0}),
    "answers that are cut": ("limit_data", {"bytes": 3000}),
    "down": ("down", {}),
}


@pytest.mark.anyio
@pytest.mark.parametrize("toxic", TOXICS)
async def test_asyncio_engines_open_and_recover_too(engines: Engines, toxiproxy: Toxiproxy, toxic: str) -> None:
    proxy = toxiproxy["postgres"]
    url = f"postgresql+psycopg://postgres@{proxy.host}:{proxy.port}/postgres"
    engine, resource = engines.make_async(url, {"pool_size": 2}, **QUICK)

    async def ask_it() -> Any:
        async with engine.connect() as connection:
            return len((await connection.execute(text("SELECT repeat('x', 100000)"))).scalar_one())

    assert await ask_it() == 100_000
    kind, attributes = TOXICS[toxic]
    if kind == "reset_peer":  # it concerns connections opened after it was added
        await engine.dispose()
    with proxy.down() if kind == "down" else proxy.downstream(kind, **attributes):
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(sa.exc.OperationalError) as failed:
                await ask_it()
            assert bulkhead.rejection(failed.value) is None
        assert time.monotonic() - began < 5
        began = time.monotonic()
        for _ in range(10):
            with pytest.raises(bulkhead.CircuitOpenError):
                await ask_it()
        assert time.monotonic() - began < 1.6, "10 that wait for the time limit would need 5 s"
    await auntil_due(resource)
    assert await ask_it() == 100_000
    assert resource.state == "closed"
    assert resource.in_use == 0
    await engines.close()

"""Statements and connects of a guarded engine: one ticket each, and no ticket is lost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from drivers.sqlalchemy_guarded import Guarded, Item, one
from sqlalchemy import event, text
from sqlalchemy.orm import Session

import adapters.sqlalchemy
import bulkhead
from bulkhead import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.testing import PostgresServer


def test_core_and_orm_take_tickets_one_at_a_time_and_give_them_back(guarded: Callable[..., Guarded]) -> None:
    g = guarded(tickets=1)
    in_use: list[int] = []
    event.listen(g.engine, "after_cursor_execute", lambda *a: in_use.append(g.resource.in_use))
    with g.engine.begin() as connection:
        assert one(connection)
        assert connection.exec_driver_sql("SELECT 2").scalar() == 2
        connection.execute(sa.insert(Item), [{"id": n, "name": f"n{n}"} for n in range(3)])
        connection.execute(sa.insert(Item).returning(Item.id), [{"id": 3 + n, "name": f"m{n}"} for n in range(3)])
        options = {"no_parameters": True}
        assert connection.execution_options(**options).exec_driver_sql("SELECT 3").scalar() == 3
    with Session(g.engine) as session:
        session.add(Item(id=9, name="nine"))
        session.commit()
        assert session.scalar(sa.select(sa.func.count()).select_from(Item)) == 7
    assert len(in_use) >= 7
    assert set(in_use) == {0}  # the ticket is back before the listener runs: a call of the listener's own may have it
    assert g.resource.in_use == 0
    assert g.resource.state == "closed"


def test_a_call_inside_a_permit_of_the_same_identifier_takes_nothing(guarded: Callable[..., Guarded]) -> None:
    g = guarded(tickets=1)
    with g.resource.permit(), g.engine.connect() as connection:
        assert g.resource.in_use == 1
        assert one(connection)
    with g.engine.connect() as connection, bulkhead.bypass(g.resource.identifier):
        g.resource.open()
        assert one(connection)
    assert g.resource.in_use == 0


def test_an_error_inside_a_permit_of_the_same_identifier_is_reported_once(guarded: Callable[..., Guarded]) -> None:
    g = guarded(error_threshold=2, is_failure=Exception)
    with pytest.raises(sa.exc.DBAPIError), g.resource.permit(), g.engine.connect() as connection:
        connection.execute(text("SELECT * FROM nowhere"))
    assert g.resource.totals()["calls", "failure"] == 1


def test_two_handlers_that_need_a_second_connection_do_not_block_each_other(guarded: Callable[..., Guarded]) -> None:
    """Known fault 47: a ticket is held for a statement, never between two, so nested work cannot deadlock."""
    g = guarded(tickets=2)
    done: list[bool] = []
    barrier = threading.Barrier(2, timeout=10)

    def handler() -> None:
        with g.engine.connect() as outer:
            one(outer)
            barrier.wait()
            with g.engine.connect() as inner:
                done.append(one(inner))

    threads = [threading.Thread(target=handler) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert done == [True, True]
    assert g.resource.in_use == 0


def test_events_name_driver_and_scope(guarded: Callable[..., Guarded]) -> None:
    """MY-06, AR-07, MY-13, AR-08."""
    g = guarded()
    heard: list[events.Event] = []
    kinds = (events.Success, events.Failure, events.Ignored, events.CircuitOpen)
    with bulkhead.subscribe(heard.append, *kinds), g.engine.connect() as connection:
        one(connection)
        with pytest.raises(sa.exc.DBAPIError):
            connection.execute(text("SELECT * FROM nowhere"))
        g.resource.open()
        with pytest.raises(bulkhead.CircuitOpenError):
            one(connection)
    ours = [(type(one).__name__, one.scope) for one in heard if one.identifier == g.resource.identifier]
    assert ours[0] == ("Success", "connection")
    assert ours[-3:-1] == [("Success", "query"), ("Success", "query")]  # an SQL error: the server answered
    assert ours[-1] == ("CircuitOpen", "query")
    assert {one.driver for one in heard} == {"sqlalchemy"}


def test_the_first_connect_may_initialise_the_dialect_with_one_ticket(postgres_server: PostgresServer) -> None:
    g = Guarded(postgres_server.sqlalchemy_url, tickets=1)
    with g.full(), pytest.raises(bulkhead.ResourceBusyError):
        g.engine.connect()
    with g.engine.connect() as connection:
        assert g.engine.dialect.server_version_info is not None
        assert one(connection)
    g.close()


def test_a_tenants_cap_does_not_touch_another_tenant(guarded: Callable[..., Guarded]) -> None:
    g = guarded(tickets=None, tenant_tickets=1)
    with bulkhead.tenant("a"):
        permit = g.resource.begin(adapters.sqlalchemy.adapter.query)
    with g.engine.connect() as connection:
        with bulkhead.tenant("a"), pytest.raises(bulkhead.ResourceBusyError) as refused:
            one(connection)
        assert (refused.value.tenant, refused.value.limit) == ("a", "tenant")
        with bulkhead.tenant("b"):
            assert one(connection)
        assert one(connection)
    permit[1](permit[0])


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_gives_the_ticket_back_and_says_nothing(
    interruption: type[BaseException], guarded: Callable[..., Guarded]
) -> None:
    """Known fault 27."""
    g = guarded(tickets=1, error_threshold=1)
    armed: list[bool] = []
    below = g.plain.dialect.do_execute

    def interrupt(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        below(cursor, statement, parameters, context)
        if armed:
            raise interruption

    vars(g.plain.dialect)["do_execute"] = interrupt
    adapters.sqlalchemy.attach(g.plain, g.resource)  # guards what interrupts
    for _ in range(3):
        with g.plain.connect() as connection:
            armed.append(True)
            with pytest.raises(interruption):
                one(connection)
            armed.clear()
    assert g.resource.in_use == 0
    assert g.resource.state == "closed"
    assert g.resource.totals()["calls", "failure"] == 0


def test_threads_share_an_engine_and_never_exceed_the_limit(guarded: Callable[..., Guarded]) -> None:
    """Known fault 35: nothing is kept on a shared object that could switch the guard off."""
    g = guarded(tickets=3, timeout=5, max_waiting=100, engine={"pool_size": 8})
    most, failures = [0], []

    def work() -> None:
        try:
            with g.engine.connect() as connection:
                for _ in range(20):
                    one(connection)
                    most[0] = max(most[0], g.resource.in_use)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert most[0] <= 3
    assert g.resource.in_use == 0
    g.resource.open()
    with pytest.raises(bulkhead.CircuitOpenError), g.engine.connect() as connection:
        one(connection)


def test_driver_objects_are_handed_out_as_they_are(postgres_server: PostgresServer) -> None:
    """Known fault 71: no proxies."""
    psycopg = pytest.importorskip("psycopg")
    g = Guarded(postgres_server.sqlalchemy_url)
    with g.engine.connect() as connection:
        assert type(connection) is sa.engine.Connection
        raw: Any = connection.connection.dbapi_connection
        assert type(raw) is psycopg.Connection
        assert raw.execute("SELECT 1").fetchone() == (1,)
    g.close()


def test_shadow_mode_announces_and_lets_pass(guarded: Callable[..., Guarded]) -> None:
    g = guarded(mode="shadow")
    heard: list[events.Event] = []
    with bulkhead.subscribe(heard.append, events.WouldReject), g.engine.connect() as connection, g.full():
        assert one(connection)
    assert [type(one) for one in heard]

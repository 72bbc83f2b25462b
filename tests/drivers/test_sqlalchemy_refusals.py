"""Refusals of a guarded engine: what is refused and what never is, and that everything stays usable."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from drivers.sqlalchemy_guarded import Guarded, Item, numbers, one
from polling import until_due
from sqlalchemy import text
from sqlalchemy.orm import Session

import adapters.sqlalchemy
import bulkhead
from adapters._sqlalchemy_calls import ends_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

    from bulkhead.testing import PostgresServer


@pytest.mark.parametrize(
    "run",
    [
        lambda connection: connection.execute(text("SELECT 1")),
        lambda connection: connection.exec_driver_sql("SELECT 1"),
        lambda connection: connection.execute(sa.insert(Item), [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]),
        lambda connection: connection.execution_options(no_parameters=True).exec_driver_sql("SELECT 1"),
    ],
    ids=["execute", "driver sql", "executemany", "no parameters"],
)
def test_without_a_ticket_every_kind_of_statement_is_refused(
    run: Callable[[Connection], object], guarded: Callable[..., Guarded]
) -> None:
    """MY-14, AR-14, MY-21, AR-17."""
    g = guarded()
    with g.engine.connect() as connection:
        with g.full(), pytest.raises(sa.exc.OperationalError) as refused:
            run(connection)
        error = refused.value
        assert isinstance(error, bulkhead.ResourceBusyError)
        assert isinstance(error, adapters.sqlalchemy.SQLAlchemyResourceBusyError)
        assert (error.identifier, error.tenant, error.limit) == (g.resource.identifier, None, "resource")
        assert type(error.orig) is bulkhead.ResourceBusyError
        assert not error.connection_invalidated
        assert one(connection)
    assert g.resource.in_use == 0


def test_without_a_ticket_a_connect_is_refused(guarded: Callable[..., Guarded]) -> None:
    """MY-07, AR-13, MY-11, AR-15: busy, tagged with the identifier."""
    g = guarded()
    with g.full(), pytest.raises(sa.exc.OperationalError) as refused:
        g.engine.connect()
    assert isinstance(refused.value, bulkhead.ResourceBusyError)
    assert refused.value.identifier == g.resource.identifier
    with g.engine.connect() as connection:
        assert one(connection)
    assert g.resource.in_use == 0


def test_busy_errors_open_the_circuit_only_on_request(guarded: Callable[..., Guarded]) -> None:
    """MY-12, AR-16, MY-22, AR-18, with circuit_counts_busy as the table of deviations says."""
    for counts in (False, True):
        g = guarded(circuit_counts_busy=counts, error_threshold=2, error_timeout=1.0)
        with g.engine.connect() as connection:
            assert one(connection)
            with g.full():
                for _ in range(3):
                    with pytest.raises(sa.exc.OperationalError):
                        one(connection)
                assert g.resource.state == ("open" if counts else "closed")
            if counts:
                until_due(g.resource)
            assert one(connection)
            assert g.resource.state == "closed"


def test_an_open_circuit_refuses_before_the_server_is_asked(postgres_server: PostgresServer) -> None:
    g = Guarded(postgres_server.sqlalchemy_url)
    with g.engine.connect() as connection:
        assert one(connection)
        g.resource.open()
        marker = f"SELECT 'never-{next(numbers)}'"
        with pytest.raises(sa.exc.OperationalError) as refused:
            connection.execute(text(marker))
        assert isinstance(refused.value, bulkhead.CircuitOpenError)
        assert "never" not in str(refused.value)
    before = len(postgres_server.backends())
    g.engine.dispose()
    with pytest.raises(bulkhead.CircuitOpenError):
        g.engine.connect()
    assert len(postgres_server.backends()) <= before
    assert not postgres_server.statements(marker)
    g.close()


def test_a_refused_statement_leaves_transaction_and_pooled_connection_as_they_were(
    guarded: Callable[..., Guarded],
) -> None:
    """MY-15, MY-17, AR-19, AR-21, known fault 75: COMMIT and ROLLBACK pass while the circuit is open."""
    g = guarded(engine={"pool_size": 1, "max_overflow": 0})
    with g.engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        connection.execute(sa.insert(Item), {"id": 1, "name": "kept"})
        g.resource.open()
        with pytest.raises(bulkhead.CircuitOpenError):
            connection.execute(sa.insert(Item), {"id": 2, "name": "refused"})
        assert connection.in_transaction()
        connection.commit()
        g.resource.close()
        connection.execute(sa.insert(Item), {"id": 3, "name": "rolled back"})
        g.resource.open()
        with pytest.raises(bulkhead.CircuitOpenError):
            one(connection)
        connection.rollback()
    with g.plain.connect() as plain:
        assert list(plain.scalars(sa.select(Item.id))) == [1]
    g.resource.close()
    with g.engine.connect() as connection:
        assert connection.connection.dbapi_connection is raw
        assert one(connection)


def test_savepoints_end_while_the_circuit_is_open(guarded: Callable[..., Guarded]) -> None:
    """MY-19, MY-20, AR-23, AR-24."""
    g = guarded()
    with g.engine.begin() as connection:
        connection.execute(sa.insert(Item), {"id": 1, "name": "outer"})
        kept, dropped = connection.begin_nested(), connection.begin_nested()
        connection.execute(sa.insert(Item), {"id": 2, "name": "inner"})
        g.resource.open()
        with pytest.raises(bulkhead.CircuitOpenError):
            connection.begin_nested()  # new work is refused
        dropped.rollback()
        kept.commit()
    with g.plain.connect() as plain:
        assert list(plain.scalars(sa.select(Item.id))) == [1]


@pytest.mark.parametrize(
    "statement",
    [
        "ROLLBACK",
        "rollback;",
        " COMMIT ; ",
        "END TRANSACTION",
        "ROLLBACK TO SAVEPOINT sa_savepoint_1",
        'ROLLBACK TO "my point"',
        "RELEASE SAVEPOINT active_record_2",
        "RELEASE `x`",
        "/*app:web,action:show*/ ROLLBACK",
        "/* a */ /* b */ -- c\n ROLLBACK -- done",
        "PREPARE TRANSACTION 'x'",
        "COMMIT PREPARED 'x'",
        "XA ROLLBACK %s",
    ],
)
def test_a_statement_that_only_ends_work_is_never_refused(statement: str) -> None:
    """MY-15, MY-16, MY-17, MY-19, MY-20, AR-19, AR-20, AR-21, AR-23, AR-24."""
    assert ends_work(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "ROLLBACK; SELECT pg_sleep(9)",
        "SELECT 1 -- ROLLBACK",
        "COMMITTED",
        "SAVEPOINT x",
        "BEGIN",
        "/*!50000 SELECT SLEEP(9) */; ROLLBACK",
        "/*!50000 SELECT SLEEP(9); */ ROLLBACK",
        "/* /* */ ROLLBACK -- */ ; SELECT pg_sleep(9)",
        "/* ROLLBACK",
        "",
        "\x00\xff\udcff",
        b"ROLLBACK\xff",
        None,
        "/**/" * 5000 + "SELECT 1",
        "-- x\n" * 5000 + "SELECT 1",
    ],
)
def test_a_statement_that_does_anything_else_is_not_let_through(statement: Any) -> None:
    """MY-18, AR-22: undecodable text is not allowed and does not crash; long comments cost no time (bounded by pytest)."""
    assert not ends_work(statement)


def test_the_orm_rolls_back_after_a_refusal_and_goes_on(guarded: Callable[..., Guarded]) -> None:
    g = guarded()
    with Session(g.engine) as session:
        session.add(Item(id=1, name="a"))
        session.flush()
        session.add(Item(id=2, name="b"))
        g.resource.open()
        with pytest.raises(sa.exc.OperationalError) as refused:
            session.flush()
        assert isinstance(refused.value, bulkhead.CircuitOpenError)
        session.rollback()
        g.resource.close()
        session.add(Item(id=3, name="c"))
        session.commit()
        assert list(session.scalars(sa.select(Item.id))) == [3]
    assert g.resource.in_use == 0


def test_autoflush_may_add_its_detail_to_a_refusal(guarded: Callable[..., Guarded]) -> None:
    g = guarded()
    with Session(g.engine) as session:
        session.execute(text("SELECT 1"))
        session.add(Item(id=1, name="a"))
        g.resource.open()
        with pytest.raises(bulkhead.CircuitOpenError, match="autoflush") as refused:
            session.scalars(sa.select(Item)).all()
        assert g.resource.identifier in str(refused.value)


@pytest.mark.parametrize("error_class", adapters.sqlalchemy.adapter.query.errors)
def test_refusals_survive_pickling_and_copying(error_class: type[Any]) -> None:
    error = error_class("sql:x", "acme", 1.5)
    error.add_detail("while flushing")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301  our own bytes
        assert type(twin) is error_class
        assert (twin.identifier, twin.tenant, str(twin), twin.args) == ("sql:x", "acme", str(error), error.args)
        assert type(twin.orig) is error_class.ours
        assert twin.statement is None
        assert twin.params is None
    assert isinstance(error, sa.exc.OperationalError)
    assert error._sql_message()
    assert getattr(error, "driver_exception", error.orig) is error.orig  # SQLAlchemy 2.1 has it
    assert error_class.__name__ not in dir(sa.exc)
    assert "sqlalche.me" not in str(error)

"""Statements and transaction blocks: what counts and what does not, what is refused, and how it is left."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from drivers.psycopg_harness import connected, outcomes
from polling import until
from psycopg.pq import TransactionStatus

import bulkhead
from adapters.psycopg import PsycopgCircuitOpenError, PsycopgResourceBusyError
from bulkhead import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Eventually

    from bulkhead.testing import PostgresServer


def test_a_cancel_by_the_client_is_no_failure_and_a_statement_timeout_is_one(connect: Callable[..., Any]) -> None:
    connection, other = connect(tickets=1), connect(tickets=1)

    def cancel() -> None:
        running = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
        until(lambda: other.execute(running, [connection.info.backend_pid]).fetchone())
        connection.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pg_sleep(40)")
    canceller.join()
    assert outcomes(connection) == (0, 1)
    connection.execute("SET statement_timeout = 50")
    with pytest.raises(psycopg.errors.QueryCanceled) as caught:
        connection.execute("SELECT pg_sleep(9)")
    assert caught.value.bulkhead_identifier == connection.bulkhead.identifier  # type: ignore[attr-defined]
    assert outcomes(connection) == (1, 1)


def test_a_cancel_that_found_nothing_to_cancel_excuses_nothing(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    connection.cancel()
    connection.execute("SET statement_timeout = 50")
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pg_sleep(9)")
    assert outcomes(connection) == (1, 0)


def test_transaction_blocks_are_refused_before_they_begin(
    connect: Callable[..., Any], postgres_server: PostgresServer
) -> None:
    connection = connect(tickets=1)
    connection.bulkhead.open()
    before = len(postgres_server.statements("BEGIN"))
    with pytest.raises(PsycopgCircuitOpenError), connection.transaction():
        pytest.fail("entered")
    assert len(postgres_server.statements("BEGIN")) == before
    assert connection.pgconn.transaction_status == TransactionStatus.IDLE
    connection.bulkhead.close()
    with connection.transaction():
        connection.execute("SELECT 2")
        connection.bulkhead.open()
        with pytest.raises(PsycopgCircuitOpenError), connection.transaction():
            pytest.fail("entered")
        connection.bulkhead.close()
        with connection.transaction():  # a savepoint
            connection.execute("SELECT 2")
    connection.commit()  # psycopg refuses this inside a block: its count of blocks is right


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_block_whose_statement_is_refused_ends_cleanly(connect: Callable[..., Any], how: str) -> None:
    connection = connect(tickets=1)
    connection.execute("CREATE TEMPORARY TABLE kept (n int)")
    with connection.transaction(force_rollback=how == "rollback"):
        connection.execute("INSERT INTO kept VALUES (2)")
        connection.bulkhead.open()
        with pytest.raises(PsycopgCircuitOpenError):
            connection.execute("INSERT INTO kept VALUES (3)")
    assert connection.pgconn.transaction_status == TransactionStatus.IDLE
    connection.bulkhead.close()
    assert connection.execute("SELECT * FROM kept").fetchall() == ([(2,)] if how == "commit" else [])


def test_two_phase_commits_and_settings_pass_while_it_is_open(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    connection.bulkhead.open()
    connection.autocommit = False
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    connection.read_only = True
    connection.deferrable = None
    connection.rollback()
    assert connection.pgconn.transaction_status == TransactionStatus.IDLE


def test_notifies_wait_without_a_ticket_and_without_a_limit(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    connection.execute("LISTEN heard")
    connection.bulkhead.update(call_timeout=0.5)
    sender = connect(tickets=1)
    timer = threading.Timer(0.8, sender.execute, ["NOTIFY heard, 'late'"])
    timer.start()
    notify = next(connection.notifies())
    timer.join()
    assert notify.payload == "late"
    assert connection.bulkhead.in_use == 0
    assert outcomes(connection) == (0, 0)
    if "timeout" in psycopg.Connection.notifies.__code__.co_varnames:
        assert list(connection.notifies(timeout=0.8)) == []
        assert outcomes(connection) == (0, 0)
    connection.bulkhead.update(call_timeout=20.0)
    assert connection.execute("SELECT 2").fetchone() == (2,)


def test_ping_on_a_closed_connection_does_not_count(connect: Callable[..., Any]) -> None:
    """MY-24, AR-11."""
    connection = connect(tickets=1, error_threshold=1, error_timeout=5, success_threshold=1)
    connection.close()
    for statement in ("", "SELECT 2"):
        with pytest.raises(psycopg.OperationalError):
            connection.execute(statement)
    with pytest.raises(psycopg.OperationalError):
        connection.rollback()
    assert connection.bulkhead.state == "closed"
    assert outcomes(connection)[0] == 0


def test_a_backend_that_dies_counts_and_is_tagged(connect: Callable[..., Any]) -> None:
    """MY-08, AR-10: a lost connection carries the identifier; a statement's own error does not (MY-10, AR-12)."""
    connection, killer = connect(tickets=1), connect(tickets=1)
    killer.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
    with pytest.raises(psycopg.OperationalError) as caught:
        connection.execute("SELECT 2")
    assert caught.value.bulkhead_identifier == connection.bulkhead.identifier  # type: ignore[attr-defined]
    assert outcomes(connection) == (1, 0)
    with pytest.raises(psycopg.errors.UndefinedTable) as other:
        killer.execute("SELECT * FROM no_such_table")
    assert not hasattr(other.value, "bulkhead_identifier")


def test_a_change_of_state_names_driver_and_scope(connect: Callable[..., Any]) -> None:
    """MY-09."""
    connection = connect(name="announced", tickets=1, error_threshold=1, error_timeout=5, success_threshold=1)
    seen: list[Any] = []
    with bulkhead.subscribe(seen.append, events.StateChange), pytest.raises(psycopg.errors.DiskFull):
        connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$")
    ours = [one for one in seen if one.identifier == "postgres:announced"]
    assert [(one.driver, one.scope, one.new) for one in ours] == [("psycopg", "query", "open")]


def test_a_failed_commit_counts_although_it_is_never_refused(connect: Callable[..., Any]) -> None:
    connection, killer = connect(tickets=1), connect(tickets=1)
    connection.autocommit = False
    connection.execute("SELECT 2")
    killer.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert outcomes(connection) == (1, 0)


def test_rejections_do_not_replace_what_opened_it(connect: Callable[..., Any]) -> None:
    """MY-27, AR-25. And never quote it."""
    connection = connect(tickets=1, error_threshold=1, error_timeout=5, success_threshold=1)
    with pytest.raises(psycopg.errors.DiskFull):
        connection.execute("DO $$ BEGIN RAISE EXCEPTION 'a secret text' USING ERRCODE = '53100'; END $$")
    for _ in range(3):
        with pytest.raises(PsycopgCircuitOpenError) as caught:
            connection.execute("SELECT 2")
        assert isinstance(caught.value.__cause__, psycopg.errors.DiskFull)
        assert "a secret text" not in str(caught.value)


def test_a_slow_statement_elsewhere_makes_others_busy(connect: Callable[..., Any], eventually: Eventually) -> None:
    """MY-21, AR-17."""
    one, two = connect(name="shared-by-two", tickets=1), connect(name="shared-by-two", tickets=1)
    thread = threading.Thread(target=one.execute, args=["SELECT pg_sleep(1.5)"])
    thread.start()
    eventually(lambda: one.bulkhead.in_use == 1)
    with pytest.raises(PsycopgResourceBusyError) as caught:
        two.execute("SELECT 2")
    assert caught.value.identifier == "postgres:shared-by-two"
    thread.join()
    assert two.execute("SELECT 2").fetchone() == (2,)


def test_nested_in_a_permit_of_its_identifier_it_takes_nothing(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    with connection.bulkhead.permit():
        assert connection.execute("SELECT 2").fetchone() == (2,)
        assert connection.bulkhead.in_use == 1
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM no_such_table")
    assert connection.bulkhead.in_use == 0


def test_a_circuit_without_a_time_limit_is_warned_about_once(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    options = bulkhead.options(name="blind", tickets=1)
    with caplog.at_level(logging.WARNING, "bulkhead"):
        for _ in range(3):
            psycopg.connect(postgres_server.dsn, **options).close()
    lines = [record.getMessage() for record in caplog.records if "postgres:blind" in record.getMessage()]
    assert len(lines) == 1
    assert "call_timeout" in lines[0]
    caplog.clear()
    connected(postgres_server.dsn, name="seeing-1", tickets=1, circuit_breaker=False).close()
    connected(postgres_server.dsn, name="seeing-2", tickets=1, call_timeout=5).close()
    assert not [record for record in caplog.records if "seeing" in record.getMessage()]

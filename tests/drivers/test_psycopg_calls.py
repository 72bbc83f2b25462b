"""Statements of every shape hold one ticket for as long as the server is at work, and give it back however they end."""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from drivers.psycopg_harness import connected
from psycopg.pq import TransactionStatus

import bulkhead
from adapters.psycopg import PsycopgCircuitOpenError, PsycopgResourceBusyError
from bulkhead import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Eventually

    from bulkhead.testing import PostgresServer

numbers = itertools.count(1)
MANY = "SELECT generate_series(1, 100000)"


@pytest.fixture
def connect(postgres_server: PostgresServer) -> Iterator[Callable[..., Any]]:
    """`connect(tickets=1, …)`: an autocommit connection with these options; closed after the test."""
    made: list[Any] = []

    def connect(**options: Any) -> Any:
        options.setdefault("name", f"calls-{next(numbers)}")
        options.setdefault("call_timeout", 20)
        made.append(connected(postgres_server.dsn, **options))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def outcomes(connection: Any) -> tuple[float, float]:
    """How many failures and how many ignored calls there were."""
    totals = connection.bulkhead.totals()
    return totals["calls", "failure"], totals["calls", "ignored"]


def test_a_stream_holds_its_ticket_until_the_last_row(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    stream = connection.cursor().stream("SELECT generate_series(1, 5)")
    assert next(stream) == (1,)
    assert connection.bulkhead.in_use == 1
    assert [row[0] for row in stream] == [2, 3, 4, 5]
    assert connection.bulkhead.in_use == 0
    assert outcomes(connection) == (0, 0)


def test_an_abandoned_stream_gives_back_and_its_own_cancel_is_no_failure(connect: Callable[..., Any]) -> None:
    """Known fault 44. psycopg cancels what is left: 57014, which counts otherwise."""
    connection = connect(tickets=1, error_threshold=1, error_timeout=5, success_threshold=1)
    for _ in range(3):
        for _row in connection.cursor().stream(MANY):
            break
        gc.collect()
        assert connection.bulkhead.in_use == 0
        assert connection.execute("SELECT 2").fetchone() == (2,)
    assert connection.bulkhead.state == "closed"


def test_a_cancel_by_the_client_is_no_failure_and_a_statement_timeout_is_one(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    timer = threading.Timer(0.2, connection.cancel)
    timer.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pg_sleep(9)")
    timer.join()
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


def test_copy_in_and_out_hold_one_ticket_each(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    connection.execute("CREATE TEMPORARY TABLE copied (n int)")
    with connection.cursor().copy("COPY copied FROM STDIN") as copy:
        for number in range(100):
            copy.write_row((number,))
        assert connection.bulkhead.in_use == 1
    assert connection.bulkhead.in_use == 0
    with connection.cursor().copy("COPY copied TO STDOUT") as copy:
        assert len(list(copy.rows())) == 100
    assert connection.bulkhead.in_use == 0

    def broken_off(statement: str, act: Callable[[Any], object], *, then: int = 0) -> None:
        with connection.cursor().copy(statement) as copy:
            act(copy)
            1 // then  # psycopg cancels the rest

    with pytest.raises(ZeroDivisionError):
        broken_off("COPY copied FROM STDIN", lambda copy: copy.write_row((1,)))
    with pytest.raises(ZeroDivisionError):
        broken_off(f"COPY ({MANY}) TO STDOUT", lambda copy: copy.read())
    assert connection.bulkhead.in_use == 0
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        broken_off("COPY copied FROM STDIN", lambda copy: copy.write("no number\n"), then=1)
    assert connection.bulkhead.in_use == 0
    assert outcomes(connection)[0] == 0
    assert connection.execute("SELECT count(*) FROM copied").fetchone() == (100,)


def test_executemany_is_one_call(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    connection.execute("CREATE TEMPORARY TABLE many (n int)")
    with Successes(connection) as seen:
        connection.cursor().executemany("INSERT INTO many VALUES (%s)", [(n,) for n in range(500)])
    assert len(seen) == 1
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO many VALUES (%s) RETURNING n", [(7,), (8,)], returning=True)
    assert cursor.fetchone() == (7,)
    assert connection.bulkhead.in_use == 0


class Successes:
    def __init__(self, connection: Any) -> None:
        self._identifier = connection.bulkhead.identifier
        self._seen: list[events.Event] = []

    def __enter__(self) -> list[events.Event]:
        self._subscription = bulkhead.subscribe(
            lambda event: self._seen.append(event) if event.identifier == self._identifier else None, events.Success
        )
        return self._seen

    def __exit__(self, *_: object) -> None:
        self._subscription.cancel()


def test_a_pipeline_holds_its_ticket_while_answers_are_due(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    with connection.pipeline() as pipeline:
        cursors = [connection.execute("SELECT %s", [number]) for number in range(3)]
        assert connection.bulkhead.in_use == 1
        assert [cursor.fetchone() for cursor in cursors] == [(0,), (1,), (2,)]
        connection.execute("SELECT 2")
        pipeline.sync()
        assert connection.bulkhead.in_use == 0
    assert connection.bulkhead.in_use == 0
    with pytest.raises(psycopg.errors.UndefinedTable), connection.pipeline():  # noqa: PT012  raised by either
        connection.execute("SELECT * FROM no_such_table")
        connection.execute("SELECT 2")
    assert connection.bulkhead.in_use == 0
    assert outcomes(connection)[0] == 0
    assert connection.execute("SELECT 2").fetchone() == (2,)


def test_a_pipeline_is_refused_at_its_first_statement_and_left_clean(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    connection.bulkhead.open()
    with pytest.raises(PsycopgCircuitOpenError), connection.pipeline():
        connection.execute("SELECT 2")
    with pytest.raises(PsycopgCircuitOpenError):
        connection.cursor().executemany("SELECT %s", [(1,), (2,)])
    connection.bulkhead.close()
    with connection.pipeline():
        cursor = connection.execute("SELECT 2")
    assert cursor.fetchone() == (2,)


def test_server_cursors_work_and_hold_no_ticket_between_fetches(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    with connection.transaction(), connection.cursor("named") as cursor:
        cursor.execute("SELECT generate_series(1, 1000)")
        assert len(cursor.fetchmany(10)) == 10
        assert connection.bulkhead.in_use == 0
        cursor.scroll(5)
        assert cursor.fetchone() == (16,)
        assert sum(1 for _ in cursor) == 984
        connection.bulkhead.open()
        with pytest.raises(PsycopgCircuitOpenError):
            cursor.fetchone()
    connection.bulkhead.close()
    assert connection.execute("SELECT 2").fetchone() == (2,)


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
    connection = connect(tickets=1, call_timeout=0.2)
    connection.execute("LISTEN heard")
    sender = connect(tickets=1)
    timer = threading.Timer(0.5, sender.execute, ["NOTIFY heard, 'late'"])
    timer.start()
    notify = next(connection.notifies())
    timer.join()
    assert notify.payload == "late"
    assert connection.bulkhead.in_use == 0
    assert outcomes(connection) == (0, 0)
    if "timeout" in psycopg.Connection.notifies.__code__.co_varnames:
        assert list(connection.notifies(timeout=0.3)) == []
        assert outcomes(connection) == (0, 0)
    assert connection.execute("SELECT 2").fetchone() == (2,)


def test_closed_while_active_gives_back(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1)
    stream = connection.cursor().stream(MANY)
    next(stream)
    assert connection.bulkhead.in_use == 1
    connection.close()
    assert connection.bulkhead.in_use == 0
    stream.close()
    assert outcomes(connection)[0] == 0


def test_dropped_while_active_gives_back(postgres_server: PostgresServer, eventually: Eventually) -> None:
    options = bulkhead.options(name="dropped", tickets=1, call_timeout=20)
    held: list[Any] = [psycopg.connect(postgres_server.dsn, autocommit=True, **options)]
    resource = held[0].bulkhead
    held[0].wait(held[0].cursor()._stream_send_gen(MANY, **_size()))
    assert resource.in_use == 1
    with pytest.warns(ResourceWarning):
        held.clear()
    gc.collect()
    eventually(lambda: resource.in_use == 0)


def _size() -> dict[str, int]:
    """An argument of 3.2."""
    return {"size": 1} if "size" in psycopg.Cursor._stream_send_gen.__code__.co_varnames else {}


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
    thread = threading.Thread(target=one.execute, args=["SELECT pg_sleep(0.6)"])
    thread.start()
    eventually(lambda: one.bulkhead.in_use == 1)
    with pytest.raises(PsycopgResourceBusyError) as caught:
        two.execute("SELECT 2")
    assert caught.value.identifier == "postgres:shared-by-two"
    thread.join()
    assert two.execute("SELECT 2").fetchone() == (2,)


def test_a_stream_settles_the_probe_at_its_first_row(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=2, error_threshold=1, error_timeout=0.2, success_threshold=1)
    connection.bulkhead.open()
    connection.bulkhead.reset()
    with pytest.raises(psycopg.errors.DiskFull):
        connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$")
    time.sleep(0.25)
    stream = connection.cursor().stream(MANY)
    next(stream)
    assert connection.bulkhead.state == "closed"
    assert connection.bulkhead.in_use == 1
    stream.close()
    assert connection.bulkhead.in_use == 0


def test_a_slow_reader_is_no_slow_server(connect: Callable[..., Any]) -> None:
    """call_timeout is for each answer of a stream, not for what its reader does between two rows."""
    connection = connect(tickets=1, call_timeout=0.3)
    rows = 0
    for _row in connection.cursor().stream("SELECT generate_series(1, 3)"):
        rows += 1
        time.sleep(0.25)
    assert rows == 3
    assert outcomes(connection) == (0, 0)
    assert connection.bulkhead.in_use == 0


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

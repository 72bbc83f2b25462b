"""Streams, COPY, pipelines and cursors hold one ticket for as long as the server is at work, however they end."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from drivers.psycopg_harness import outcomes
from polling import until_due

import bulkhead
from adapters.psycopg import PsycopgCircuitOpenError
from bulkhead import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Eventually

    from bulkhead.testing import PostgresServer

MANY = "SELECT generate_series(1, 100000)"


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


def test_a_stream_settles_the_probe_at_its_first_row(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=2, error_threshold=1, error_timeout=1.0, success_threshold=1)
    connection.bulkhead.open()
    connection.bulkhead.reset()
    with pytest.raises(psycopg.errors.DiskFull):
        connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$")
    until_due(connection.bulkhead)
    stream = connection.cursor().stream(MANY)
    next(stream)
    assert connection.bulkhead.state == "closed"
    assert connection.bulkhead.in_use == 1
    stream.close()
    assert connection.bulkhead.in_use == 0


def test_a_slow_reader_is_no_slow_server(connect: Callable[..., Any]) -> None:
    """call_timeout is for each answer of a stream, not for what its reader does between two rows."""
    connection = connect(tickets=1, call_timeout=1.0)
    rows = 0
    for _row in connection.cursor().stream("SELECT generate_series(1, 3)"):
        rows += 1
        time.sleep(0.6)
    assert rows == 3
    assert outcomes(connection) == (0, 0)
    assert connection.bulkhead.in_use == 0

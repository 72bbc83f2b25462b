"""A connection that is lost in the middle of something is one failure, whatever was under way and is cleared up after."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from drivers.psycopg_harness import connected

import bulkhead

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Eventually

    from bulkhead.testing import PostgresServer

numbers = itertools.count(1)
MANY = "SELECT generate_series(1, 500000)"
COPY_OUT, COPY_IN = f"COPY ({MANY}) TO STDOUT", "COPY lost FROM STDIN"


def statement(connection: Any, lose: Callable[[], None]) -> None:
    lose()
    connection.execute("SELECT 2")


def stream(connection: Any, lose: Callable[[], None]) -> None:
    rows = connection.cursor().stream(MANY)
    next(rows)
    lose()
    for _ in rows:
        pass


def copy_out(connection: Any, lose: Callable[[], None]) -> None:
    with connection.cursor().copy(COPY_OUT) as copy:
        copy.read()
        lose()
        for _ in copy:
            pass


def copy_in(connection: Any, lose: Callable[[], None]) -> None:
    connection.execute("CREATE TEMPORARY TABLE lost (n int)")
    with connection.cursor().copy(COPY_IN) as copy:
        copy.write("1\n")
        lose()
        for _ in range(200_000):
            copy.write("1\n")


def pipeline(connection: Any, lose: Callable[[], None]) -> None:
    with connection.pipeline():
        connection.execute("SELECT 2")
        lose()
        connection.execute("SELECT 3")
        connection.execute("SELECT 4")


def many(connection: Any, lose: Callable[[], None]) -> None:
    lose()
    connection.cursor().executemany("SELECT %s", [(2,), (3,)])


def transaction(connection: Any, lose: Callable[[], None]) -> None:
    with connection.transaction():
        connection.execute("SELECT 2")
        lose()
        connection.execute("SELECT 3")


def end_of_transaction(connection: Any, lose: Callable[[], None]) -> None:
    with connection.transaction():
        connection.execute("SELECT 2")
        lose()


def server_cursor(connection: Any, lose: Callable[[], None]) -> None:
    with connection.transaction(), connection.cursor("named") as cursor:
        cursor.execute(MANY)
        cursor.fetchone()
        lose()
        cursor.fetchall()


def statement_and_rollback(connection: Any, lose: Callable[[], None]) -> None:
    connection.autocommit = False
    lose()
    try:
        connection.execute("SELECT 2")
    finally:
        connection.rollback()


def terminate(dsn: str, pid: int, eventually: Eventually) -> None:
    """The server ends one of its connections, and that is over when this returns."""
    with psycopg.connect(dsn, autocommit=True) as killer:
        killer.execute("SELECT pg_terminate_backend(%s)", [pid])
        eventually(lambda: killer.execute("SELECT pid FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() is None)


SHAPES = [
    statement,
    stream,
    copy_out,
    copy_in,
    pipeline,
    many,
    transaction,
    end_of_transaction,
    server_cursor,
    statement_and_rollback,
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_one_loss_is_one_failure(
    shape: Callable[[Any, Callable[[], None]], None], postgres_server: PostgresServer, eventually: Eventually
) -> None:
    """Two failures of one loss would open a circuit of two for one connection that an administrator ended."""
    connection = connected(postgres_server.dsn, name=f"losses-{next(numbers)}", tickets=1, call_timeout=20)
    resource = connection.bulkhead
    pid = connection.info.backend_pid
    with pytest.raises(psycopg.Error):
        shape(connection, lambda: terminate(postgres_server.dsn, pid, eventually))
    connection.close()
    assert resource.totals()["calls", "failure"] == 1
    assert resource.in_use == 0


@pytest.mark.anyio
async def test_one_loss_of_an_asynchronous_stream_is_one_failure(
    postgres_server: PostgresServer, eventually: Eventually
) -> None:
    options = bulkhead.options(name=f"losses-{next(numbers)}", tickets=1, call_timeout=20)
    connection: Any = await psycopg.AsyncConnection.connect(postgres_server.dsn, autocommit=True, **options)
    resource = connection.bulkhead
    rows = connection.cursor().stream(MANY)
    await anext(rows)
    terminate(postgres_server.dsn, connection.info.backend_pid, eventually)
    with pytest.raises(psycopg.Error):
        async for _ in rows:
            pass
    await connection.close()
    assert resource.totals()["calls", "failure"] == 1
    assert resource.in_use == 0

"""Which errors open the circuit, each by the error that a real server sends, and where they are heard of."""

from __future__ import annotations

import gc
import itertools
import sqlite3
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from polling import until_due
from sqlalchemy import create_engine, event, text

import bulkhead
from adapters._sqlalchemy_outcomes import outcome
from bulkhead import events
from bulkhead.adapter import Outcome, ResourceBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy.engine import Engine

    from bulkhead.adapter import Resource
    from bulkhead.testing import PostgresServer

numbers = itertools.count()
Make = "Callable[..., tuple[Engine, Resource]]"


@pytest.fixture
def make(postgres_server: PostgresServer) -> Iterator[Callable[..., tuple[Engine, Resource]]]:
    made: list[Engine] = []

    def engine(url: str = "", *, engine_options: dict[str, Any] | None = None, **options: Any) -> tuple[Engine, Any]:
        name = f"outcomes-{next(numbers)}"
        options = {"error_threshold": 2, "error_timeout": 30, "success_threshold": 1} | options
        url = url or postgres_server.sqlalchemy_url
        made.append(create_engine(url, **bulkhead.options(name=name, **options), **(engine_options or {})))
        return made[-1], bulkhead.find(f"sql:{name}")

    yield engine
    for one in made:
        one.dispose()


def failures(resource: Resource) -> float:
    return resource.totals().get(("calls", "failure"), 0)


def error_of(run: Callable[[], object]) -> Any:
    with pytest.raises(sa.exc.DBAPIError) as caught:
        run()
    return caught.value


def run(engine: Engine, statement: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar()


@pytest.mark.parametrize(
    "statement",
    ["SELECT bad syntax", "SELECT * FROM nowhere", "SELECT 1/0", "SELECT 'x'::int", "INSERT INTO pg_class VALUES (1)"],
)
def test_sql_errors_never_open_the_circuit_and_are_not_tagged(make: Any, statement: str) -> None:
    """MY-04, MY-10, AR-06, AR-12, known fault 28."""
    engine, resource = make()
    for _ in range(5):
        error = error_of(lambda: run(engine, statement))
        assert not hasattr(error, "bulkhead_identifier")
    assert resource.state == "closed"
    assert failures(resource) == 0


@pytest.mark.parametrize("state", ["53200", "53300", "57P01", "57P03", "58030", "08006", "57014"])
def test_states_that_mean_trouble_open_the_circuit_and_are_tagged(make: Any, state: str) -> None:
    """MY-08, AR-10: the error carries the identifier. MY-27, AR-25: what rejections show is the driver's error."""
    engine, resource = make()
    for _ in range(2):
        error = error_of(lambda: run(engine, f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$"))
        assert error.bulkhead_identifier == resource.identifier
        assert error.orig.bulkhead_identifier == resource.identifier
    assert resource.state == "open"
    with pytest.raises(sa.exc.OperationalError) as refused:
        run(engine, "SELECT 1")
    assert isinstance(refused.value.__cause__, psycopg.Error)


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "25P03", "57P05", "XX000", "23505"])
def test_states_of_the_callers_making_do_not_count(make: Any, state: str) -> None:
    engine, resource = make()
    for _ in range(3):
        error_of(lambda: run(engine, f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$"))
    assert failures(resource) == 0


def test_a_refused_connect_opens_the_circuit(make: Any) -> None:
    """Known fault 28, second half; scope connection."""
    engine, resource = make("postgresql+psycopg://postgres@127.0.0.1:1/postgres")
    heard: list[Any] = []
    with bulkhead.subscribe(heard.append, events.StateChange):
        for _ in range(2):
            error = error_of(engine.connect)
            assert error.bulkhead_identifier == resource.identifier
    assert resource.state == "open"
    assert [(one.driver, one.scope, one.new) for one in heard] == [("sqlalchemy", "connection", "open")]
    with pytest.raises(bulkhead.CircuitOpenError):
        engine.connect()


def test_a_wrong_database_or_role_does_not_count(make: Any, postgres_server: PostgresServer) -> None:
    where = f"{postgres_server.host}:{postgres_server.port}"
    for url in (f"postgres@{where}/no_such_database", f"no_such_role@{where}/postgres"):
        engine, resource = make(f"postgresql+psycopg://{url}")
        for _ in range(3):
            error_of(engine.connect)
        assert failures(resource) == 0


def test_an_ended_backend_counts_and_its_state_change_names_scope_and_driver(
    make: Any, postgres_server: PostgresServer
) -> None:
    """MY-09, AR-11."""
    engine, resource = make(error_threshold=1, engine_options={"pool_size": 1})
    heard: list[Any] = []
    with (
        bulkhead.subscribe(heard.append, events.StateChange),
        psycopg.connect(postgres_server.dsn, autocommit=True) as other,
        engine.connect() as connection,
    ):
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        error = error_of(lambda: connection.execute(text("SELECT 1")))
        assert error.connection_invalidated
        assert error.bulkhead_identifier == resource.identifier
    assert [(one.driver, one.scope, one.new) for one in heard] == [("sqlalchemy", "query", "open")]


def test_a_failed_commit_counts_once(make: Any, postgres_server: PostgresServer) -> None:
    engine, resource = make(error_threshold=9)
    with psycopg.connect(postgres_server.dsn, autocommit=True) as other, engine.connect() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        error = error_of(connection.commit)
        assert error.bulkhead_identifier == resource.identifier
    assert failures(resource) == 1


def test_a_commit_that_the_server_answers_with_no_does_not_count(make: Any) -> None:
    engine, resource = make()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS deferred"))
        connection.execute(
            text("CREATE TABLE deferred (n int, CONSTRAINT once UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)")
        )
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO deferred VALUES (1), (1)"))
        error = error_of(connection.commit)
        assert isinstance(error, sa.exc.IntegrityError)
    assert failures(resource) == 0


@pytest.mark.filterwarnings("ignore:.*ServerCursor.*:ResourceWarning")  # SQLAlchemy leaves it when a connection is lost
def test_a_failed_fetch_of_a_streamed_result_counts_once(make: Any, postgres_server: PostgresServer) -> None:
    engine, resource = make(error_threshold=9)
    with psycopg.connect(postgres_server.dsn, autocommit=True) as other, engine.connect() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        rows = connection.execution_options(stream_results=True, max_row_buffer=1).execute(
            text("SELECT generate_series(1, 100000)")
        )
        assert rows.fetchone() == (1,)
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        error = error_of(rows.fetchall)
        assert error.bulkhead_identifier == resource.identifier
    assert failures(resource) == 1
    assert resource.in_use == 0
    del rows, error
    gc.collect()


def test_a_ping_is_never_refused_and_its_failure_counts(make: Any, postgres_server: PostgresServer) -> None:
    """MY-25 as the table of deviations says; a refused ping would make the pool drop a healthy connection."""
    engine, resource = make(error_threshold=9, engine_options={"pool_size": 1, "pool_pre_ping": True})
    with engine.connect() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
    resource.open()
    for _ in range(3):
        with engine.connect() as connection, pytest.raises(bulkhead.CircuitOpenError):
            connection.execute(text("SELECT 1"))
    resource.close()
    assert run(engine, "SELECT pg_backend_pid()") == pid
    assert failures(resource) == 0
    with psycopg.connect(postgres_server.dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    assert run(engine, "SELECT 1") == 1  # on a new connection
    assert failures(resource) == 1


def test_a_ping_on_a_closed_connection_does_not_count(make: Any) -> None:
    """MY-24."""
    engine, resource = make(error_threshold=1, engine_options={"pool_size": 1, "pool_pre_ping": True})
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        raw: Any = connection.connection.driver_connection
    raw.close()
    assert run(engine, "SELECT 1") == 1
    assert resource.state == "closed"


def test_waiting_for_the_pool_is_busy_here_and_not_a_failure_there(make: Any) -> None:
    """Known fault 22."""
    engine, resource = make(error_threshold=1, engine_options={"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.05})
    with engine.connect():
        for _ in range(3):
            with pytest.raises(sa.exc.TimeoutError):
                engine.connect()
    assert resource.state == "closed"
    assert outcome(sa.exc.TimeoutError(), resource.options) is Outcome.IGNORED


def test_sqlite_waiting_for_a_lock_counts_and_a_missing_table_does_not(make: Any, tmp_path: Path) -> None:
    engine, resource = make(f"sqlite:///{tmp_path}/a.db", engine_options={"connect_args": {"timeout": 0.01}})
    for _ in range(3):
        error_of(lambda: run(engine, "SELECT * FROM nowhere"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (n int UNIQUE)"))
        connection.execute(text("INSERT INTO t VALUES (1)"))
    for _ in range(3):
        error_of(lambda: run(engine, "INSERT INTO t VALUES (1)"))
    assert failures(resource) == 0
    with sqlite3.connect(tmp_path / "a.db") as locker:
        locker.execute("BEGIN EXCLUSIVE")
        for _ in range(2):
            error_of(lambda: run(engine, "SELECT * FROM t"))
        locker.rollback()
    locker.close()
    assert resource.state == "open"


def test_sqlite_without_its_folder_cannot_connect_and_that_counts(make: Any, tmp_path: Path) -> None:
    engine, resource = make(f"sqlite:///{tmp_path}/no/such/folder.db")
    for _ in range(2):
        error_of(engine.connect)
    assert resource.state == "open"


def test_is_failure_is_asked_first_with_the_drivers_own_error(make: Any) -> None:
    seen: list[type[BaseException]] = []

    def judge(error: BaseException) -> bool | None:
        seen.append(type(error))
        return isinstance(error, psycopg.errors.UndefinedTable)

    engine, resource = make(is_failure=judge)
    for _ in range(2):
        error_of(lambda: run(engine, "SELECT * FROM nowhere"))
    assert resource.state == "open"
    assert seen == [psycopg.errors.UndefinedTable] * 2


def test_a_refusal_of_the_adapter_below_is_nobodys_failure(make: Any) -> None:
    _, resource = make()
    assert outcome(sa.exc.OperationalError(None, None, ResourceBusyError("a:b", None, "tenant")), resource.options) is (
        Outcome.IGNORED
    )


class OperationalError(Exception):
    """As an unknown driver names it."""


class DriverOfMySQL(OperationalError):
    pass


DriverOfMySQL.__module__ = "pymysql.err"


class Coded(OperationalError):
    """As psycopg2 and SQLAlchemy's adapter for asyncpg carry their states."""

    def __init__(self, state: str) -> None:
        self.pgcode = state


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DriverOfMySQL(1040, "Too many connections"), Outcome.FAILURE),
        (DriverOfMySQL(2013, "Lost connection"), Outcome.FAILURE),
        (DriverOfMySQL(1205, "Lock wait timeout"), Outcome.IGNORED),
        (DriverOfMySQL(1045, "Access denied"), Outcome.IGNORED),
        (DriverOfMySQL(1146, "no such table"), Outcome.SUCCESS),
        (DriverOfMySQL(2014, "Commands out of sync"), Outcome.IGNORED),
        (DriverOfMySQL("gone"), Outcome.FAILURE),
        (Coded("57P01"), Outcome.FAILURE),
        (Coded("42601"), Outcome.SUCCESS),
        (OperationalError("gone"), Outcome.FAILURE),
        (ConnectionRefusedError(), Outcome.FAILURE),
        (TimeoutError(), Outcome.FAILURE),
        (TypeError("a bug of the caller's"), Outcome.IGNORED),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), Outcome.IGNORED),
    ],
)
def test_errors_of_other_drivers(error: Exception, expected: Outcome) -> None:
    """Known fault 29b: a table per driver."""
    assert outcome(error, bulkhead.Options(tickets=1)) is expected
    wrapped = sa.exc.OperationalError("SELECT 1", None, error)
    assert outcome(wrapped, bulkhead.Options(tickets=1)) is expected


def test_a_listener_of_the_users_may_replace_the_error(make: Any) -> None:
    engine, resource = make(error_threshold=1)

    @event.listens_for(engine, "handle_error")
    def replace(context: sa.engine.ExceptionContext) -> Exception:
        return LookupError("the user's")

    with pytest.raises(LookupError):
        run(engine, "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53200'; END $$")
    assert resource.state == "open"


def test_one_failing_half_open_probe_opens_again_and_success_closes(make: Any) -> None:
    engine, resource = make(error_threshold=1, error_timeout=1.5)
    failing = "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53200'; END $$"
    error_of(lambda: run(engine, failing))
    assert resource.state == "open"
    until_due(resource)
    error_of(lambda: run(engine, failing))
    assert resource.state == "open"
    with pytest.raises(bulkhead.CircuitOpenError):
        run(engine, "SELECT 1")
    until_due(resource)
    assert run(engine, "SELECT 1") == 1
    assert resource.state == "closed"

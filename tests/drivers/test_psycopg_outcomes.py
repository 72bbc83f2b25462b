"""What psycopg's errors mean: failure of the server, answer of it, or nothing."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg_pool
import pytest
from drivers.psycopg_harness import connected
from psycopg import errors as e

import bulkhead
from adapters.psycopg import (
    PsycopgCallTimeoutError,
    PsycopgCircuitOpenError,
    PsycopgResourceBusyError,
    PsycopgUnknownTenantError,
    outcome,
)
from bulkhead.adapter import Options, Outcome

if TYPE_CHECKING:
    from bulkhead.testing import PostgresServer

F, N, O = Outcome.FAILURE, Outcome.IGNORED, Outcome.SUCCESS  # noqa: E741  as in the table of the docs
OPTIONS = Options(name="x", tickets=1)
STATES = {
    "08000": F,
    "08006": F,
    "53000": F,
    "53100": F,
    "53200": F,
    "53300": F,
    "58000": F,
    "58030": F,
    "57P01": F,
    "57P02": F,
    "57P03": F,
    "57014": F,
    "57P04": N,
    "57P05": N,
    "55P03": N,
    "25P03": N,
    "XX000": N,
    "28P01": N,
    "28000": N,
    "3D000": N,
    "40001": O,
    "40P01": O,
    "23505": O,
    "22012": O,
    "42601": O,
    "42P01": O,
    "P0001": O,
    "0A000": O,
}


@pytest.mark.parametrize(("state", "expected"), STATES.items())
def test_states_that_a_server_sends(postgres_server: PostgresServer, state: str, expected: Outcome) -> None:
    """MY-04, AR-06, known faults 28, 29b."""
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$")
    assert caught.value.sqlstate == state
    assert outcome(caught.value, OPTIONS) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), F),
        (psycopg.OperationalError("consuming input failed: could not receive data"), F),
        (psycopg.OperationalError("connection socket closed"), F),
        (e.ConnectionTimeout("connection timeout expired"), F),
        (psycopg.DatabaseError("server closed the connection unexpectedly"), F),
        (PsycopgCallTimeoutError("x"), F),
        (psycopg.OperationalError("the connection is closed"), N),
        (psycopg.OperationalError("sending query failed: another command is already in progress\n"), N),
        (psycopg.OperationalError("failed to enter pipeline mode"), N),
        (psycopg.OperationalError("the connection is lost"), N),
        (e.QueryCanceled("COPY from stdin failed: error from Python: ValueError - no"), N),
        (e.QueryCanceled("canceling statement due to statement timeout"), F),
        (e.PipelineAborted("pipeline aborted"), N),
        (psycopg_pool.PoolTimeout("couldn't get a connection"), N),
        (psycopg_pool.TooManyRequests("queue"), N),
        (psycopg_pool.PoolClosed("closed"), N),
        (psycopg.InterfaceError("the cursor is closed"), N),
        (psycopg.ProgrammingError("the query has 1 placeholder but 0 parameters were passed"), N),
        (psycopg.NotSupportedError("COPY cannot be used in pipeline mode"), N),
        (TypeError("the user's own"), N),
        (ConnectionError("the user's own iterator"), N),
    ],
    ids=repr,
)
def test_errors_without_a_state(error: Exception, expected: Outcome) -> None:
    """Known faults 21, 22 (waiting for a local pool), MY-24, AR-11."""
    assert outcome(error, OPTIONS) is expected


def _connect_error(dsn: str, **given: Any) -> psycopg.OperationalError:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(dsn, **given)
    return caught.value


def test_failed_connects(postgres_server: PostgresServer) -> None:
    """Known fault 28: the caller's mistakes say nothing about the server. A refused connection does."""
    dsn = postgres_server.dsn
    assert outcome(_connect_error(dsn, dbname="nowhere"), OPTIONS) is N
    assert outcome(_connect_error(dsn, user="nobody_known"), OPTIONS) is N
    assert outcome(_connect_error(dsn, port=1), OPTIONS) is F
    assert outcome(_connect_error(dsn, host="no-such-host.invalid"), OPTIONS) is F
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE ROLE full_role LOGIN CONNECTION LIMIT 0")
        admin.execute("CREATE ROLE no_login NOLOGIN")
        try:
            assert outcome(_connect_error(dsn, user="full_role"), OPTIONS) is F
            assert outcome(_connect_error(dsn, user="no_login"), OPTIONS) is N
        finally:
            admin.execute("DROP ROLE full_role")
            admin.execute("DROP ROLE no_login")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('connection failed: FATAL:  password authentication failed for user "x"', N),
        ('connection failed: FATAL:  no pg_hba.conf entry for host "1.2.3.4", user "x"', N),
        ("connection failed: fe_sendauth: no password supplied", N),
        ('connection failed: FATAL:  permission denied for database "x"', N),
        ("connection failed: FATAL:  sorry, too many clients already", F),
        ("connection failed: FATAL:  the database system is starting up", F),
        ("connection failed: FATAL:  the database system is in recovery mode", F),
    ],
)
def test_texts_of_failed_connects(text: str, expected: Outcome) -> None:
    """Without a SQLSTATE there is nothing else to tell them apart by."""

    class Finished:
        needs_password = used_password = False

    assert outcome(psycopg.OperationalError(text, pgconn=Finished()), OPTIONS) is expected  # type: ignore[arg-type]


def test_with_several_hosts_one_that_is_down_is_a_failure(postgres_server: PostgresServer) -> None:
    host, port = postgres_server.host, postgres_server.port
    both = f"host={host},{host} port={port},{port} user=postgres dbname=nowhere"
    assert outcome(_connect_error(both), OPTIONS) is N
    if tuple(map(int, psycopg.__version__.split(".")[:2])) >= (3, 2):  # 3.1 tells of the last host only
        one_down = f"host={host},{host} port=1,{port} user=postgres dbname=nowhere"
        assert outcome(_connect_error(one_down), OPTIONS) is F


def test_is_failure_overrules_the_table(postgres_server: PostgresServer) -> None:
    circuit = {"error_threshold": 1, "error_timeout": 5, "success_threshold": 1, "is_failure": e.UniqueViolation}
    with connected(postgres_server.dsn, name="overruled", tickets=1, call_timeout=5, **circuit) as connection:
        connection.execute("CREATE TEMPORARY TABLE once (n int PRIMARY KEY)")
        connection.execute("INSERT INTO once VALUES (2)")
        with pytest.raises(e.UniqueViolation) as caught:
            connection.execute("INSERT INTO once VALUES (2)")
        assert caught.value.bulkhead_identifier == "postgres:overruled"  # type: ignore[attr-defined]
        assert connection.bulkhead.state == "open"


@pytest.mark.parametrize(
    ("kind", "arguments", "ours"),
    [
        (PsycopgCircuitOpenError, ("postgres:x", "acme", 1.5), bulkhead.CircuitOpenError),
        (PsycopgResourceBusyError, ("postgres:x", "acme", "tenant"), bulkhead.ResourceBusyError),
        (PsycopgUnknownTenantError, ("postgres:x", None), bulkhead.UnknownTenantError),
    ],
)
def test_rejections_are_operational_errors_and_can_be_pickled(kind: Any, arguments: Any, ours: type[Exception]) -> None:
    error = kind(*arguments)
    assert isinstance(error, psycopg.OperationalError)
    assert isinstance(error, ours)
    assert error.sqlstate is None
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  our own
    assert (type(copy), copy.args, str(copy)) == (type(error), error.args, str(error))
    assert type(error).__name__ not in dir(e)

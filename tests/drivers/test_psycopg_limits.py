"""Time limits at the client: call_timeout, half_open_resource_timeout, and what is left of the connection."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from drivers.psycopg_harness import connected
from polling import until_due

from adapters._psycopg_limits import Deadline, limited
from adapters.psycopg import PsycopgCallTimeoutError, PsycopgCircuitOpenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import RunPython

    from bulkhead.testing import PostgresServer

numbers = itertools.count(1)
QUICK: dict[str, Any] = {
    "error_threshold": 3,
    "error_timeout": 0.4,
    "error_threshold_timeout": 10,
    "success_threshold": 1,
}
FAIL = "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$"


@pytest.fixture
def connect(postgres_server: PostgresServer) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def connect(**options: Any) -> Any:
        options.setdefault("name", f"limits-{next(numbers)}")
        made.append(connected(postgres_server.dsn, **options))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def _in_pipeline(connection: Any) -> None:
    with connection.pipeline():
        connection.execute("SELECT pg_sleep(9)")


def _in_transaction(connection: Any) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_sleep(9)")


def _by_cursor(connection: Any) -> None:
    with connection.transaction(), connection.cursor("named") as cursor:
        cursor.execute("SELECT pg_sleep(9)")
        cursor.fetchone()


LATE: dict[str, Callable[[Any], object]] = {
    "execute": lambda connection: connection.execute("SELECT pg_sleep(9)"),
    "executemany": lambda connection: connection.cursor().executemany("SELECT pg_sleep(%s)", [(0,), (9,)]),
    "stream": lambda connection: list(connection.cursor().stream("SELECT pg_sleep(9)")),
    "copy": lambda connection: connection.cursor().copy("COPY (SELECT pg_sleep(9)) TO STDOUT").__enter__().read(),
    "pipeline": _in_pipeline,
    "transaction": _in_transaction,
    "server cursor": _by_cursor,
}


@pytest.mark.parametrize("shape", LATE)
def test_a_late_statement_is_ended_with_its_connection(connect: Callable[..., Any], shape: str) -> None:
    """MY-05, MY-26, AT-02: a read time-out, which psycopg does not have."""
    connection = connect(tickets=1)
    connection.bulkhead.update(call_timeout=0.5)  # connecting may take longer
    began = time.monotonic()
    with pytest.raises(PsycopgCallTimeoutError) as caught:
        LATE[shape](connection)
    assert 0.45 < time.monotonic() - began < 4
    assert isinstance(caught.value, psycopg.OperationalError)
    assert caught.value.bulkhead_identifier == connection.bulkhead.identifier  # type: ignore[attr-defined]
    assert connection.closed
    assert connection.broken
    assert connection.bulkhead.in_use == 0
    assert connection.bulkhead.totals()["calls", "failure"] == 1


def test_a_commit_that_hangs_is_ended_too(connect: Callable[..., Any], postgres_server: PostgresServer) -> None:
    connection = connect(tickets=1)
    connection.autocommit = False
    connection.execute("SELECT 2")
    connection.bulkhead.update(call_timeout=0.5)
    with postgres_server.paused():
        began = time.monotonic()
        with pytest.raises(PsycopgCallTimeoutError):
            connection.commit()
        assert time.monotonic() - began < 4
    assert connection.bulkhead.totals()["calls", "failure"] == 1


def test_calls_within_their_time_are_left_alone(connect: Callable[..., Any]) -> None:
    connection = connect(tickets=1, call_timeout=5)
    for _ in range(3):
        assert connection.execute("SELECT pg_sleep(0.15)").fetchone()
        assert sum(1 for _ in connection.cursor().stream("SELECT generate_series(1, 1000)")) == 1000
    assert not connection.closed


def test_a_probe_has_a_limit_of_its_own(connect: Callable[..., Any]) -> None:
    """MY-26, AT-03, known fault 9."""
    limits = {"tickets": 2, "call_timeout": 5, "half_open_resource_timeout": 0.6, "error_threshold": 1}
    connection, spare = (connect(**QUICK | {"name": "probe-limit"} | limits) for _ in range(2))
    with pytest.raises(psycopg.errors.DiskFull):
        connection.execute(FAIL)
    until_due(spare.bulkhead)
    began = time.monotonic()
    with pytest.raises(PsycopgCallTimeoutError):
        connection.execute("SELECT pg_sleep(9)")
    assert time.monotonic() - began < 4
    assert spare.bulkhead.state == "open"
    until_due(spare.bulkhead)
    spare.execute("SELECT 2")
    assert spare.bulkhead.state == "closed"
    spare.execute("SELECT pg_sleep(0.8)")  # the usual limit is back


@pytest.mark.resilience
def test_a_postgres_that_hangs_opens_it(connect: Callable[..., Any], postgres_server: PostgresServer) -> None:
    """SIGSTOP of every backend: psycopg alone would wait for ever."""
    name = f"hung-{next(numbers)}"
    options: dict[str, Any] = {"name": name, "tickets": 5, **QUICK, "error_timeout": 30}
    connections = [connect(**options) for _ in range(4)]
    resource = connections[0].bulkhead
    resource.update(call_timeout=0.5)
    with postgres_server.paused():
        for connection in connections[:3]:
            began = time.monotonic()
            with pytest.raises(PsycopgCallTimeoutError):
                connection.execute("SELECT 2")
            assert time.monotonic() - began < 4
        assert resource.state == "open"
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(PsycopgCircuitOpenError):
                connections[3].execute("SELECT 2")
            with pytest.raises(PsycopgCircuitOpenError), connections[3].transaction():
                pytest.fail("entered")
            with pytest.raises(PsycopgCircuitOpenError):
                connect(**options)
        assert time.monotonic() - began < 5, "60 that wait for the server would need 30 s"
    resource.update(call_timeout=20.0)
    resource.close()
    assert connections[3].execute("SELECT 2").fetchone() == (2,)
    assert resource.in_use == 0


@pytest.mark.resilience
def test_calls_that_hang_all_at_once_are_counted_while_they_hang(
    connect: Callable[..., Any], postgres_server: PostgresServer
) -> None:
    name = f"hung-{next(numbers)}"
    connections = [connect(name=name, tickets=5, **{**QUICK, "error_timeout": 30}) for _ in range(3)]
    connections[0].bulkhead.update(call_timeout=0.5)
    errors: list[BaseException] = []

    def call(connection: Any) -> None:
        try:
            connection.execute("SELECT 2")
        except psycopg.Error as error:
            errors.append(error)

    with postgres_server.paused():
        threads = [threading.Thread(target=call, args=[connection]) for connection in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert [type(error) for error in errors] == [PsycopgCallTimeoutError] * 3
    assert connections[0].bulkhead.totals()["calls", "failure"] == 3
    assert connections[0].bulkhead.state == "open"


def test_a_generator_that_goes_on_while_it_is_closed_is_closed_all_the_same() -> None:
    """As psycopg's pipelines do: `finally: yield from …`."""
    ended = []

    def stubborn() -> Any:
        try:
            while True:
                yield 1
        finally:
            try:
                yield 2
            finally:
                ended.append(True)

    gen = limited(stubborn(), Deadline(0.0, "postgres:x"))
    next(gen)
    with pytest.raises(PsycopgCallTimeoutError):
        gen.send(0)
    assert ended


INTERRUPTED = """
import os, signal, sys, threading
import bulkhead, psycopg
bulkhead.install()
options = bulkhead.options(name="interrupted", tickets=1, error_threshold=1, error_timeout=5, success_threshold=1, **LIMIT)
connection = psycopg.connect(sys.argv[1], autocommit=True, **options)
resource = connection.bulkhead
signal.signal(signal.SIGUSR1, signal.default_int_handler)

def interrupt(call):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        pass
    else:
        raise SystemExit("not interrupted")
    timer.join()
    assert resource.in_use == 0, resource
    assert resource.state == "closed", resource

def stream():
    for row in connection.cursor().stream("SELECT pg_sleep(0.05) FROM generate_series(1, 100)"):
        pass

for call in (lambda: connection.execute("SELECT pg_sleep(9)"), stream):
    if connection.closed:
        connection = psycopg.connect(sys.argv[1], autocommit=True, **options)
    interrupt(call)
    if not connection.closed:
        assert connection.execute("SELECT 2").fetchone() == (2,)
connection.close()
print("given back")
"""


@pytest.mark.parametrize("limit", ["{}", "{'call_timeout': 20}"])
def test_ctrl_c_gives_everything_back(run_python: RunPython, postgres_server: PostgresServer, limit: str) -> None:
    """Known fault 27."""
    done = run_python(INTERRUPTED.replace("LIMIT", limit), postgres_server.dsn)
    assert done.stdout.strip() == "given back"

"""Connects: options on every way in, names, secrets, tickets, and what a failed one says."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from polling import until_due

import adapters
import bulkhead
from adapters.psycopg import PsycopgCallTimeoutError, PsycopgCircuitOpenError, PsycopgResourceBusyError
from bulkhead.testing import NeverAccepting, SilentServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Eventually, RunPython

    from bulkhead.testing import PostgresServer

QUICK: dict[str, Any] = {
    "error_threshold": 2,
    "error_timeout": 1.0,
    "error_threshold_timeout": 10,
    "success_threshold": 1,
}


@pytest.mark.parametrize("way", ["psycopg.connect", "Connection.connect", "a subclass", "a URL", "no DSN"])
def test_every_way_in_takes_options(postgres_server: PostgresServer, way: str) -> None:
    """MY-02, AR-02."""

    class Own(psycopg.Connection[Any]):
        @classmethod
        def connect(cls, conninfo: str = "", **given: Any) -> Any:
            above: Any = super()
            return above.connect(conninfo, **given)

    subclass: Any = Own
    options = bulkhead.options(name=f"way-{way}", tickets=1, call_timeout=5)
    host, port = postgres_server.host, postgres_server.port
    ways: dict[str, Callable[[], Any]] = {
        "psycopg.connect": lambda: psycopg.connect(postgres_server.dsn, **options),
        "Connection.connect": lambda: psycopg.Connection.connect(conninfo=postgres_server.dsn, **options),
        "a subclass": lambda: subclass.connect(postgres_server.dsn, **options),
        "a URL": lambda: psycopg.connect(postgres_server.url, **options),
        "no DSN": lambda: psycopg.connect(host=host, port=port, user="postgres", dbname="postgres", **options),
    }
    with ways[way]() as connection:
        assert connection.bulkhead.identifier == f"postgres:way-{way}"
        assert connection.execute("SELECT 2").fetchone() == (2,)
        connection.bulkhead.open()
        with pytest.raises(PsycopgCircuitOpenError):
            connection.execute("SELECT 2")


def test_the_options_of_the_caller_are_left_as_they_were(postgres_server: PostgresServer) -> None:
    """AR-03."""
    inner = {"name": "left", "tickets": 1, "call_timeout": 5}
    given = {"conninfo": postgres_server.dsn, "autocommit": True, "bulkhead": inner}
    before = {**given, "bulkhead": dict(inner)}
    psycopg.connect(**given).close()  # type: ignore[arg-type]
    assert given == before


def test_connections_of_others_are_untouched(postgres_server: PostgresServer) -> None:
    """MY-23, AR-04."""
    with psycopg.connect(postgres_server.dsn) as connection:
        assert connection.bulkhead is None  # type: ignore[attr-defined]
        assert connection.execute("SELECT 2").fetchone() == (2,)
        assert sum(1 for _ in connection.cursor().stream("SELECT generate_series(1, 3)")) == 3


@pytest.mark.parametrize(
    ("dsn", "environment", "name"),
    [
        ("host=db.example port=6000 dbname=shop", {}, "db.example:6000/shop"),
        ("postgresql://me:secret@db.example/shop?connect_timeout=3", {}, "db.example:5432/shop"),
        ("host=db.example user=me", {}, "db.example:5432/me"),
        ("hostaddr=10.0.0.1 dbname=shop", {}, "10.0.0.1:5432/shop"),
        ("host=/run/postgresql dbname=shop", {}, "/run/postgresql:5432/shop"),
        ("host=a,b port=1,2 dbname=shop", {}, "a,b:1,2/shop"),
        ("", {"PGHOST": "env.example", "PGPORT": "7000", "PGDATABASE": "envdb"}, "env.example:7000/envdb"),
        ("dbname=shop", {"PGHOST": "env.example"}, "env.example:5432/shop"),
        ("service=shop-eu", {}, "service=shop-eu"),
        ("", {"PGSERVICE": "shop-us"}, "service=shop-us"),
        ("service=shop-eu host=db.example dbname=shop", {}, "db.example:5432/shop"),
    ],
)
def test_the_default_name_is_host_port_database(
    monkeypatch: pytest.MonkeyPatch, dsn: str, environment: dict[str, str], name: str
) -> None:
    for variable in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    bound = adapters.psycopg.bind({"tickets": 1}, (dsn,), {"autocommit": True})
    assert isinstance(bound, bulkhead.Resource)
    assert bound.identifier == f"postgres:{name}"


def test_a_dsn_that_cannot_be_read_is_psycopgs_own_error() -> None:
    with pytest.raises(psycopg.ProgrammingError, match="invalid connection option"):
        psycopg.connect("host=x nonsense=1", **bulkhead.options(name="unread", tickets=1, call_timeout=1))
    with pytest.raises(psycopg.ProgrammingError):
        psycopg.connect("bulkhead=main")  # libpq strings cannot carry it


def test_secrets_appear_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Any] = []

    def ask(driver: str, host: str | None, port: int | None, extra: Any) -> Any:
        asked.append((driver, host, port, extra))
        return {"name": "secretive", "tickets": 1, "call_timeout": 5, **QUICK}

    shown: list[str] = []
    with caplog.at_level(logging.DEBUG, "bulkhead"):
        for dsn in ("host=127.0.0.1 port=1 password=hunter2", "postgresql://me:hunter2@127.0.0.1:1/db"):
            for _ in range(3):
                with pytest.raises(psycopg.OperationalError) as caught:
                    psycopg.connect(dsn, sslpassword="hunter2", bulkhead=ask)  # type: ignore[arg-type]
                shown += [repr(caught.value), "".join(traceback.format_exception_only(caught.value))]
                shown.append(repr(caught.value.__cause__))
    resource = bulkhead.find("postgres:secretive")
    assert resource is not None
    assert resource.state == "open"
    shown += [repr(resource), resource.explain(), repr(asked), caplog.text, repr(bulkhead.resources())]
    assert asked
    assert not [text for text in shown if "hunter2" in text]


def test_a_connect_needs_a_ticket_and_gives_it_back(postgres_server: PostgresServer) -> None:
    """MY-07, AR-13."""
    options = bulkhead.options(name="connects", tickets=1, call_timeout=5)
    with psycopg.connect(postgres_server.dsn, autocommit=True, **options) as one:
        resource: Any = one.bulkhead  # type: ignore[attr-defined]
        assert resource.in_use == 0
        stream: Any = one.cursor().stream("SELECT generate_series(1, 100000)")
        next(stream)
        with pytest.raises(PsycopgResourceBusyError) as caught:
            psycopg.connect(postgres_server.dsn, **options)
        assert caught.value.identifier == resource.identifier
        stream.close()
        psycopg.connect(postgres_server.dsn, **options).close()


def test_a_slow_connect_elsewhere_makes_connects_busy(eventually: Eventually) -> None:
    """MY-11, AR-15. The peer accepts and says nothing."""
    with SilentServer() as silent:
        options = bulkhead.options(name="slow-connect", tickets=1, call_timeout=1.5)
        dsn = f"host={silent.host} port={silent.port} user=postgres dbname=postgres sslmode=disable"
        errors: list[BaseException] = []

        def slowly() -> None:
            try:
                psycopg.connect(dsn, **options)
            except psycopg.Error as error:
                errors.append(error)

        thread = threading.Thread(target=slowly)
        thread.start()
        eventually(lambda: (found := bulkhead.find("postgres:slow-connect")) and found.in_use == 1)
        with pytest.raises(PsycopgResourceBusyError):
            psycopg.connect(dsn, **options)
        thread.join()
        assert [type(error) for error in errors] == [PsycopgCallTimeoutError]


@pytest.mark.parametrize("peer", [SilentServer, NeverAccepting])
def test_connects_that_hang_are_ended_and_open_the_circuit(peer: Any) -> None:
    """MY-03, AR-05. psycopg's own connect_timeout cannot go below 2 s, its default is 130 s."""
    with peer() as hanging:
        options = bulkhead.options(
            name=f"hang-{peer.__name__}", tickets=2, call_timeout=0.4, **{**QUICK, "error_timeout": 9}
        )
        dsn = f"host={hanging.host} port={hanging.port} user=postgres dbname=postgres sslmode=disable"
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(PsycopgCallTimeoutError):
                psycopg.connect(dsn, **options)
            assert 0.35 < time.monotonic() - began < 1.9
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(PsycopgCircuitOpenError):
                psycopg.connect(dsn, **options)
        assert time.monotonic() - began < 2, "20 that hang would need 8 s"


@pytest.mark.anyio
@pytest.mark.parametrize("peer", [SilentServer, NeverAccepting])
async def test_asynchronous_connects_that_hang_are_ended_too(peer: Any) -> None:
    with peer() as hanging:
        options = bulkhead.options(
            name=f"ahang-{peer.__name__}", tickets=2, call_timeout=0.4, **{**QUICK, "error_timeout": 9}
        )
        dsn = f"host={hanging.host} port={hanging.port} user=postgres dbname=postgres sslmode=disable"
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(PsycopgCallTimeoutError):
                await psycopg.AsyncConnection.connect(dsn, **options)
            assert 0.35 < time.monotonic() - began < 1.9
        with pytest.raises(PsycopgCircuitOpenError):
            await psycopg.AsyncConnection.connect(dsn, **options)
        resource = bulkhead.find(f"postgres:ahang-{peer.__name__}")
        assert resource is not None
        assert resource.in_use == 0


def test_several_hosts_share_the_time_limit(postgres_server: PostgresServer) -> None:
    with SilentServer() as silent:
        hosts = f"host={silent.host},{silent.host} port={silent.port},{silent.port} sslmode=disable user=postgres"
        began = time.monotonic()
        with pytest.raises(PsycopgCallTimeoutError):
            psycopg.connect(hosts, **bulkhead.options(name="two-hosts", tickets=2, call_timeout=0.4))
        assert time.monotonic() - began < 2
    dead_first = f"host=127.0.0.1,{postgres_server.host} port=1,{postgres_server.port} user=postgres dbname=postgres"
    options = bulkhead.options(name="second-host", tickets=2, call_timeout=5)
    with psycopg.connect(dead_first, **options) as connection:
        assert connection.bulkhead.totals()["calls", "failure"] == 0  # type: ignore[attr-defined]


def test_a_connect_alone_is_no_sign_of_recovery(postgres_server: PostgresServer) -> None:
    """Known fault 29."""
    options = bulkhead.options(name="connect-only", tickets=2, call_timeout=5, **QUICK)
    with psycopg.connect(postgres_server.dsn, autocommit=True, **options) as connection:
        resource: Any = connection.bulkhead  # type: ignore[attr-defined]
        for _ in range(2):
            with pytest.raises(psycopg.errors.DiskFull):
                connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$")
        until_due(resource)
        for _ in range(3):
            psycopg.connect(postgres_server.dsn, **options).close()
        assert resource.state == "half_open"
        connection.execute("SELECT 2")
        assert resource.state == "closed"


def test_wrong_passwords_do_not_open_it(postgres_server: PostgresServer) -> None:
    """Known fault 28."""
    options = bulkhead.options(name="wrong", tickets=2, call_timeout=5, **QUICK)
    for _ in range(5):
        with pytest.raises(psycopg.OperationalError) as caught:
            psycopg.connect(postgres_server.dsn, dbname="no_such_database", **options)
        assert not hasattr(caught.value, "bulkhead_identifier")
    resource = bulkhead.find("postgres:wrong")
    assert resource is not None
    assert resource.state == "closed"


def test_the_environment_switches_parts_off(run_python: RunPython, postgres_server: PostgresServer) -> None:
    source = """
import sys, bulkhead, psycopg
bulkhead.install()
connection = psycopg.connect(sys.argv[1], **bulkhead.options(name="off", tickets=1, call_timeout=5))
connection.bulkhead.open()
try:
    print(connection.execute("SELECT 2").fetchone()[0])
except bulkhead.CircuitOpenError:
    print("refused")
connection.close()
"""
    for value, said in (("1", "2"), ("0", "refused")):
        done = run_python(source, postgres_server.dsn, env={"BULKHEAD_DISABLED": value})
        assert done.stdout.split()[-1] == said

"""Which statements pass while everything else is refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from drivers.psycopg_harness import connected
from polling import until_due
from psycopg import sql

from adapters._psycopg_statements import passes
from adapters.psycopg import PsycopgCircuitOpenError

if TYPE_CHECKING:
    from bulkhead.testing import PostgresServer

PASSING = [
    "ROLLBACK",
    "rollback;",
    " \n\tRollback ; ",
    "ROLLBACK WORK",
    "ROLLBACK AND NO CHAIN",
    "ABORT",
    "COMMIT",
    "COMMIT TRANSACTION",
    "commit and chain",
    "END",
    "ROLLBACK TO active_1",
    "ROLLBACK TO SAVEPOINT active_1",
    'ROLLBACK TRANSACTION TO SAVEPOINT "a ""b"" c"',
    'ROLLBACK TO"x"',
    "RELEASE active_1",
    "RELEASE SAVEPOINT active_1;",
    "PREPARE TRANSACTION 'it''s one'",
    "COMMIT PREPARED 'one'",
    "ROLLBACK PREPARED 'one'",
    "DEALLOCATE ALL",
    "DEALLOCATE PREPARE _pg3_0",
    "DISCARD ALL",
    "RESET ALL",
    "RESET search_path",
    "RESET my.setting",
    "RESET SESSION AUTHORIZATION",
    "/*foo:bar*/ ROLLBACK",
    "/* a **/ -- b\nROLLBACK -- c",
    "-- only a comment\rCOMMIT",
    "COMMIT /*traceparent='00-ab'*/;",
    "",
    ";",
    " ; /* nothing */ ;; ",
    "SELECT 1",
]
REFUSED = [
    "SELECT 2",
    "select 1",
    "SELECT 1 FROM pg_sleep(9)",
    "ROLLBACK; SELECT pg_sleep(9)",
    "COMMIT; BEGIN",
    "ROLLBACK /* a */ SELECT pg_sleep(9) /* b */",
    "/* ROLLBACK */ SELECT pg_sleep(9)",
    "-- ROLLBACK\nSELECT pg_sleep(9)",
    "--\rSELECT pg_sleep(9)",
    "/* /* */ ROLLBACK */ SELECT pg_sleep(9)",
    "/* /* */ */ ROLLBACK",  # PostgreSQL would take it; refusing is the safe side
    "/* no end",
    "PREPARE TRANSACTION 'a\\'; SELECT pg_sleep(9) --'",
    "PREPARE x AS SELECT pg_sleep(9)",
    "ROLLBACKX",
    "COMMITTED",
    "RELEASE",
    "RESET",
    "END IF",
    "ROLLBACK TO a, b",
    "BEGIN",
    "SAVEPOINT a",
    "DISCARD",
    "x" * 10_000_000,
    "/*" * 100_000,
    " " * 3000 + "x",
]


@pytest.mark.parametrize("text", PASSING)
def test_passes(text: str) -> None:
    """MY-15, MY-16, MY-17, MY-19, MY-20, AR-19, AR-20, AR-21, AR-23, AR-24, known fault 75."""
    assert passes(text, None)
    assert passes(text.encode(), None)


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_is_refused_and_quickly(text: str) -> None:
    began = time.process_time()
    assert not passes(text, None)
    assert not passes(text.encode(), None)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("query", [b"\xff\xfe\x00ROLLBACK", "\udcff\udcfe", None, 7, object(), bytearray(b"\xc3\x28")])
def test_what_cannot_be_read_is_refused_and_does_not_crash(query: Any) -> None:
    """MY-18, AR-22."""
    assert not passes(query, None)


def test_undecodable_bytes_around_a_keyword_do_not_crash() -> None:
    assert passes(b"/* \xff\xfe */ ROLLBACK", None)


def test_composed_statements_are_read_too(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.dsn) as connection:
        assert passes(sql.SQL("ROLLBACK TO {}").format(sql.Identifier("it's")), connection)
    assert not passes(sql.SQL("SELECT {}").format(sql.Literal(2)), None)

    class Broken(sql.Composable):
        def as_bytes(self, context: Any = None) -> bytes:
            raise ZeroDivisionError

    assert not passes(Broken("x"), None)


def test_transactions_end_by_text_while_it_is_open(postgres_server: PostgresServer) -> None:
    """MY-15 to MY-20 on the server. What passed took no ticket and no probe; its failure would still count."""
    with connected(postgres_server.dsn, name="by-text", tickets=1, call_timeout=5) as connection:
        resource = connection.bulkhead
        connection.execute("BEGIN")
        connection.execute("SAVEPOINT one")
        connection.execute("SAVEPOINT two")
        resource.open()
        for refused in ("SELECT 2", "ROLLBACK; SELECT 2", b"\xff ROLLBACK"):
            with pytest.raises(PsycopgCircuitOpenError):
                connection.execute(refused)
        connection.execute("RELEASE SAVEPOINT two")
        connection.execute("/* marginalia */ ROLLBACK TO SAVEPOINT one")
        connection.execute(b"ROLLBACK")
        assert connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        connection.execute("SELECT 1")  # Django's is_usable
        connection.execute("")  # psycopg_pool's check
        connection.execute(";")  # SQLAlchemy's pre-ping
        assert resource.state == "open"
        resource.close()
        assert connection.execute("SELECT 2").fetchone() == (2,)


def test_pings_pass_without_a_ticket_and_do_not_use_the_probe(postgres_server: PostgresServer) -> None:
    """MY-25 deviates: a refused ping would make pools drop healthy connections."""
    circuit = {"error_threshold": 1, "error_timeout": 1.0, "success_threshold": 1}
    options = {"name": "pings", "tickets": 1, "call_timeout": 5, **circuit}
    with connected(postgres_server.dsn, **options) as connection, connected(postgres_server.dsn, **options) as other:
        resource = connection.bulkhead
        with other.cursor().copy("COPY (SELECT 2) TO STDOUT") as copy:  # holds the only ticket
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 2")
            connection.execute("")
            list(copy)
        resource.open()
        resource.reset()
        with pytest.raises(psycopg.errors.DiskFull):
            connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$")
        assert resource.state == "open"
        until_due(resource)
        for ping in ("", ";", "SELECT 1"):
            connection.execute(ping)
        assert resource.state == "open"  # nobody has probed yet
        connection.execute("SELECT 2")
        assert resource.state == "closed"

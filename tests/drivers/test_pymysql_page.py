"""The adapter of docs/adapters.md is short, uses bulkhead.adapter only, and passes the shared cases on a real MariaDB."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pymysql
import pymysql.cursors
import pytest
from drivers.cases_circuit import CircuitCases
from drivers.cases_options import OptionCases
from drivers.cases_tickets import TicketCases
from drivers.mysql_servers import MariaDBServer, ScriptedMySQL
from drivers.pymysql_harness import PyMySQL, load, source

import bulkhead
from bulkhead.testing import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from drivers.harness import Harness

    from bulkhead.adapter import Resource

CIRCUIT = {"error_threshold": 2, "error_timeout": 5, "success_threshold": 1}


def found(name: str) -> Resource:
    resource = bulkhead.find(f"mysql:{name}")
    assert resource is not None
    return resource


def test_it_has_fewer_than_80_lines_and_imports_nothing_else_of_ours() -> None:
    assert len(source().splitlines()) < 80
    imported = [node.module for node in ast.walk(ast.parse(source())) if isinstance(node, ast.ImportFrom)]
    assert [one for one in imported if one and one.startswith(("bulkhead", "adapters"))] == ["bulkhead.adapter"]


def test_it_works_against_a_scripted_server() -> None:
    """Where no MariaDB can be had, this is what shows that the page is right."""
    load()
    with ScriptedMySQL() as server:
        given = bulkhead.options(name="scripted", tickets=1, **CIRCUIT)  # type: ignore[arg-type]
        with pymysql.connect(host=server.host, port=server.port, user="any", **given) as connection:
            cursor = connection.cursor()
            cursor.execute("UPDATE a SET b = 1")
            for _ in range(2):
                with pytest.raises(pymysql.OperationalError, match="too many"):
                    cursor.execute("UPDATE a SET b = 'FULL'")
            assert found("scripted").state == "open"
            before = len(server.statements)
            with pytest.raises(pymysql.OperationalError) as caught:
                cursor.execute("UPDATE a SET b = 2")
            assert isinstance(caught.value, bulkhead.CircuitOpenError)
            assert len(server.statements) == before
            cursor.execute("ROLLBACK")
            connection.commit()
            assert server.statements[before:] == ["ROLLBACK", "COMMIT"]
            with pytest.raises(bulkhead.CircuitOpenError):
                pymysql.connect(host=server.host, port=server.port, user="any", **given)
        assert found("scripted").in_use == 0


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDBServer]:
    try:
        server = MariaDBServer().start()
    except ServerUnavailable as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def server(mariadb: MariaDBServer) -> MariaDBServer:
    if mariadb.is_paused:
        mariadb.resume()
    if not mariadb.alive:
        mariadb.restart()
    return mariadb


def test_a_stream_keeps_its_ticket_until_the_last_row(server: MariaDBServer) -> None:
    given = bulkhead.options(name="rows", tickets=2)
    with pymysql.connect(host=server.host, port=server.port, user="root", **given) as connection:
        cursor = connection.cursor(pymysql.cursors.SSCursor)
        cursor.execute("SELECT seq FROM mysql.seq_1_to_5")
        assert found("rows").in_use == 1
        assert len(list(cursor)) == 5
        assert found("rows").in_use == 0


@pytest.mark.anyio
class TestPyMySQL(TicketCases, CircuitCases, OptionCases):
    """The cases of patching are not for a page: nobody uninstalls it."""

    @pytest.fixture
    async def harness(self, server: MariaDBServer) -> AsyncIterator[Harness]:
        made = PyMySQL(server)
        yield made
        await made.close()

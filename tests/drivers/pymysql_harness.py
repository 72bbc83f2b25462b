"""PyMySQL with the adapter of docs/adapters.md, for the shared driver cases. The page's own code is what runs."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pymysql
import pymysql.cursors
import pytest
from drivers.harness import SyncHarness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
NAME = "adapter_of_the_page"
SPARE = 8


def source() -> str:
    """The Python block of the page."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(block)


def load() -> Any:
    """Run it once, as a module that can be imported: rejections have to be found again when they are unpickled."""
    if NAME not in sys.modules:
        module = ModuleType(NAME)
        sys.modules[NAME] = module
        exec(compile(source(), str(PAGE), "exec"), vars(module))  # noqa: S102  the page's own code
    return sys.modules[NAME]


class Spare:
    """Keeps connections that nobody uses, all of one resource; PyMySQL has no pool. The first call makes several."""

    def __init__(self, **given: Any) -> None:
        self._lock = threading.Lock()
        self._first: Any = pymysql.connect(**given, defer_connect=True)
        self._given: dict[str, Any] = {**given, "bulkhead": False, "defer_connect": True}
        self.idle: list[Any] = []
        self._wanted = SPARE

    def connect(self) -> Any:
        """One more connection."""
        connection: Any = pymysql.connect(**self._given)
        connection.bulkhead = self._first.bulkhead
        connection.connect()
        return connection

    def run(self, work: Callable[[Any], Any]) -> Any:
        with self._lock:
            while self._wanted:
                self.idle.append(self.connect())
                self._wanted -= 1
            connection = self.idle.pop() if self.idle else None
        connection = connection or self.connect()
        try:
            return work(connection)
        finally:
            if connection.open:
                with self._lock:
                    self.idle.append(connection)

    def close(self) -> None:
        for connection in self.idle:
            connection.close()


def statement(text: str) -> Callable[[Any], Any]:
    """What runs it on a connection and returns its first row."""

    def work(connection: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchone()

    return work


class PyMySQL(SyncHarness):
    driver, kind, module = "pymysql", "mysql", "pymysql"
    base = pymysql.Error
    errors = load().adapter.query.errors
    ends = ("commit", "rollback")
    script = ""

    def default_name(self) -> str:
        return str(self.server.address)

    def reached(self) -> int:
        with pymysql.connect(**self._address()) as connection:
            return int(statement("SHOW GLOBAL STATUS LIKE 'Com_select'")(connection)[1])

    def _address(self) -> dict[str, Any]:
        return {"host": self.server.host, "port": self.server.port, "user": "root", "ssl_disabled": True}

    def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Spare:
        given: dict[str, Any] = {} if raw is None else {"bulkhead": raw}
        return Spare(**self._address(), read_timeout=read_timeout, **given)

    def shut(self, client: Spare) -> None:
        client.close()

    def do(self, client: Spare) -> Any:
        return client.run(statement("SELECT 1"))

    def do_block(self, client: Spare, seconds: float) -> Any:
        return client.run(statement(f"DO SLEEP({seconds})"))

    def do_fail(self, client: Spare) -> Any:
        return client.run(statement("SIGNAL SQLSTATE '08004' SET MYSQL_ERRNO = 1040, MESSAGE_TEXT = 'full'"))

    def do_neutral(self, client: Spare) -> Any:
        return client.run(statement("SELECT * FROM mysql.no_such_table"))

    def do_connection(self, client: Spare) -> Any:
        return client.run(lambda connection: connection.thread_id())

    def do_time_outs(self, client: Spare) -> Any:
        def read(connection: Any) -> Any:
            statement("SELECT 1")(connection)
            return connection._read_timeout, connection._sock.gettimeout()

        return client.run(read)

    def do_stream(self, client: Spare, items: int) -> Iterator[Any]:
        with client.connect() as connection, connection.cursor(pymysql.cursors.SSCursor) as cursor:
            cursor.execute("SELECT seq FROM mysql.seq_1_to_%d" % items)  # noqa: UP031  S608 takes an f-string for worse
            yield from cursor

    def do_end_while_open(self, client: Spare, open_circuit: Callable[[], object], how: str) -> Any:
        def work(connection: Any) -> None:
            connection.begin()
            statement("SELECT 1")(connection)
            open_circuit()
            with pytest.raises(self.errors.open):
                statement("SELECT 1")(connection)
            with connection.cursor() as cursor:
                cursor.execute(how.upper())
            getattr(connection, how)()

        return client.run(work)

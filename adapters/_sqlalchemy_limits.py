"""Time limits (call_timeout, half_open_resource_timeout) of single attempts, as far as the DBAPI can keep them.

SQLAlchemy has no such thing itself. psycopg: a statement, ping, commit or rollback is ended at the limit and its
connection closed, whether psycopg is patched or not, and a connect where it is patched. SQLite: waiting for a lock ends
at the limit. Other drivers, and streamed fetches of all: what takes too long is counted where it is a call, not ended.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from bulkhead.adapter import Resource


def limits_of(dialect: Any) -> Unlimited:
    """What can be limited with this dialect's driver."""
    if dialect.name == "sqlite":
        return SQLite()
    if dialect.driver in ("psycopg", "psycopg_async"):
        return Psycopg()
    return Unlimited()


def ended_by_limit(error: BaseException) -> bool:
    """Whether this call was ended by our limit, its connection closed by ourselves."""
    psycopg_errors = sys.modules.get("adapters._psycopg_errors")  # not imported: nothing was limited
    return psycopg_errors is not None and isinstance(error, psycopg_errors.PsycopgCallTimeoutError)


class Unlimited:
    """A driver that offers nothing."""

    limits_exchanges = False

    def statement(self, cursor: Any, seconds: float | None, identifier: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """A block in which what the cursor executes ends by then."""
        return nullcontext()

    def exchange(self, connection: Any, seconds: float | None, identifier: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """A block in which what is sent on the connection, SQLAlchemy's or the driver's, ends by then."""
        return nullcontext()

    def connect(self, resource: Resource, ticket: Any, original: Callable[[Any], Any], record: Any) -> Any:  # noqa: ARG002
        """`original(record)`, a new connection, within the limit of the attempt with this ticket."""
        return original(record)


class Psycopg(Unlimited):
    """psycopg drives generators, and ours around them look at the clock (_psycopg_limits.py)."""

    limits_exchanges = True

    def statement(self, cursor: Any, seconds: float | None, identifier: str) -> AbstractContextManager[None]:
        """SQLAlchemy's cursor for asyncio names the driver's connection by another attribute."""
        in_loop = getattr(cursor, "_connection", None)
        return self._within(cursor.connection if in_loop is None else in_loop, seconds, identifier)

    def exchange(self, connection: Any, seconds: float | None, identifier: str) -> AbstractContextManager[None]:
        """SQLAlchemy's own connections, of the pool and around asyncio, name the driver's."""
        return self._within(getattr(connection, "driver_connection", None) or connection, seconds, identifier)

    @contextmanager
    def _within(self, connection: Any, seconds: float | None, identifier: str) -> Generator[None]:
        if seconds is None:
            yield
            return
        import psycopg  # noqa: PLC0415  there is an engine that uses it

        from adapters._psycopg_limits import SLEEPS, Deadline, limited, limited_asleep  # noqa: PLC0415  needs psycopg

        until = limited_asleep if SLEEPS and isinstance(connection, psycopg.Connection) else limited
        deadline = Deadline(seconds, identifier)
        wait = connection.wait

        def wait_within(gen: Any, *rest: Any, **named: Any) -> Any:
            inner: Any = until(gen, deadline, connection.pgconn)
            inner.__name__, inner.__qualname__ = gen.__name__, gen.__qualname__  # psycopg's adapter goes by them
            return wait(inner, *rest, **named)

        connection.wait = wait_within
        try:
            yield
        finally:
            del connection.wait

    def connect(self, resource: Resource, ticket: Any, original: Callable[[Any], Any], record: Any) -> Any:
        """A connect has no connection object yet that could be told: the patches of psycopg's adapter are needed."""
        psycopg_adapter = sys.modules.get("adapters.psycopg")
        if psycopg_adapter is None or psycopg_adapter.driver.off:
            return original(record)
        return psycopg_adapter._within(resource, ticket, original, (record,), {})  # noqa: SLF001  ours too


class SQLite(Unlimited):
    """Waiting for a lock is all that takes time outside; an overlong computation is only counted."""

    @contextmanager
    def _within(self, connection: Any, seconds: float | None) -> Generator[None]:
        if seconds is None:
            yield
            return
        (before,) = _pragma(connection, "PRAGMA busy_timeout")
        wanted = max(1, int(seconds * 1000))
        if wanted >= before:
            yield
            return
        _pragma(connection, f"PRAGMA busy_timeout = {wanted}")
        try:
            yield
        finally:
            with suppress(Exception):  # a connection that is closed has no setting to put back
                _pragma(connection, f"PRAGMA busy_timeout = {before}")

    def statement(self, cursor: Any, seconds: float | None, identifier: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """sqlite3's cursor names its connection, SQLAlchemy's cursor for aiosqlite its own adapted one."""
        return self._within(getattr(cursor, "_adapt_connection", None) or cursor.connection, seconds)


def _pragma(connection: Any, statement: str) -> Any:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        return cursor.fetchone()
    finally:
        cursor.close()

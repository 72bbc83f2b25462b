"""SQLAlchemy over psycopg on a real PostgreSQL, for the shared driver suite."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from drivers.harness import AsyncHarness, Harness, SyncHarness
from sqlalchemy import create_engine, exc, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import adapters.sqlalchemy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from sqlalchemy.engine import Connection, Engine

CALL = "SELECT 1 AS called_by_sqlalchemy"
# A state of class 53 is what a server out of resources sends; this one is sent on request, the server is fine.
FAIL = "DO $$ BEGIN RAISE EXCEPTION 'out of memory' USING ERRCODE = '53200'; END $$"
NEUTRAL = "SELECT * FROM no_such_table"
POOL = {"pool_size": 30, "max_overflow": 20}

_HEAD = """
from sqlalchemy import text
from {module} import {create}
"""
_SYNC_SCRIPT = (
    _HEAD.format(module="sqlalchemy", create="create_engine")
    + """
def make(**kw):
    return create_engine(f"postgresql+psycopg://postgres@{address}/postgres", **kw)

def call(engine):
    with engine.connect() as connection:
        return connection.execute(text("SELECT 1")).scalar()

def block(engine, seconds):
    with engine.connect() as connection:
        return connection.execute(text(f"SELECT pg_sleep({seconds})")).scalar()
"""
)
_ASYNC_SCRIPT = (
    _HEAD.format(module="sqlalchemy.ext.asyncio", create="create_async_engine")
    + """
import asyncio
loop = asyncio.new_event_loop()

def make(**kw):
    return create_async_engine(f"postgresql+psycopg://postgres@{address}/postgres", **kw)

async def run(engine, sql):
    async with engine.connect() as connection:
        return (await connection.execute(text(sql))).scalar()

def call(engine):
    return loop.run_until_complete(run(engine, "SELECT 1"))

def block(engine, seconds):
    return loop.run_until_complete(run(engine, f"SELECT pg_sleep({seconds})"))

def settle():
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
"""
)


class _SQLAlchemy(Harness):
    driver, kind, module = "sqlalchemy", "sql", "sqlalchemy"
    base = exc.DBAPIError
    errors = adapters.sqlalchemy.adapter.query.errors
    patched = ("sqlalchemy.engine.url:URL._instantiate_plugins",)
    time_outs = False
    ends = ("commit", "rollback")
    create: staticmethod[..., Any]

    def default_name(self) -> str:
        return f"{self.server.host}:{self.server.port}/postgres"

    def reached(self) -> int:
        return len(self.server.statements(CALL))

    def _engine(self, raw: object, url: str | None = None) -> Any:
        given = {} if raw is None else {"bulkhead": raw}
        return self.create(url or self.server.sqlalchemy_url, **POOL, **given)

    def _by_url(self, name: str) -> Any:
        return self._engine(None, f"{self.server.sqlalchemy_url}?bulkhead={name}")

    def _with_ready_pool(self, raw: object) -> Any:
        ready = create_engine(self.server.sqlalchemy_url).pool  # nothing is connected yet
        return self.create(self.server.sqlalchemy_url, pool=ready, bulkhead=raw)


def _ended(connection: Connection, open_circuit: Callable[[], object], how: str, rejected: type[Exception]) -> Any:
    """A transaction that is ended while the circuit is open; the physical connection that it used."""
    raw = connection.connection.dbapi_connection
    connection.execute(text("CREATE TEMPORARY TABLE ended (n int) ON COMMIT DROP"))
    open_circuit()
    with pytest.raises(rejected):
        connection.execute(text("SELECT 1"))
    getattr(connection, how)()
    return raw


class SQLAlchemySync(_SQLAlchemy, SyncHarness):
    """An Engine."""

    create = staticmethod(create_engine)
    script = _SYNC_SCRIPT

    def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Engine:
        engine: Engine = self._engine(raw)
        return engine

    def make_by_url(self, name: str) -> Engine:
        engine: Engine = self._by_url(name)
        return engine

    def make_with_ready_pool(self, raw: object) -> Any:
        return self._with_ready_pool(raw)

    def shut(self, client: Engine) -> None:
        client.dispose()

    def _run(self, client: Engine, sql: str) -> Any:
        with client.connect() as connection:
            return connection.execute(text(sql)).scalar()

    def do(self, client: Engine) -> Any:
        return self._run(client, CALL)

    def do_block(self, client: Engine, seconds: float) -> Any:
        return self._run(client, f"SELECT pg_sleep({seconds})")

    def do_fail(self, client: Engine) -> Any:
        return self._run(client, FAIL)

    def do_neutral(self, client: Engine) -> Any:
        return self._run(client, NEUTRAL)

    @contextmanager
    def _driver_connection(self, client: Engine) -> Iterator[Any]:
        fairy = client.raw_connection()
        try:
            yield fairy.driver_connection
        finally:
            fairy.close()

    def do_connection(self, client: Engine) -> object:
        with self._driver_connection(client) as connection:
            return connection.info.backend_pid

    def do_time_outs(self, client: Engine) -> object:
        with self._driver_connection(client) as connection:
            return "wait" in vars(connection)

    def do_end_while_open(self, client: Engine, open_circuit: Callable[[], object], how: str) -> None:
        with client.connect() as connection:
            raw = _ended(connection, open_circuit, how, self.errors.open)
        with self._driver_connection(client) as after:
            assert after is raw
            assert after.info.transaction_status.name == "IDLE"

    def do_stream(self, client: Engine, items: int) -> Iterator[Any]:
        with client.connect() as connection:
            streaming = connection.execution_options(stream_results=True, max_row_buffer=1)
            with streaming.execute(text(f"SELECT generate_series(1, {items})")) as rows:
                yield from rows


class SQLAlchemyAsync(_SQLAlchemy, AsyncHarness):
    """An AsyncEngine."""

    create = staticmethod(create_async_engine)
    script = _ASYNC_SCRIPT

    async def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> AsyncEngine:
        engine: AsyncEngine = self._engine(raw)
        return engine

    async def make_by_url(self, name: str) -> AsyncEngine:
        engine: AsyncEngine = self._by_url(name)
        return engine

    async def make_with_ready_pool(self, raw: object) -> Any:
        return self._with_ready_pool(raw)

    async def shut(self, client: AsyncEngine) -> None:
        await client.dispose()

    async def _run(self, client: AsyncEngine, sql: str) -> Any:
        async with client.connect() as connection:
            return (await connection.execute(text(sql))).scalar()

    async def do(self, client: AsyncEngine) -> Any:
        return await self._run(client, CALL)

    async def do_block(self, client: AsyncEngine, seconds: float) -> Any:
        return await self._run(client, f"SELECT pg_sleep({seconds})")

    async def do_fail(self, client: AsyncEngine) -> Any:
        return await self._run(client, FAIL)

    async def do_neutral(self, client: AsyncEngine) -> Any:
        return await self._run(client, NEUTRAL)

    async def do_connection(self, client: AsyncEngine) -> object:
        async with client.connect() as connection:
            return (await connection.get_raw_connection()).driver_connection.info.backend_pid  # type: ignore[union-attr]

    async def do_time_outs(self, client: AsyncEngine) -> object:
        async with client.connect() as connection:
            return "wait" in vars((await connection.get_raw_connection()).driver_connection)

    async def do_end_while_open(self, client: AsyncEngine, open_circuit: Callable[[], object], how: str) -> None:
        async with client.connect() as connection:
            raw = await connection.run_sync(_ended, open_circuit, how, self.errors.open)
        async with client.connect() as connection:
            after: Any = await connection.get_raw_connection()
            assert after.dbapi_connection is raw
            assert after.driver_connection.info.transaction_status.name == "IDLE"

    async def do_stream(self, client: AsyncEngine, items: int) -> AsyncIterator[Any]:
        async with client.connect() as connection:
            rows = await connection.stream(
                text(f"SELECT generate_series(1, {items})"), execution_options={"max_row_buffer": 1}
            )
            try:
                async for row in rows:
                    yield row
            finally:
                await (
                    rows.close()
                )  # the block form of `stream` leaves psycopg's cursor open when a generator ends early

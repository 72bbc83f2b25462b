"""psycopg in the shared suite: single connections and psycopg_pool, sync and asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import psycopg_pool
import pytest
from drivers.harness import AsyncHarness, Harness, SyncHarness
from polling import auntil, until
from psycopg.pq import TransactionStatus

import adapters.psycopg
import bulkhead

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

CALL = "SELECT 1 AS called_by_psycopg"
BLOCK = "SELECT pg_sleep(%s)"
# Class 53 is what a server out of resources sends; this one sends it on request and is fine.
FAIL = "DO $$ BEGIN RAISE EXCEPTION 'out of memory' USING ERRCODE = '53200'; END $$"
NEUTRAL = "SELECT * FROM no_such_table"
STREAM = "SELECT generate_series(1, %s)"
POOL: dict[str, Any] = {"min_size": 4, "max_size": 40, "num_workers": 4, "open": False}

PATCHED = (
    *(f"psycopg:{kind}.{name}" for kind in ("Connection", "AsyncConnection") for name in ("connect", "wait", "close")),
    *(
        f"psycopg_pool:{kind}.{name}"
        for kind in ("ConnectionPool", "AsyncConnectionPool")
        for name in ("__init__", "worker", "getconn", "putconn")
    ),
    "psycopg:connect",
    "psycopg:Transaction.__enter__",
    "psycopg:AsyncTransaction.__aenter__",
    "psycopg._connection_base:BaseConnection.cancel"
    if hasattr(psycopg, "_connection_base")
    else "psycopg.connection:BaseConnection.cancel",
)


def connected(dsn: str, **options: Any) -> Any:
    """A connection in autocommit mode with these options, for the tests of this driver alone."""
    return psycopg.connect(dsn, autocommit=True, **bulkhead.options(**options))


def outcomes(connection: Any) -> tuple[float, float]:
    """How many failures and how many ignored calls there were."""
    totals = connection.bulkhead.totals()
    return totals["calls", "failure"], totals["calls", "ignored"]


class _Psycopg(Harness):
    driver, kind, module = "psycopg", "postgres", "psycopg"
    base = psycopg.Error
    errors = adapters.psycopg.adapter.query.errors
    patched = PATCHED
    time_outs = False
    ends = ("commit", "rollback")

    def default_name(self) -> str:
        return f"{self.server.host}:{self.server.port}/postgres"

    def reached(self) -> int:
        return len(self.server.statements(CALL))

    def given(self, raw: object) -> dict[str, Any]:
        """Arguments of connect."""
        return {"autocommit": True} if raw is None else {"autocommit": True, "bulkhead": raw}


class Spare:
    """A few open connections, taken and put back: the least pool there can be."""

    def __init__(self, dsn: str, given: dict[str, Any]) -> None:
        self.dsn, self.given = dsn, given
        self.free: list[Any] = []
        self.shut = False

    def put(self, connection: Any) -> bool:
        """Keep it, unless it is closed or in the middle of something."""
        if self.shut or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        self.free.append(connection)
        return True


class PsycopgSync(_Psycopg, SyncHarness):
    """psycopg.connect."""

    script = """
import psycopg
def make(**kw):
    host, _, port = address.partition(":")
    return psycopg.connect(f"host={host} port={port} user=postgres dbname=postgres", autocommit=True, **kw)
def call(client):
    return client.execute("SELECT 2").fetchone()
def block(client, seconds):
    return client.execute("SELECT pg_sleep(%s)", [seconds])
"""

    def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Any:
        client = Spare(self.server.dsn, self.given(raw))
        if not isinstance(raw, str):  # a name may be defined before the first connect; the rest is checked in it
            client.free.append(self.take(client))
        if isinstance(raw, dict):
            client.free.pop().close()  # so that the next call is a connect again
        return client

    def take(self, client: Any) -> Any:
        """An open connection."""
        while client.free:
            connection = client.free.pop()
            if not connection.closed:
                return connection
        return psycopg.connect(client.dsn, **client.given)

    def put(self, client: Any, connection: Any) -> None:
        """Give it back."""
        if not client.put(connection):
            connection.close()

    def shut(self, client: Any) -> Any:
        client.shut = True
        while client.free:
            client.free.pop().close()

    def _execute(self, client: Any, statement: str, *parameters: Any) -> Any:
        connection = self.take(client)
        try:
            return connection.execute(statement, parameters or None)
        finally:
            self.put(client, connection)

    def do(self, client: Any) -> Any:
        return self._execute(client, CALL).fetchone()

    def do_block(self, client: Any, seconds: float) -> Any:
        return self._execute(client, BLOCK, seconds).fetchone()

    def do_fail(self, client: Any) -> Any:
        self._execute(client, FAIL)

    def do_neutral(self, client: Any) -> Any:
        self._execute(client, NEUTRAL)

    def do_connection(self, client: Any) -> Any:
        connection = self.take(client)
        self.put(client, connection)
        return connection.info.backend_pid

    def do_time_outs(self, client: Any) -> Any:
        return None  # there are none to be changed

    def do_stream(self, client: Any, items: int) -> Iterator[Any]:
        connection = self.take(client)
        try:
            yield from connection.cursor().stream(STREAM, [items])
        finally:
            self.put(client, connection)

    def do_end_while_open(self, client: Any, open_circuit: Callable[[], object], how: str) -> Any:
        connection = self.take(client)
        connection.autocommit = False
        connection.execute(CALL)
        open_circuit()
        with pytest.raises(self.errors.open):
            connection.execute(CALL)
        assert connection.pgconn.transaction_status == TransactionStatus.INTRANS
        getattr(connection, how)()
        assert connection.pgconn.transaction_status == TransactionStatus.IDLE
        connection.autocommit = True
        self.put(client, connection)


class PsycopgAsync(_Psycopg, AsyncHarness):
    """psycopg.AsyncConnection.connect."""

    script = """
import asyncio, os
import psycopg
loop, process = asyncio.new_event_loop(), os.getpid()
def run(coroutine):
    global loop, process
    if process != os.getpid():
        loop, process = asyncio.new_event_loop(), os.getpid()
    return loop.run_until_complete(coroutine)
def make(**kw):
    host, _, port = address.partition(":")
    dsn = f"host={host} port={port} user=postgres dbname=postgres"
    return run(psycopg.AsyncConnection.connect(dsn, autocommit=True, **kw))
async def fetch(client, *query):
    return await (await client.execute(*query)).fetchone()
def call(client):
    return run(fetch(client, "SELECT 2"))
def block(client, seconds):
    return run(fetch(client, "SELECT pg_sleep(%s)", [seconds]))
def settle():
    async def rest():
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    run(rest())
"""

    async def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Any:
        client = Spare(self.server.dsn, self.given(raw))
        if not isinstance(raw, str):
            client.free.append(await self.take(client))
        if isinstance(raw, dict):
            await client.free.pop().close()
        return client

    async def take(self, client: Any) -> Any:
        """An open connection."""
        while client.free:
            connection = client.free.pop()
            if not connection.closed:
                return connection
        return await psycopg.AsyncConnection.connect(client.dsn, **client.given)

    async def put(self, client: Any, connection: Any) -> None:
        """Give it back."""
        if not client.put(connection):
            await connection.close()

    async def shut(self, client: Any) -> Any:
        client.shut = True
        while client.free:
            await client.free.pop().close()

    async def _execute(self, client: Any, statement: str, *parameters: Any) -> Any:
        connection = await self.take(client)
        try:
            return await connection.execute(statement, parameters or None)
        finally:
            await self.put(client, connection)

    async def do(self, client: Any) -> Any:
        return await (await self._execute(client, CALL)).fetchone()

    async def do_block(self, client: Any, seconds: float) -> Any:
        return await (await self._execute(client, BLOCK, seconds)).fetchone()

    async def do_fail(self, client: Any) -> Any:
        await self._execute(client, FAIL)

    async def do_neutral(self, client: Any) -> Any:
        await self._execute(client, NEUTRAL)

    async def do_connection(self, client: Any) -> Any:
        connection = await self.take(client)
        await self.put(client, connection)
        return connection.info.backend_pid

    async def do_time_outs(self, client: Any) -> Any:
        return None

    async def do_stream(self, client: Any, items: int) -> AsyncIterator[Any]:
        connection = await self.take(client)
        stream = connection.cursor().stream(STREAM, [items])
        try:
            async for row in stream:
                yield row
        finally:
            await stream.aclose()
            await self.put(client, connection)

    async def do_end_while_open(self, client: Any, open_circuit: Callable[[], object], how: str) -> Any:
        connection = await self.take(client)
        await connection.set_autocommit(False)
        await connection.execute(CALL)
        open_circuit()
        with pytest.raises(self.errors.open):
            await connection.execute(CALL)
        assert connection.pgconn.transaction_status == TransactionStatus.INTRANS
        await getattr(connection, how)()
        assert connection.pgconn.transaction_status == TransactionStatus.IDLE
        await connection.set_autocommit(True)
        await self.put(client, connection)


class PoolSync(PsycopgSync):
    """psycopg_pool.ConnectionPool: its workers connect, and take no tickets for it."""

    connects = False

    def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Any:
        pool: Any = psycopg_pool.ConnectionPool(self.server.dsn, kwargs=self.given(raw), timeout=5, **POOL)
        pool.open()
        return pool

    def take(self, client: Any) -> Any:
        return client.getconn()

    def put(self, client: Any, connection: Any) -> None:
        client.putconn(connection)

    def shut(self, client: Any) -> Any:
        client.close()

    def do_connection(self, client: Any) -> Any:
        client.wait()
        until(lambda: len(client._pool) == client._nconns)  # one that it began to open when it had none to give
        return sorted(connection.info.backend_pid for connection in client._pool)


class PoolAsync(PsycopgAsync):
    """psycopg_pool.AsyncConnectionPool."""

    connects = False

    async def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Any:
        pool: Any = psycopg_pool.AsyncConnectionPool(self.server.dsn, kwargs=self.given(raw), timeout=5, **POOL)
        await pool.open()
        return pool

    async def take(self, client: Any) -> Any:
        return await client.getconn()

    async def put(self, client: Any, connection: Any) -> None:
        await client.putconn(connection)

    async def shut(self, client: Any) -> Any:
        await client.close()

    async def do_connection(self, client: Any) -> Any:
        await client.wait()
        await auntil(lambda: len(client._pool) == client._nconns)
        return sorted(connection.info.backend_pid for connection in client._pool)

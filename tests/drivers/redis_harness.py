"""redis-py in the shared suite, sync and asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from drivers.harness import AsyncHarness, Harness, SyncHarness
from redis.backoff import NoBackoff

import adapters.redis

if TYPE_CHECKING:
    from collections.abc import Callable

LOADING = "return redis.error_reply('LOADING Redis is loading the dataset in memory')"
PATCHED = (
    "redis.client:Redis.__init__",
    "redis.client:Redis._send_command_parse_response",
    "redis.client:Pipeline._execute_pipeline",
    "redis.client:Pipeline._execute_transaction",
    "redis.client:Pipeline.raise_first_error",
    "redis.client:Pipeline.annotate_exception",
    "redis.connection:AbstractConnection.__init__",
    "redis.connection:ConnectionPool.__init__",
    "redis.retry:Retry.call_with_retry",
    "redis.sentinel:Sentinel.__init__",
    "redis.sentinel:SentinelConnectionPool.__init__",
    "redis.cluster:RedisCluster.__init__",
    "redis.cluster:NodesManager.create_redis_node",
    "redis.asyncio.client:Redis.__init__",
    "redis.asyncio.client:Redis._send_command_parse_response",
    "redis.asyncio.client:Pipeline._execute_pipeline",
    "redis.asyncio.client:Pipeline._execute_transaction",
    "redis.asyncio.connection:AbstractConnection.__init__",
    "redis.asyncio.connection:ConnectionPool.__init__",
    "redis.asyncio.retry:Retry.call_with_retry",
    "redis.asyncio.sentinel:SentinelConnectionPool.__init__",
)
# Before redis-py 6 a reconnect had no seam below connect().
CONNECT = "connect_check_health" if hasattr(redis.connection.AbstractConnection, "connect_check_health") else "connect"


class _Redis(Harness):
    driver = "redis"
    kind = "redis"
    module = "redis"
    base = redis.RedisError
    errors = adapters.redis.adapter.query.errors
    patched = (
        *PATCHED,
        f"redis.connection:AbstractConnection.{CONNECT}",
        f"redis.asyncio.connection:AbstractConnection.{CONNECT}",
    )
    ends = ("rollback",)

    def arguments(self, raw: object, read_timeout: float | None = None, retries: int = 0) -> dict[str, Any]:
        """Of Redis(…)."""
        given: dict[str, Any] = {"host": self.server.host, "port": self.server.port, "socket_timeout": read_timeout}
        retry = redis.retry.Retry if not self.is_async else redis.asyncio.retry.Retry
        given["retry"] = retry(NoBackoff(), retries)
        given["retry_on_error"] = [redis.ConnectionError, redis.TimeoutError] if retries else None
        if raw is not None:
            given["bulkhead"] = raw
        return given

    def reached(self) -> int:
        return int(self.server.calls("get"))

    def default_name(self) -> str:
        return f"{self.server.host}:{self.server.port}/0"


QUEUE = "suite-empty-queue"  # BLPOP in a pipeline is an ordinary call that lasts: it holds a ticket


class RedisSync(_Redis, SyncHarness):
    script = """
import redis
def make(**kw):
    host, _, port = address.partition(":")
    return redis.Redis(host=host, port=int(port), socket_timeout=None, **kw)
def call(client):
    return client.echo("x")
def block(client, seconds):
    return client.pipeline(transaction=False).blpop("suite-empty-queue", seconds).execute()
"""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        server.command("SET", "key", "value")

    def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Any:
        return redis.Redis(**self.arguments(raw, read_timeout, retries))

    def shut(self, client: Any) -> Any:
        client.close()

    def do(self, client: Any) -> Any:
        return client.get("key")

    def do_block(self, client: Any, seconds: float) -> Any:
        return client.pipeline(transaction=False).blpop(QUEUE, seconds).execute()

    def do_fail(self, client: Any) -> Any:
        return client.eval(LOADING, 0)

    def do_neutral(self, client: Any) -> Any:
        return client.lpush("key", 1)

    def do_connection(self, client: Any) -> Any:
        return client.client_id()

    def do_time_outs(self, client: Any) -> Any:
        (connection,) = client.connection_pool._available_connections
        parser = connection._parser
        buffer = getattr(parser, "_buffer", None)
        return (
            connection.socket_timeout,
            connection.socket_connect_timeout,
            connection._sock.gettimeout(),
            getattr(parser, "_socket_timeout", None),
            getattr(buffer, "socket_timeout", None),
        )

    def do_end_while_open(self, client: Any, open_circuit: Callable[[], object], how: str) -> Any:
        with client.pipeline() as pipe:
            pipe.watch("key")
            assert pipe.get("key") == b"value"
            open_circuit()
            with pytest.raises(self.errors.open):
                pipe.get("key")
            pipe.unwatch()
            assert not pipe.watching

    def make_with_ready_pool(self, raw: object) -> Any:
        return redis.Redis(connection_pool=redis.ConnectionPool(port=self.server.port), bulkhead=raw)  # type: ignore[call-arg]

    def make_by_url(self, name: str) -> Any:
        return redis.Redis.from_url(f"{self.server.url}?bulkhead={name}")


class RedisAsync(_Redis, AsyncHarness):
    script = """
import asyncio, os
import redis.asyncio
loop, process = asyncio.new_event_loop(), os.getpid()
def run(coroutine):
    global loop, process
    if process != os.getpid():
        loop, process = asyncio.new_event_loop(), os.getpid()
    return loop.run_until_complete(coroutine)
def make(**kw):
    host, _, port = address.partition(":")
    return redis.asyncio.Redis(host=host, port=int(port), socket_timeout=None, **kw)
def call(client):
    return run(client.echo("x"))
def block(client, seconds):
    return run(client.pipeline(transaction=False).blpop("suite-empty-queue", seconds).execute())
def settle():
    async def rest():
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    run(rest())
"""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        server.command("SET", "key", "value")

    async def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Any:
        return redis.asyncio.Redis(**self.arguments(raw, read_timeout, retries))

    async def shut(self, client: Any) -> Any:
        await client.aclose()

    async def do(self, client: Any) -> Any:
        return await client.get("key")

    async def do_block(self, client: Any, seconds: float) -> Any:
        return await client.pipeline(transaction=False).blpop(QUEUE, seconds).execute()

    async def do_fail(self, client: Any) -> Any:
        return await client.eval(LOADING, 0)

    async def do_neutral(self, client: Any) -> Any:
        return await client.lpush("key", 1)

    async def do_connection(self, client: Any) -> Any:
        return await client.client_id()

    async def do_time_outs(self, client: Any) -> Any:
        (connection,) = client.connection_pool._available_connections
        return connection.socket_timeout, connection.socket_connect_timeout

    async def do_end_while_open(self, client: Any, open_circuit: Callable[[], object], how: str) -> Any:
        async with client.pipeline() as pipe:
            await pipe.watch("key")
            assert await pipe.get("key") == b"value"
            open_circuit()
            with pytest.raises(self.errors.open):
                await pipe.get("key")
            await pipe.unwatch()
            assert not pipe.watching

    async def make_with_ready_pool(self, raw: object) -> Any:
        pool = redis.asyncio.ConnectionPool(port=self.server.port)
        return redis.asyncio.Redis(connection_pool=pool, bulkhead=raw)  # type: ignore[call-arg]

    async def make_by_url(self, name: str) -> Any:
        return redis.asyncio.Redis.from_url(f"{self.server.url}?bulkhead={name}")

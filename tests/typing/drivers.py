"""What type checkers think of the adapters: options on real clients, and the classes of rejections.

Never run, only checked (core.py says how).
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

import httpx
import psycopg
import psycopg_pool
import redis
import redis.asyncio
import sqlalchemy
import sqlalchemy.exc
from sqlalchemy.ext.asyncio import create_async_engine

import adapters
import adapters.httpx
import adapters.psycopg
import adapters.redis
import adapters.sqlalchemy
import bulkhead

given = bulkhead.options(name="inventory", tickets=16)

# ---- options on clients

cache = redis.Redis(host="cache-1", **given)
redis.asyncio.Redis(host="cache-1", **given)
redis.ConnectionPool(host="cache-1", **given)
redis.Redis.from_url("redis://cache-1/0", **given)

client = httpx.Client(base_url="https://prices", **given)
assert_type(client, httpx.Client)
assert_type(httpx.AsyncClient(**given), httpx.AsyncClient)

engine = sqlalchemy.create_engine("postgresql+psycopg://db/shop", pool_size=10, **given)
assert_type(engine, sqlalchemy.Engine)
create_async_engine("sqlite+aiosqlite://", **given)

psycopg_pool.ConnectionPool("host=db", kwargs=given, open=False)


async def connected() -> None:
    assert_type(psycopg.connect("host=db", **given).info.dbname, str)
    await psycopg.AsyncConnection.connect("host=db", **given)


# ---- protect() keeps the type

assert_type(bulkhead.protect(client, tickets=4), httpx.Client)
assert_type(bulkhead.protect(engine, tickets=4), sqlalchemy.Engine)

# ---- rejections are both ours and the driver's

ours: type[bulkhead.CircuitOpenError]
ours = adapters.redis.RedisCircuitOpenError
ours = adapters.psycopg.PsycopgCircuitOpenError
ours = adapters.sqlalchemy.SQLAlchemyCircuitOpenError
ours = adapters.httpx.HttpxCircuitOpenError
ours = adapters.redis.RedisResourceBusyError  # type: ignore[assignment]

of_redis: type[redis.ConnectionError] = adapters.redis.RedisResourceBusyError
of_psycopg: type[psycopg.OperationalError] = adapters.psycopg.PsycopgResourceBusyError
of_sqlalchemy: type[sqlalchemy.exc.OperationalError] = adapters.sqlalchemy.SQLAlchemyResourceBusyError
of_httpx: type[httpx.TransportError] = adapters.httpx.HttpxResourceBusyError
wrong: type[httpx.TimeoutException] = adapters.httpx.HttpxResourceBusyError  # type: ignore[assignment]

try:
    cache.get("sku-1")
except adapters.redis.RedisCircuitOpenError as error:
    assert_type(error.retry_after, float | None)
    assert_type(error.identifier, str)
except adapters.redis.RedisResourceBusyError as error:
    assert_type(error.limit, str)

try:
    client.get("/ok")
except adapters.httpx.HttpxResourceBusyError as error:
    assert_type(error.request, httpx.Request)
    assert_type(error.tenant, str | None)

# ---- the package


def choose(driver: str, host: str | None, port: int | None, extra: Any) -> Any:
    return given if host == "cache-1" else None


adapters.install()
adapters.resolve(choose)
adapters.resolve(None)
adapters.resolve("inventory")  # type: ignore[arg-type]
assert_type(adapters.installed(), list[str])
adapters.uninstall()

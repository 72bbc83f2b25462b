"""What the README says about set-up: where a forgotten install() shows, and in which forms options reach a client."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import RunPython

    from bulkhead.testing import RedisServer

UNPATCHED = """
import asyncio, warnings
import bulkhead, httpx, psycopg, psycopg_pool, redis, redis.asyncio, sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

warnings.simplefilter("ignore")  # clients that could not be used are not closed either
given = bulkhead.options(name="inventory", tickets=16)
nowhere = {"host": "127.0.0.1", "port": 1}


def in_pool(pool):
    pool.open()
    pool.wait(timeout=0.3)


tries = {
    "redis.Redis": (lambda: redis.Redis(**nowhere, **given), lambda client: client.ping()),
    "redis.asyncio": (lambda: redis.asyncio.Redis(**nowhere, **given), lambda client: asyncio.run(client.ping())),
    "redis.from_url": (lambda: redis.from_url("redis://127.0.0.1:1", **given), lambda client: client.ping()),
    "redis.ConnectionPool": (lambda: redis.ConnectionPool(**nowhere, **given), lambda pool: pool.get_connection()),
    "httpx.Client": (lambda: httpx.Client(**given), lambda client: client.get("http://127.0.0.1:1")),
    "httpx.AsyncClient": (lambda: httpx.AsyncClient(**given), None),
    "create_engine": (lambda: sqlalchemy.create_engine("sqlite://", **given), lambda engine: engine.connect()),
    "create_async_engine": (lambda: create_async_engine("sqlite+aiosqlite://", **given), None),
    "psycopg.connect": (lambda: None, lambda _: psycopg.connect("host=127.0.0.1 port=1", **given)),
    "psycopg_pool": (lambda: psycopg_pool.ConnectionPool("host=127.0.0.1 port=1", kwargs=given, open=False), in_pool),
}
for name, (make, use) in tries.items():
    try:
        made = make()
    except TypeError as error:
        assert "bulkhead" in str(error), error
        print("early", name)
        continue
    try:
        use(made)
    except (TypeError, psycopg.ProgrammingError, psycopg_pool.PoolTimeout) as error:
        print("late", name)
    else:
        print("never", name)
"""

FORMS = """
import sys
import adapters, bulkhead, redis
bulkhead.install()
port = int(sys.argv[1])


def in_force(raw, **more):
    client = redis.Redis(port=port, bulkhead=raw, **more)
    client.ping()
    return client.connection_pool.connection_kwargs["bulkhead"]


asked = []


def choose(driver, host, port, extra):
    asked.append((driver, host, port))
    return "later" if port else None


seen = [
    in_force(bulkhead.Options(name="object", tickets=1)),
    in_force({"name": "mapping", "tickets": 1}),
    in_force(bulkhead.options(name="typed", tickets=1)["bulkhead"]),
]
early = redis.Redis(port=port, bulkhead="later")
bulkhead.define("later", tickets=1)
early.ping()
in_force("later")
in_force(choose)
redis.Redis.from_url(f"redis://127.0.0.1:{port}/0?bulkhead=later").ping()
assert asked == [("redis", "localhost", port)], asked
adapters.resolve(lambda *about: {"name": "resolved", "tickets": 1})
redis.Redis(port=port).ping()
adapters.resolve(None)
existing = redis.Redis(port=port)
assert bulkhead.protect(existing, name="protected", tickets=1) is existing
redis.Redis(port=port, bulkhead=False).ping()
print(*sorted(bulkhead.resources()))
"""


def test_a_forgotten_install_shows_where_the_readme_says(readme: str, run_python: RunPython) -> None:
    for needed in ("redis", "httpx", "psycopg", "psycopg_pool", "sqlalchemy", "aiosqlite"):
        pytest.importorskip(needed)
    found = [line.split() for line in run_python(UNPATCHED).stdout.splitlines()]
    sentence = re.search(r"at construction \((.*?)\) or at the first connect\s\((.*?)\)", readme, re.DOTALL)
    assert sentence
    early, late = (re.findall(r"`([\w.]+)`", part) for part in sentence.groups())
    assert {name for when, name in found if when == "early"} == {
        *early,
        "redis.asyncio",
        "httpx.AsyncClient",
        "create_async_engine",
    }
    assert {name for when, name in found if when == "late"} == set(late)


def test_every_form_of_options_in_the_readme_reaches_a_client(redis_server: RedisServer, run_python: RunPython) -> None:
    pytest.importorskip("redis")
    told = run_python(FORMS, str(redis_server.port)).stdout.split()
    assert told == [f"redis:{name}" for name in ("later", "mapping", "object", "protected", "resolved", "typed")]

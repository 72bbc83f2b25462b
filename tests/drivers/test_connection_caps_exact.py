"""max_db_connections is exact: under threads, tasks and cancellations, and over many tenants."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg_pool
import pytest
import sqlalchemy as sa
from counts import often
from sqlalchemy.ext.asyncio import create_async_engine

import adapters.sqlalchemy
import bulkhead
from bulkhead import connections
from bulkhead.connections import Caps, Rule

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Eventually

    from bulkhead.testing import PostgresServer

SITE = adapters.sqlalchemy.adapter.connection
TENANTS = ("a", "b", "c")
THREADS, TASKS = 12, 60
ROUNDS = often(120, 2000)
LIMIT = 3


class Seen:
    """How many connections each tenant has, counted by those that have them."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, tenant: str, number: int) -> None:
        with self._lock:
            self.now[tenant] += number
            self.most[tenant] = max(self.most[tenant], self.now[tenant])

    def check(self) -> None:
        """Never too many, and the limit was reached: something was refused."""
        assert max(self.most.values()) <= LIMIT, self.most
        assert connections.totals()["rejections", "connections"] > 0


def test_threads_never_exceed_it_and_lose_nothing(tmp_path: Path, postgres_server: PostgresServer) -> None:
    engines = [
        sa.create_engine(f"sqlite:///{tmp_path}/a.db", pool_size=THREADS, connect_args={"check_same_thread": False}),
        sa.create_engine(f"sqlite:///{tmp_path}/a.db", poolclass=sa.NullPool),
        sa.create_engine(
            f"sqlite:///{tmp_path}/a.db",
            pool_size=THREADS,
            connect_args={"check_same_thread": False},
            **bulkhead.options(name="caps-stress", tenant_connections=LIMIT - 1),
        ),
    ]
    seen, faults = Seen(), []
    connections.set_limit(LIMIT)
    with psycopg_pool.ConnectionPool(postgres_server.dsn, min_size=4, max_size=THREADS, open=True) as pool:
        pool.wait(30)

        def with_engine(chance: random.Random, tenant: str) -> None:
            connection = chance.choice(engines).connect()
            seen.add(tenant, 1)
            time.sleep(chance.random() * 0.002)  # long enough for others to come by
            end = chance.random()
            seen.add(tenant, -1)
            if end < 0.1:
                connection.invalidate()
            elif end < 0.2:
                connection.detach()
            elif end < 0.25:
                return  # dropped; comes back with its last reference
            connection.close()

        def with_pool(chance: random.Random, tenant: str) -> None:
            connection = pool.getconn()
            seen.add(tenant, 1)
            time.sleep(chance.random() * 0.002)
            seen.add(tenant, -1)
            if chance.random() < 0.1:
                connection.close()
            pool.putconn(connection)

        def work(seed: int) -> None:
            chance = random.Random(seed)  # noqa: S311  which way it goes, no secret
            for _ in range(ROUNDS):
                tenant = chance.choice(TENANTS)
                try:
                    with bulkhead.tenant(tenant):
                        chance.choice((with_engine, with_pool))(chance, tenant)
                except bulkhead.ResourceBusyError:
                    pass
                except BaseException as error:
                    faults.append(error)
                    raise

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        assert not faults
        seen.check()
        assert {tenant: connections.held(tenant) for tenant in TENANTS} == dict.fromkeys(TENANTS, 0)
        exactly(engines[0])
    for engine in engines:
        engine.dispose()


def exactly(engine: sa.Engine) -> None:
    """Nothing was lost and nothing is given twice: each tenant gets its limit, and no more."""
    for tenant in TENANTS:
        with bulkhead.tenant(tenant):
            taken = [engine.connect() for _ in range(LIMIT)]
            with pytest.raises(bulkhead.ResourceBusyError):
                engine.connect()
            for connection in taken:
                connection.close()


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:The garbage collector is trying to clean up")
async def test_tasks_that_are_cancelled_at_random_moments_leave_nothing_behind(
    postgres_server: PostgresServer, tmp_path: Path, eventually: Eventually
) -> None:
    url = postgres_server.sqlalchemy_url
    engine = create_async_engine(url, pool_size=2, max_overflow=3, pool_timeout=50)
    without = create_async_engine(url, poolclass=sa.NullPool)
    seen = Seen()
    chance = random.Random(4)  # noqa: S311  which way it goes, no secret
    connections.set_limit(LIMIT)
    async with psycopg_pool.AsyncConnectionPool(
        postgres_server.dsn, min_size=1, max_size=5, timeout=50, open=False
    ) as pool:

        async def use(tenant: str) -> None:
            which: Any = chance.choice((engine.connect, without.connect, pool.connection))
            try:
                async with which() as connection:
                    seen.add(tenant, 1)
                    try:
                        statement: Any = "SELECT pg_sleep(0.002)"
                        await connection.execute(statement if which == pool.connection else sa.text(statement))
                    finally:
                        seen.add(tenant, -1)
            except bulkhead.ResourceBusyError:
                pass

        async def work(tenant: str) -> None:
            for _ in range(ROUNDS // 40):
                with bulkhead.tenant(tenant):
                    await use(tenant)
                await asyncio.sleep(0)

        for _ in range(5):
            tasks = [asyncio.create_task(work(chance.choice(TENANTS))) for _ in range(TASKS)]
            for task in chance.sample(tasks, TASKS // 2):
                await asyncio.sleep(chance.random() * 0.004)
                task.cancel()
                if chance.random() < 0.3:
                    await asyncio.sleep(0)
                    task.cancel()
            for answer in await asyncio.gather(*tasks, return_exceptions=True):
                assert answer is None or isinstance(answer, asyncio.CancelledError), answer
            gc.collect()
            assert {tenant: connections.held(tenant) for tenant in TENANTS} == dict.fromkeys(TENANTS, 0)
        seen.check()
    await engine.dispose()
    await without.dispose()
    plain = sa.create_engine(f"sqlite:///{tmp_path}/a.db")
    exactly(plain)
    plain.dispose()


def test_limits_that_change_all_the_time_are_kept(tmp_path: Path) -> None:
    """Whatever is raised and lowered meanwhile: never more than the highest, in the end exactly the last."""
    engine = sa.create_engine(
        f"sqlite:///{tmp_path}/a.db", pool_size=THREADS, connect_args={"check_same_thread": False}
    )
    seen, stop = Seen(), threading.Event()
    rules: list[Any] = [1, {"a": 2, "default": LIMIT}, lambda _: LIMIT, LIMIT]
    connections.set_limit(LIMIT)

    def change() -> None:
        while not stop.is_set():
            for rule in rules:
                connections.set_limit(rule)

    def work(seed: int) -> None:
        tenant = TENANTS[seed % len(TENANTS)]
        with bulkhead.tenant(tenant):
            for _ in range(ROUNDS):
                try:
                    with engine.connect():
                        seen.add(tenant, 1)
                        time.sleep(0.0005)  # long enough for others to come by
                        seen.add(tenant, -1)
                except bulkhead.ResourceBusyError:
                    pass

    changing = threading.Thread(target=change)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    changing.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    changing.join()
    seen.check()
    connections.set_limit(LIMIT)
    exactly(engine)
    engine.dispose()


# ---- many tenants


def test_idle_tenants_go_first_and_those_with_connections_keep_their_cap() -> None:
    """Known faults 55 and 56."""
    caps = Caps(10)
    caps.adopt(Rule(2))

    def take(tenant: str) -> Any:
        with bulkhead.tenant(tenant):
            return caps.checkout(SITE)

    held = take("held")
    for number in range(1000):
        take(f"made-up-{number}").end()
    assert len(caps._pools) <= 10
    second = take("held")
    with pytest.raises(bulkhead.ResourceBusyError):
        take("held")
    held.end()
    second.end()
    assert caps.held("held") == 0


def test_with_more_tenants_in_use_than_entries_each_keeps_its_own_cap() -> None:
    caps = Caps(4)
    caps.adopt(Rule({"big": 5, "default": 2, "free": 0}))

    def take(tenant: str) -> Any:
        with bulkhead.tenant(tenant):
            return caps.checkout(SITE)

    for _ in range(3):
        out = [take(f"t{number}") for number in range(50) for _ in range(2)]
        out += [take("big") for _ in range(5)] + [take("free") for _ in range(50)]
        assert len(caps._pools) <= 4
        for tenant in ("t0", "t49", "big"):
            with pytest.raises(bulkhead.ResourceBusyError) as caught:
                take(tenant)
            assert f"holds {caps.held(tenant)} database" in str(caught.value)
        assert (caps.held("t0"), caps.held("t49"), caps.held("big"), caps.held("free")) == (2, 2, 5, 50)
        for one in out:
            one.end()
            one.end()
        assert {caps.held(tenant) for tenant in ("t0", "t49", "big", "free")} == {0}
    assert caps._pools.overflow is not None
    assert len(caps._pools.overflow.watch) < 155 + 16  # made a few at a time

"""Proof of isolation: the FastAPI example on a real PostgreSQL, with a tenant that asks for ten times what all others do.

Two copies of docs/examples/fastapi_app.py run on one PostgreSQL: one as its bulkhead.toml has it, one without the
limits and the guard, and with the same pool. Load comes from processes of their own (callers.py): the quiet tenants',
which is the same in each run of a round, and the noisy tenant's. What the noisy tenant costs is database time: a report
that keeps a connection for 365 ms, ten times as many as the others' requests. The application has CPU time to spare:
the rate is what its one core can carry at PART, both loads together, and at most RATE.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import keepalive
from callers import NOISY_REPORT, PATIENCE, REPORTED, TIMES, Orders, Outcome, arrivals, message
from isolation_figures import ALONE, BARE, POLITE, VARIANTS, Run, lines
from served import Application, machine

from bulkhead.testing import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from table import Line

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
CALLERS = Path(__file__).with_name("callers.py")
UVICORN = (
    *("-m", "uvicorn", "--http", "httptools", "--loop", "asyncio", "--timeout-keep-alive", "600"),
    *("--no-access-log", "--log-level", "warning"),
)
UNPROTECTED = {  # but for the limits: the middleware still says who the tenant is, as the application asks it
    "BULKHEAD_TENANCY__MAX_CONCURRENT_REQUESTS": "0",
    "BULKHEAD_TENANCY__MAX_DB_CONNECTIONS": "0",
    "BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS": "0",
    "BULKHEAD_RESOURCES__SHOP__MODE": "off",
}

TENANTS = [f"quiet-{number}" for number in range(20)]
NOISY = "noisy"
RATE, PART = 160.0, 0.45  # requests a second of all quiet tenants together; share of a core
REQUESTS = 5_000  # quiet ones that count, in each run
START, WARM_UP, NOISY_FROM = 0.7, 1.5, 0.5  # seconds: until the load begins; of it, not counted; until the noisy begin
SAMPLE = 400  # requests by which the rate is found


def isolated(rounds: int) -> list[Line]:
    """So many interleaved runs of each variant. One: short runs, which show that it works and not how well."""
    requests = REQUESTS if rounds > 1 else REQUESTS // 10
    runs: dict[str, list[Run]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        database = stack.enter_context(PostgresServer())
        protected, bare = (stack.enter_context(_shop(database, given)) for given in ({}, UNPROTECTED))
        rate = _rate(protected)
        order = list(VARIANTS)
        for number in range(rounds):
            random.Random(number).shuffle(order)  # noqa: S311  no secret
            for name in order:
                print(f"\r  round {number + 1} of {rounds}: {name:30s}", end="", file=sys.stderr, flush=True)
                runs[name].append(_run(bare if name is BARE else protected, name, requests, rate, number))
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    return lines(runs, rate)


def _shop(database: PostgresServer, given: dict[str, str]) -> Application:
    environment = {"DATABASE_URL": database.sqlalchemy_url, "BULKHEAD_SETTINGS": str(EXAMPLES / "bulkhead.toml")}
    arguments = [*UVICORN, "--app-dir", str(EXAMPLES), "fastapi_app:app", "--port"]
    return Application(arguments, "/health", environment | given)


def _rate(shop: Application) -> float:
    """Quiet requests a second with which quiet requests and refusals, TIMES as many, use PART of a core."""
    quiet = Orders(shop.port, 0.0, 0, RATE, inf, TENANTS)
    mixed = [message(tenant, kind, noisy=False) for _, tenant, kind in itertools.islice(arrivals(quiet), SAMPLE)]
    refused = [message(NOISY, REPORTED, noisy=True)] * SAMPLE

    async def cost(connection: keepalive.Connection, messages: list[bytes]) -> float:
        for one in messages[: SAMPLE // 4]:
            await connection.ask(one)
        used = shop.cpu()
        for one in messages:
            await connection.ask(one)
        return (shop.cpu() - used) / len(messages)

    async def both() -> tuple[float, float]:
        connection = await keepalive.connect(shop.port)
        each = await cost(connection, mixed)
        slow = keepalive.request("GET", f"/orders/report?days={10 * NOISY_REPORT}", {"x-tenant-id": NOISY})
        holders = [(await keepalive.connect(shop.port)).ask(slow) for _ in range(10)]
        await asyncio.sleep(0.5)
        refusal = await cost(connection, refused)
        await asyncio.gather(*holders)
        return each, refusal

    each, refusal = asyncio.run(both())
    rate = min(RATE, PART / (each + TIMES * refusal))
    print(
        f"  CPU of a quiet request {each * 1e6:,.0f} us, of a refusal {refusal * 1e6:,.0f} us: {rate:.0f} requests/s",
        file=sys.stderr,
    )
    return rate


def _run(shop: Application, name: str, requests: int, rate: float, seed: int) -> Run:
    _settle(shop)
    begin = time.monotonic() + START
    quiet = Orders(shop.port, begin, 2 * seed, rate, inf, TENANTS)
    total = next(itertools.islice((at for at, _, _ in arrivals(quiet) if at >= WARM_UP), requests, None))
    quiet, seconds = replace(quiet, seconds=total), total - WARM_UP
    noisy = replace(
        quiet, begin=begin + NOISY_FROM, seed=2 * seed + 1, rate=TIMES * rate, seconds=total - NOISY_FROM, noisy=True
    )
    waiting = _callers(quiet)
    waiting_for_noisy = None if name is ALONE else _callers(replace(noisy, tenants=[NOISY], polite=name is POLITE))
    usage: list[tuple[float, float, float]] = []
    for at in (begin + WARM_UP, begin + total):
        time.sleep(max(0.0, at - time.monotonic()))
        usage.append((shop.cpu(), *machine()))
    cpu, busy, everything = (after - before for before, after in zip(*usage, strict=True))
    counted = [one for one in waiting() if one[1] >= WARM_UP]
    others = [] if waiting_for_noisy is None else waiting_for_noisy()
    others = [one for one in others if one[1] >= WARM_UP - NOISY_FROM]
    return Run(counted, others, seconds, cpu / seconds, busy / everything)


def _callers(orders: Orders) -> Callable[[], list[Outcome]]:
    """Start a process; what is returned waits for its end."""
    process = subprocess.Popen([sys.executable, str(CALLERS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(orders.text() + "\n")
    process.stdin.flush()

    def outcomes() -> list[Outcome]:
        text, _ = process.communicate(timeout=orders.seconds + 6 * PATIENCE)
        assert process.returncode == 0, "the load generator failed"
        return [(kind, at, status, took) for kind, at, status, took in json.loads(text)]

    return outcomes


def _settle(shop: Application) -> None:
    """Until nothing of an earlier run is under way: the pool serves in order, so this request comes after all others."""
    asked = urllib.request.Request(f"http://{shop.address}/orders", headers={"X-Tenant-ID": "nobody-else"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    direct.open(asked, timeout=60).close()
    time.sleep(NOISY_REPORT / 1000)  # those that have their connection already

"""Clients of the shop, as a process of their own: an open-loop load of one or more tenants. Run by isolation.py.

Reads its orders (`Orders`, JSON) from standard input and writes what became of its requests to standard output, as
JSON: one `Outcome` each. Arrivals follow a schedule made from a seed, and do not wait for answers; a quiet request's
time begins at its scheduled arrival, so whatever delays it counts, also this process. One that is not answered within
PATIENCE is given up, and has status 0.

The arrivals of the noisy tenant share CONNECTIONS connections, as those of a client library do; they wait for a free
one. Refused, its client asks again at once: the request that was refused takes the next place of the schedule, so the
load stays what it is. Or it honours Retry-After: a refused request keeps its connection, waits, and is asked again.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import keepalive

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 10.0  # seconds
TIMES = 10  # as many requests as all others together has the noisy tenant
CONNECTIONS = 100  # of the noisy client; httpx has as many by default
REPORT, NOISY_REPORT = 30, 365  # days; the shop's report takes a millisecond for each

LATEST, CREATE, REPORTED = "list", "create", "report"
KINDS = {LATEST: 0.7, CREATE: 0.2, REPORTED: 0.1}

Outcome = tuple[str, float, int, float]
"""Kind, scheduled time (seconds from the begin), status, seconds from the scheduled time to the answer."""


@dataclass(frozen=True)
class Orders:
    """What to send. `begin`: time.monotonic() of the schedule's zero, in every process of this machine."""

    port: int
    begin: float
    seed: int
    rate: float  # requests a second
    seconds: float
    tenants: list[str]
    noisy: bool = False
    polite: bool = False  # a noisy one that honours Retry-After

    def text(self) -> str:
        """For `main`."""
        return json.dumps(asdict(self))


def arrivals(orders: Orders) -> Iterator[tuple[float, str, str]]:
    """When (seconds from `begin`), whose, of which kind: Poisson, spread evenly over the tenants."""
    source, at = random.Random(orders.seed), 0.0  # noqa: S311  a load, not a secret
    kinds, weights = list(KINDS), list(KINDS.values())
    while (at := at + source.expovariate(orders.rate)) < orders.seconds:
        kind = REPORTED if orders.noisy else source.choices(kinds, weights)[0]
        yield at, source.choice(orders.tenants), kind


def message(tenant: str, kind: str, *, noisy: bool) -> bytes:
    """The request, as bytes."""
    headers = {"x-tenant-id": tenant}
    if kind == CREATE:
        return keepalive.request("POST", "/orders", headers, json.dumps({"item": "a spade", "quantity": 2}).encode())
    path = "/orders" if kind == LATEST else f"/orders/report?days={NOISY_REPORT if noisy else REPORT}"
    return keepalive.request("GET", path, headers)


class Quiet:
    """Clients that wait for nothing: each request goes out when it is due, on a connection that is free, else a new one."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._free: list[keepalive.Connection] = []
        self._running: set[asyncio.Task[None]] = set()
        self.outcomes: list[Outcome] = []

    async def play(self) -> None:
        """Send all, and wait for the answers."""
        messages = {
            (tenant, kind): message(tenant, kind, noisy=False) for tenant in self._orders.tenants for kind in KINDS
        }
        loop = asyncio.get_running_loop()
        for at, tenant, kind in arrivals(self._orders):
            due = self._orders.begin + at
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            task = loop.create_task(self._ask(at, kind, messages[tenant, kind]))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        await asyncio.gather(*self._running)

    async def _connection(self) -> keepalive.Connection:
        while self._free:
            if not (one := self._free.pop()).closed:
                return one
        return await keepalive.connect(self._orders.port)

    async def _ask(self, at: float, kind: str, what: bytes) -> None:
        due, status = self._orders.begin + at, 0
        try:
            async with asyncio.timeout_at(due + PATIENCE):
                connection = await self._connection()
                try:
                    status = (await connection.ask(what)).status
                except BaseException:
                    connection.close()
                    raise
                self._free.append(connection)
        except (TimeoutError, OSError, keepalive.Lost):
            status = 0
        self.outcomes.append((kind, at, status, time.monotonic() - due))


class Noisy:
    """One client with CONNECTIONS connections and more requests than those can carry."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._what = message(orders.tenants[0], REPORTED, noisy=True)
        self._place = asyncio.Semaphore(0)
        self.outcomes: list[Outcome] = []

    async def play(self) -> None:
        """Send until the schedule ends; what is under way then is given up."""
        workers = [asyncio.create_task(self._work()) for _ in range(CONNECTIONS)]
        for at, _, _ in arrivals(self._orders):
            if (left := self._orders.begin + at - time.monotonic()) > 0:
                await asyncio.sleep(left)
            self._place.release()
        for one in workers:
            one.cancel()
        for how in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(how, Exception):
                raise how

    async def _work(self) -> None:
        begin, polite = self._orders.begin, self._orders.polite
        connection = await keepalive.connect(self._orders.port)
        while True:
            await self._place.acquire()
            while True:
                at = time.monotonic() - begin
                try:
                    status, after = await connection.ask(self._what)
                except keepalive.Lost:
                    status, after = 0, None
                    connection = await keepalive.connect(self._orders.port)
                self.outcomes.append((REPORTED, at, status, time.monotonic() - begin - at))
                if status != 503 or not polite:
                    break
                await asyncio.sleep(after or 1)


def main() -> None:
    """Do what standard input says."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    clients = (Noisy if orders.noisy else Quiet)(orders)
    asyncio.run(clients.play())
    json.dump(clients.outcomes, sys.stdout)


if __name__ == "__main__":
    main()

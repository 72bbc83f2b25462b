"""Clients of upload_app.py, as a process of their own: quiet tenants, or one that uploads. Run by uploads.py.

Reads its orders (`Orders`, JSON) from standard input and writes what it saw to standard output, as JSON. Quiet requests
follow a schedule and do not wait for answers; their time begins at the scheduled arrival. The uploading tenant sends
SPEED bytes a second all the time: whoever of its CONNECTIONS is refused connects again and begins a new upload at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass

import keepalive

PATIENCE = 10.0  # seconds
CONNECTIONS = 4
SPEED = 40_000_000  # bytes a second, all connections together
LARGEST = 64_000_000  # bytes of one upload; none ends before, unless it is refused
BLOCK = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
HEAD = b"POST /upload HTTP/1.1\r\nhost: x\r\nx-tenant-id: noisy\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Orders:
    """`begin`: time.monotonic() of the schedule's zero. `rate`: quiet requests a second; 0 = be the one that uploads."""

    port: int
    begin: float
    seconds: float
    rate: float
    seed: int = 0

    def text(self) -> str:
        """For `main`."""
        return json.dumps(asdict(self))


class Quiet:
    """Requests of twenty tenants, as they are due."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._free: list[keepalive.Connection] = []
        self.took: list[float] = []  # seconds; PATIENCE where there was no answer, or another than 200

    async def play(self) -> list[float]:
        """Send all; what each took."""
        source, at, tasks = random.Random(self._orders.seed), 0.0, list[asyncio.Task[None]]()  # noqa: S311  a load
        messages = [keepalive.request("GET", "/", {"x-tenant-id": f"quiet-{number}"}) for number in range(20)]
        while (at := at + source.expovariate(self._orders.rate)) < self._orders.seconds:
            await asyncio.sleep(max(0.0, self._orders.begin + at - time.monotonic()))
            tasks.append(asyncio.create_task(self._ask(self._orders.begin + at, source.choice(messages))))
        await asyncio.gather(*tasks)
        return self.took

    async def _ask(self, due: float, what: bytes) -> None:
        status = 0
        try:
            async with asyncio.timeout_at(due + PATIENCE):
                one = self._free.pop() if self._free else await keepalive.connect(self._orders.port)
                status = (await one.ask(what)).status
                self._free.append(one)
        except (TimeoutError, OSError, keepalive.Lost):
            pass
        self.took.append(time.monotonic() - due if status == 200 else PATIENCE)


class Noisy:
    """One tenant that uploads."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._seen: Counter[str] = Counter()

    async def play(self) -> dict[str, int]:
        """Until the time is over. How many uploads had which status ("0": broken off), and the bytes that were sent."""
        end = self._orders.begin + self._orders.seconds
        await asyncio.sleep(max(0.0, self._orders.begin - time.monotonic()))
        await asyncio.gather(*(self._keep_on(end) for _ in range(CONNECTIONS)))
        return dict(self._seen)

    async def _keep_on(self, end: float) -> None:
        while time.monotonic() < end:
            status = "0"
            try:
                async with asyncio.timeout(end + PATIENCE - time.monotonic()):
                    status = await self._upload(end)
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                pass
            self._seen[status] += 1

    async def _upload(self, end: float) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._orders.port)
        answer = asyncio.create_task(reader.readuntil(b"\r\n"))
        try:
            writer.write(HEAD)
            sent, due = 0, time.monotonic()
            while not answer.done() and sent < LARGEST and time.monotonic() < end:
                writer.write(BLOCK)
                await writer.drain()
                sent += len(BLOCK)
                self._seen["bytes"] += len(BLOCK)
                due += len(BLOCK) * CONNECTIONS / SPEED
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not answer.done():
                writer.write(b"0\r\n\r\n")
            return (await answer).split()[1].decode()
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
            writer.transport.abort()


def main() -> None:
    """Do what standard input says."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    json.dump(asyncio.run((Quiet if orders.rate else Noisy)(orders).play()), sys.stdout)


if __name__ == "__main__":
    main()

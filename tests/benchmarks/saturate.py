"""Keeps a server that says hello busy, and counts what it answers. A process of its own; run by web.py.

    python saturate.py PORT

Reads lines of JSON [path, seconds] and answers each with a line of JSON [answers, seconds]. Each connection sends its
next request as soon as the answer to the last one is there.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import keepalive

CONNECTIONS = 16
BODY = b'{"hello":"world"}'


class Asker(asyncio.Protocol):
    """One connection."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what requests are written to."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self) -> None:
        """Send the next request."""
        assert self._transport is not None
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        """Head, body or both: with the body the answer is complete."""
        if not data.endswith(BODY):
            return
        load = self._load
        load.answers += 1
        if load.stopping:
            load.running -= 1
            if not load.running:
                load.ended.set()
        else:
            self.ask()


class Load:
    """All connections."""

    def __init__(self) -> None:
        self.request = b""
        self.answers = self.running = 0
        self.stopping = False
        self.ended = asyncio.Event()

    async def run(self, connections: list[Asker], path: str, seconds: float) -> tuple[int, float]:
        """Answers, and the seconds from the first request to the last answer."""
        self.request = keepalive.request("GET", path, {"x-tenant-id": "acme"})
        self.answers, self.running, self.stopping = 0, len(connections), False
        self.ended.clear()
        began = time.monotonic()
        for one in connections:
            one.ask()
        await asyncio.sleep(seconds)
        self.stopping = True
        await asyncio.wait_for(self.ended.wait(), 30)
        return self.answers, time.monotonic() - began


async def main(port: int) -> None:
    """Do what is asked for until there is no more."""
    load, loop = Load(), asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Asker(load), keepalive.HOST, port) for _ in range(CONNECTIONS)]
    while line := sys.stdin.readline():
        path, seconds = json.loads(line)
        print(json.dumps(await load.run([one for _, one in made], path, seconds)), flush=True)


asyncio.run(main(int(sys.argv[1])))

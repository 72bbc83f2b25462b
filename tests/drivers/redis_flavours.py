"""redis-py, sync and asyncio, behind one plain interface: `flavour.run(…)` awaits where there is something to await.

For tests of what the adapter does with replies and options, where nothing happens at the same time. The tests import
the fixture `flavour`, which is both in turn.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff

import bulkhead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bulkhead.adapter import Resource

_numbers = itertools.count(1)


class Flavour:
    """One of the two."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_async = name == "asyncio"
        self.module: Any = redis.asyncio if self.is_async else redis
        self._loop = asyncio.new_event_loop() if self.is_async else None
        self._clients: list[Any] = []

    def run(self, value: Any) -> Any:
        """The value, or what it turns into."""
        return self._loop.run_until_complete(value) if self._loop and hasattr(value, "__await__") else value

    def retry(self, retries: int) -> Any:
        """A Retry without back-off."""
        return (redis.asyncio.retry.Retry if self.is_async else redis.retry.Retry)(NoBackoff(), retries)

    def client(self, server: Any, raw: object = None, *, retries: int = 0, **arguments: Any) -> Any:
        """A client of that server, closed at the end of the test."""
        if raw is not None:
            arguments["bulkhead"] = raw
        client = self.module.Redis(
            host=server.host, port=server.port, **{"retry": self.retry(retries), "socket_timeout": 5.0, **arguments}
        )
        return self.closing(client)

    def connection(self, client: Any) -> Any:
        """A connection of the client's pool; redis-py before 5.3 wants the name of a command."""
        named = redis.__version__.startswith("5.2.")
        return self.run(client.connection_pool.get_connection(*(("PING",) if named else ())))

    def closing(self, client: Any) -> Any:
        """The client or pool, to be closed at the end of the test."""
        self._clients.append(client)
        return client

    def guarded(self, server: Any, *, driver: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Resource]:
        """A client and its resource."""
        name = f"flavour-{next(_numbers)}"
        client = self.client(server, {"name": name, **options}, **(driver or {}))
        resource = bulkhead.find(f"redis:{name}")
        assert resource is not None
        return client, resource

    def close(self) -> None:
        """Close what was opened."""
        for one in self._clients:
            closing = getattr(one, "aclose", None) or getattr(one, "close", None) or one.disconnect
            self.run(closing())
        if self._loop:
            self._loop.close()


@pytest.fixture(params=["sync", "asyncio"])
def flavour(request: pytest.FixtureRequest) -> Iterator[Flavour]:
    made = Flavour(request.param)
    yield made
    made.close()

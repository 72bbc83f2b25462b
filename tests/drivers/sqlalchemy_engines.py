"""Engines for the SQLAlchemy tests, each with a resource of its own, all disposed of at the end of a test."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import adapters.sqlalchemy
import bulkhead
from bulkhead import connections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Engine

    from bulkhead.adapter import Resource

_numbers = itertools.count(1)
DEFAULTS = {"error_threshold": 2, "error_timeout": 30.0, "success_threshold": 1}
# A server out of resources sends such states; this one is sent on request, at once, by a server that is fine.
FAIL = "DO $$ BEGIN RAISE EXCEPTION 'out of memory' USING ERRCODE = '53200'; END $$"


class Engines:
    """Makes engines and remembers them."""

    def __init__(self) -> None:
        self._sync: list[Engine] = []
        self._async: list[AsyncEngine] = []

    def plain(self, url: str, **engine_options: Any) -> Engine:
        """An engine that nobody guards."""
        self._sync.append(create_engine(url, **engine_options))
        return self._sync[-1]

    def make(self, url: str, engine_options: dict[str, Any] | None = None, **options: Any) -> tuple[Engine, Resource]:
        """A guarded engine and its resource; `options` are ours, `engine_options` SQLAlchemy's."""
        given, identifier = self._given(options)
        self._sync.append(create_engine(url, **given, **(engine_options or {})))
        return self._sync[-1], found(identifier)

    def make_async(
        self, url: str, engine_options: dict[str, Any] | None = None, **options: Any
    ) -> tuple[AsyncEngine, Resource]:
        """The same for asyncio; `await close()` at the end of the test."""
        given, identifier = self._given(options)
        self._async.append(create_async_engine(url, **given, **(engine_options or {})))
        return self._async[-1], found(identifier)

    @staticmethod
    def _given(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
        options = DEFAULTS | options
        if "identifier" not in options:
            options = {"name": f"engine-{next(_numbers)}"} | options
        return bulkhead.options(**options), options.get("identifier") or f"sql:{options['name']}"

    def dispose(self) -> None:
        """Close what the sync engines have in their pools."""
        while self._sync:
            self._sync.pop().dispose()

    async def close(self) -> None:
        """The same for the asyncio engines."""
        while self._async:
            await self._async.pop().dispose()


def refused(engine: Engine) -> bool:
    """Is a checkout refused by max_db_connections? One that is not is given back."""
    try:
        engine.connect().close()
    except adapters.sqlalchemy.SQLAlchemyResourceBusyError as error:
        return (error.identifier, error.limit) == (connections.IDENTIFIER, "connections")
    return False


def found(identifier: str) -> Resource:
    """The registered resource."""
    resource = bulkhead.find(identifier)
    assert resource is not None, f"{identifier} is not among {sorted(bulkhead.resources())}"
    return resource


def failures(resource: Resource) -> float:
    """How many calls counted as failures so far."""
    return resource.totals().get(("calls", "failure"), 0)


@contextmanager
def full(resource: Resource) -> Iterator[None]:
    """All tickets are taken, by nobody in this context."""
    permits = [resource.begin(adapters.sqlalchemy.adapter.query) for _ in range(resource.limit or 0)]
    yield
    for ticket, give, shared, give_shared, _ in permits:
        give_shared(shared)
        give(ticket)

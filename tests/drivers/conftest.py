"""Adapters are installed for this folder; what a test registers, defines or resolves is forgotten after it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

import adapters
import bulkhead
from bulkhead import connections, definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drivers.sqlalchemy_engines import Engines
    from drivers.sqlalchemy_guarded import Guarded

    from bulkhead.testing import PostgresServer

pytest.register_assert_rewrite(
    "drivers.harness",
    "drivers.cases_tickets",
    "drivers.cases_circuit",
    "drivers.cases_options",
    "drivers.cases_patching",
    "drivers.sqlalchemy_guarded",
)
adapters.install()
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(definitions, "_known", dict(definitions._known))
    before = set(bulkhead.resources())
    yield
    connections.set_limit(None)
    connections.caps.fresh()
    adapters.resolve(None)
    bulkhead.unknown_tenant("allow")
    for identifier in set(bulkhead.resources()) - before:
        bulkhead.unregister(identifier)


@pytest.fixture
def engines() -> Iterator[Engines]:
    """Makes engines of SQLAlchemy, which are closed at the end of the test."""
    from drivers.sqlalchemy_engines import Engines  # noqa: PLC0415  a driver of some tests only

    made = Engines()
    yield made
    made.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Guarded]]:
    """Makes guarded engines with an empty table, on each database; closed at the end of the test."""
    from drivers.sqlalchemy_guarded import Base, Guarded  # noqa: PLC0415  a driver of some tests only

    made: list[Guarded] = []
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/a.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.sqlalchemy_url

    def make(**options: Any) -> Guarded:
        made.append(Guarded(url, **options))
        Base.metadata.drop_all(made[-1].plain)
        Base.metadata.create_all(made[-1].plain)
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def connect(postgres_server: PostgresServer) -> Iterator[Callable[..., Any]]:
    """`connect(tickets=1, …)`: an autocommit connection of psycopg with these options; closed after the test."""
    from drivers.psycopg_harness import connected  # noqa: PLC0415  a driver of some tests only

    made: list[Any] = []

    def connect(**options: Any) -> Any:
        options.setdefault("name", f"calls-{next(_numbers)}")
        options.setdefault("call_timeout", 20)
        made.append(connected(postgres_server.dsn, **options))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()

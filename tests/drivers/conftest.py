"""Adapters are installed for this folder; what a test registers, defines or resolves is forgotten after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import adapters
import bulkhead
from bulkhead import connections, definitions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivers.sqlalchemy_engines import Engines

pytest.register_assert_rewrite(
    "drivers.harness",
    "drivers.cases_tickets",
    "drivers.cases_circuit",
    "drivers.cases_options",
    "drivers.cases_patching",
)
adapters.install()


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

"""Two cells and a server of maps, for a file of tests; no resource of a cell that a test made is left to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cells.cell_servers import Cells, cells
from cells.map_server import MapServer, made

import bulkhead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def _running() -> Iterator[Cells]:
    with cells(base="/app") as found:
        yield found


@pytest.fixture
def two(_running: Cells, tmp_path: Path) -> Cells:
    """Two cells below /app."""
    _running.reset(tmp_path)
    return _running


@pytest.fixture
def server() -> Iterator[MapServer]:
    """Where a map is."""
    one = MapServer()
    one.publish(made(1))
    yield one
    one.stop()


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    before = set(bulkhead.resources())
    yield
    for identifier in bulkhead.resources():
        if identifier.startswith("cell:") and identifier not in before:
            bulkhead.unregister(identifier)

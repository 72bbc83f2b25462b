"""Two cells, real HTTP servers, for a file of tests; and no resource of a cell that a test made is left to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cells.cell_servers import Cells, cells

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


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    before = set(bulkhead.resources())
    yield
    for identifier in bulkhead.resources():
        if identifier.startswith("cell:") and identifier not in before:
            bulkhead.unregister(identifier)

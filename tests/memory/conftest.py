"""The process's cells as they are before anybody asked for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bulkhead.memory import cells

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_cells() -> Iterator[None]:
    yield
    cells._given = {}
    for cell in cells:
        cells.evict(cell.tenant)
    cells._following = ()
    cells._renew()

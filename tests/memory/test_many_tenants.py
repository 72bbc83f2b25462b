"""Ids that clients make up leave the memory flat."""

from __future__ import annotations

from pathlib import Path

import pytest
from counts import TENANT_IDS

import bulkhead
from bulkhead.memory import cells, current_memory_cell


@pytest.mark.no_cover  # which would make a minute ten
@pytest.mark.timeout(600)
@pytest.mark.parametrize("held", [0, 50])
def test_a_million_tenant_ids_leave_the_memory_flat(held: int) -> None:
    """Full count: 1,000,000 ids. `held`: charges that somebody keeps for a while, and with them their cells."""
    cells.configure(max_cells=1000, quota_bytes=10_000)
    kept = []

    def rss() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def visit(tenant: str) -> None:
        with bulkhead.tenant(tenant):
            cell = current_memory_cell()
            assert cell is not None
            cell.scratch["key"] = b"x" * 100
            kept.append(cell.charge(10))
            if len(kept) > held:
                kept.pop(0).release()

    for number in range(TENANT_IDS // 5):
        visit(f"warm-{number}")
    before = rss()
    for number in range(TENANT_IDS):
        visit(f"new-{number}")
    assert rss() - before < 5 * 2**20
    assert len(cells) == 1000
    assert len(cells._away) + len(cells._dead) <= held + 5
    kept.clear()
    assert cells.total_tracked_bytes == sum(cell.tracked_bytes for cell in cells)

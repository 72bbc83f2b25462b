"""The books are exact with exceptions, and calls of signal handlers, between any two instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from counts import ASYNC_EXCEPTIONS

if TYPE_CHECKING:
    from conftest import RunPython

STORM = """
import gc, logging, sys
sys.path.insert(0, "tests")
logging.disable(logging.CRITICAL)
import bulkhead
from bulkhead import QuotaExceeded, request
from bulkhead.memory import MemoryCells, cells, current_memory_cell
from bulkhead.settings import Memory
from storms import interrupt, storm

wanted = int(sys.argv[1])

def check(cell, charged=0):
    ledger = cell.ledger
    assert cell.tracked_bytes == charged + ledger.kept + ledger.marked, (cell.tracked_bytes, ledger.kept, ledger.marked)
    assert sum(ledger.owed.values()) == charged, ledger.owed
    assert ledger.kept == sum(entry[1] + entry[2] for entry in ledger.entries.values())
    assert ledger.number == len(ledger.entries) <= ledger.mark, (ledger.number, len(ledger.entries), ledger.mark)
    assert ledger.marked == ledger.mark * 10

registry = MemoryCells(quota_bytes=3000, scratch_entry_overhead=10, max_cells=3)
"""

STORIES = {
    "charges": """
cell = registry.get_or_create("a")
held = []
def body(rng):
    with cell.charge(rng.randrange(500)) as charge:
        charge.grow(5)
    cell.charge(7)
    held.append(cell.charge(3))
    if len(held) > 20:
        held.pop().release()
        del held[5:]
    try:
        cell.charge(3000)
    except QuotaExceeded:
        pass
storm(body, wanted)
check(cell, 3 * len(held))
held.clear()
check(cell)
assert cell.charge(3000).bytes == 3000
""",
    "a scratch": """
cell = registry.get_or_create("a")
def body(rng):
    scratch, key = cell.scratch, f"k{rng.randrange(9)}"
    try:
        scratch[key] = bytes(rng.randrange(1500))
        scratch.setdefault(f"k{rng.randrange(9)}", b"x")
        if rng.randrange(3) == 0:
            scratch.pop(key, None)
            scratch.popitem()
        if rng.randrange(9) == 0:
            scratch.clear()
    except (QuotaExceeded, KeyError):
        pass
storm(body, wanted)
check(cell)
""",
    "evictions": """
held = []
def body(rng):
    cell = registry.get_or_create(f"t{rng.randrange(8)}")
    cell.scratch["k"] = b"x"
    try:
        held.append(cell.charge(5))
    except QuotaExceeded:
        pass
    if rng.randrange(4) == 0:
        registry.evict(f"t{rng.randrange(8)}")
    if rng.randrange(4) == 0:
        registry.evict_idle_older_than(0.00001)
    if len(held) > 20:
        del held[10:]
storm(body, wanted)
assert registry._lock.acquire(timeout=5)
registry._lock.release()
known = {id(cell): cell for cell in (*registry, *(charge.cell for charge in held))}
assert registry.total_tracked_bytes == sum(cell.tracked_bytes for cell in known.values())
for cell in known.values():
    check(cell, 5 * sum(charge.cell is cell for charge in held))
known.clear(); held.clear()
del cell
registry.get_or_create("x"); registry.get_or_create("y")
assert len(registry) <= 3
for tenant in [one.tenant for one in registry]:
    registry.evict(tenant)
registry.evict("x")
gc.collect()
assert registry.total_tracked_bytes == 0
""",
    "the current cell of requests, over the process's registry": """
cells.configure(quota_bytes=3000, scratch_entry_overhead=10, max_cells=3)
def body(rng):
    token = request.current.set({})
    try:
        with bulkhead.tenant(f"t{rng.randrange(8)}"):
            cell = current_memory_cell()
            with cell.charge(10):
                if rng.randrange(4) == 0:
                    cells.evict(cell.tenant)
                assert current_memory_cell() is cell
    finally:
        request.current.reset(token)
storm(body, wanted)
request.current.set(None)
for cell in cells:
    check(cell)
assert cells.total_tracked_bytes == 0
""",
    "handlers that charge, not raise": """
cell = registry.get_or_create("a")
def nested(rng):
    try:
        cell.scratch[f"k{rng.randrange(5)}"] = bytes(rng.randrange(700))
        cell.charge(5)
        registry.get_or_create(f"t{rng.randrange(7)}").charge(3).release()
    except QuotaExceeded:
        pass
def body(rng):
    try:
        with cell.charge(100):
            cell.scratch[f"k{rng.randrange(5)}"] = bytes(rng.randrange(700))
            cell.scratch.popitem()
        registry.get_or_create(f"t{rng.randrange(7)}")
    except (QuotaExceeded, KeyError):
        pass
interrupt(nested, body, wanted)
check(cell)
""",
    "options that a handler sets while others are set": """
def nested(rng):
    registry.configure(quota_bytes=rng.randrange(1000))
def body(rng):
    registry.configure(max_cells=rng.randrange(1000))
    given, options = registry._given, registry.options
    if given is registry._given:  # else the handler came between the two
        assert options == Memory(**given), (options, given)
interrupt(nested, body, wanted)
""",
}


@pytest.mark.timeout(150, method="thread")
@pytest.mark.parametrize("story", STORIES)
def test_exceptions_between_any_two_instructions_lose_nothing(run_python: RunPython, story: str) -> None:
    """Full count: 4,000 in each story."""
    run_python(STORM + STORIES[story], str(ASYNC_EXCEPTIONS), seconds=120)

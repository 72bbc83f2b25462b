"""The overhead of an entry that is charged by default is what an entry really takes beside key and value."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from bulkhead.memory import MemoryCells
from bulkhead.settings import Memory


@pytest.mark.no_cover
@pytest.mark.parametrize("number", [341, 683, 1000, 5462, 5463, 21_846, 30_000])
def test_entries_take_what_is_charged_for_them_and_not_much_less(number: int) -> None:
    """As the dict grows: just before it is made larger, and just after that."""
    scratch = MemoryCells().get_or_create("acme").scratch
    entries = [(f"key-{index:07d}", b"%d" % index + bytes(500)) for index in range(number)]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for key, value in entries:
            scratch[key] = value
        each = (tracemalloc.get_traced_memory()[0] - before) / number
    finally:
        tracemalloc.stop()
    charged = Memory().scratch_entry_overhead
    assert charged / 2 <= each <= charged

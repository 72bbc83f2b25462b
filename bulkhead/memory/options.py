"""The options of memory cells as type checkers and editors see them: the fields of the section [memory].

What each means, its default and what it accepts stands in `bulkhead.settings.Memory`; a test compares the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class MemoryOptions(TypedDict, total=False):
    """Keywords of `MemoryCells(…)` and `cells.configure(…)`."""

    enabled: bool
    quota_bytes: int
    tenant_quota_bytes: Mapping[str, int] | Callable[[str], int | None] | None
    max_cells: int
    idle_ttl_secs: float
    scratch_entry_overhead: int
    charge_bodies: bool

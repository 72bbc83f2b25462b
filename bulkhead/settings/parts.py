"""Sections of parts that a program need not import: their keys are valid in a settings file all the same.

One dataclass each, as in sections.py, which registers them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bulkhead.option_rows import flag, number, row, whole
from bulkhead.settings.kinds import amount, bytes_per_tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCRATCH_ENTRY_OVERHEAD = 160
"""Measured: an entry of a scratch takes 112 to 152 bytes beside key and value (tests/memory/test_overhead.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """[memory]: how many bytes each tenant's memory cell may hold, and how many cells there are."""

    enabled: bool = row(
        True, "", "whether there are cells; without, `current_memory_cell()` is None for everybody", flag()
    )
    quota_bytes: int = row(0, "bytes", "what one tenant's cell may hold; 0 = no quota, still counted", amount())
    tenant_quota_bytes: Mapping[str, int] | Callable[[str], int | None] | None = row(
        None,
        "bytes",
        "the same for tenants by name; those that are not named have quota_bytes. A callable is asked once for each "
        "tenant, and again after each change of the settings; None = quota_bytes",
        bytes_per_tenant(),
    )
    max_cells: int = row(
        10_000, "cells", "above this number the cell that was asked for longest ago is let go; 0 = no bound", whole(0)
    )
    idle_ttl_secs: float = row(
        0.0,
        "s",
        "a cell that nobody asked for during more than this is let go when another one is made; 0 = never",
        number("a number of seconds", 0, above=False),
    )
    scratch_entry_overhead: int = row(
        SCRATCH_ENTRY_OVERHEAD,
        "bytes",
        "what an entry of a scratch is charged beside its key and value",
        whole(0),
    )
    charge_bodies: bool = row(
        False, "", "whether the middlewares charge the bodies of requests to the tenant's cell as they arrive", flag()
    )

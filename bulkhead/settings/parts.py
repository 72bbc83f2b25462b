"""Sections of parts that stand above the settings: they are valid in a file although nobody imported the part.

As sections.py, which registers them: frozen dataclasses whose fields are rows, and their rules. What the keys do is the
part's own business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bulkhead.option_rows import flag, number, row, whole
from bulkhead.settings.kinds import PerTenant, amount, bytes_per_tenant, per_tenant, tenant_table

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
        "cell, and again after each change of the settings; None = quota_bytes",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """[jobs]: runners of jobs, `bulkhead.jobs`. What a runner is given in code wins over these."""

    workers: int = row(8, "jobs", "jobs that a runner has running at a time", whole(1), marks=("restart",))
    max_concurrent: PerTenant = row(
        0, "jobs", "jobs of one tenant that a runner has running at a time; 0 = no limit", per_tenant()
    )
    tenants: Mapping[str, int] | None = row(
        None,
        "jobs",
        "max_concurrent of single tenants, before max_concurrent is asked: [jobs.tenants] acme = 4",
        tenant_table(none="there is no such table"),
    )
    lanes: int = row(
        0,
        "lanes",
        "lanes that the workers are dealt out to, at most as many as workers; 0 = off: each worker serves every tenant",
        whole(0),
        marks=("restart",),
    )
    lanes_per_tenant: int = row(2, "lanes", "lanes that serve one tenant", whole(1), marks=("restart",))
    max_backlog_per_tenant: int = row(10_000, "jobs", "jobs of one tenant that may wait; more are refused", whole(1))
    max_backlog: int = row(
        100_000,
        "jobs",
        "jobs of all tenants that may wait; above it a tenant that has its equal share or more is refused",
        whole(1),
    )
    grace_secs: float = row(
        25.0,
        "s",
        "how long a shutdown lets running jobs go on before it cancels them",
        number("a number of seconds", 0, above=False),
    )
    unknown_after_secs: float = row(
        86_400.0,
        "s",
        "how long a job waits for a handler with its name before it is dead",
        number("a number of seconds", 0, above=False),
    )

"""From one map to the next: what moves, a new cell, a fail-over, and putting a map where it is read.

Pure but for `publish`. Nothing here moves data: a plan says which tenants' data has to be in another cell before the
map is published (docs/cells.md has the steps).
"""

from __future__ import annotations

import dataclasses
import heapq
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bulkhead.cells.cell import Cell
from bulkhead.cells.map_files import load, locked, write
from bulkhead.cells.maps import CellMap
from bulkhead.cells.slots import merged, written
from bulkhead.errors import ConfigurationError
from bulkhead.hashing import SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bulkhead.cells.router import CellRouter


class SlotMove(NamedTuple):
    """Slots that another cell gets."""

    slots: range
    source: str
    target: str


class TenantMove(NamedTuple):
    """A tenant that another cell gets, by its slot or by a pin."""

    tenant: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What moves between two maps. The URL and the state of a cell move nothing."""

    slots: tuple[SlotMove, ...]
    tenants: tuple[TenantMove, ...]
    tenants_looked_at: int
    even_split: bool
    """Both maps are even splits and their number of cells differs: then about half of all tenants move."""
    rehashed: bool
    """The hash is another one: tenants move although slots do not."""
    refused: tuple[SlotMove | TenantMove, ...]
    """Moves to a cell that is draining or down and must be given nothing new, or from one that is down."""

    @property
    def slots_moved(self) -> int:
        """How many slots move, of 16,384."""
        return sum(len(one.slots) for one in self.slots)

    @property
    def slot_share(self) -> float:
        """The share of slots that move, 0 to 1: about that of tenants, however many there are."""
        return self.slots_moved / SLOTS

    @property
    def tenant_share(self) -> float | None:
        """The share of the given tenants that move, 0 to 1; None without any."""
        return len(self.tenants) / self.tenants_looked_at if self.tenants_looked_at else None


def diff(old: CellMap | CellRouter, new: CellMap | CellRouter, tenants: Iterable[str] = ()) -> Difference:
    """Which slots, and which of these tenants, another cell gets."""
    before, after = _router(old), _router(new)
    slots = tuple(_slot_moves(before, after))
    moved: list[TenantMove] = []
    looked_at = 0
    for tenant in tenants:
        looked_at += 1
        source, target = before.for_tenant(tenant).name, after.for_tenant(tenant).name
        if source != target:
            moved.append(TenantMove(tenant, source, target))
    closed = {cell.name for cell in after.cells if cell.state != "active"}
    down = {cell.name for cell in before.cells if cell.state == "down"}
    every: list[SlotMove | TenantMove] = [*slots, *moved]
    return Difference(
        slots=slots,
        tenants=tuple(moved),
        tenants_looked_at=looked_at,
        even_split=before.even and after.even and len(before.cells) != len(after.cells),
        rehashed=before.hash != after.hash,
        refused=tuple(one for one in every if one.target in closed or one.source in down),
    )


def _slot_moves(before: CellRouter, after: CellRouter) -> list[SlotMove]:
    by_way: dict[tuple[str, str], list[int]] = {}
    for slot, (source, target) in enumerate(zip(before.owners(), after.owners(), strict=True)):
        if source.name != target.name:
            by_way.setdefault((source.name, target.name), []).append(slot)
    return [SlotMove(part, *way) for way, slots in by_way.items() for part in merged(slots)]


def rebalance(cell_map: CellMap, add: Sequence[Cell | tuple[str, str]]) -> CellMap:
    """The map with these cells, or (name, URL) pairs, and an explicit slot map; its version is one higher.

    Each new cell gets 16384 // (cells + 1) slots, taken evenly: from those that have most. No slot moves between old
    cells. A cell that is draining gives slots and gets none; one that is down gives none, because its data cannot be
    copied. ConfigurationError: a name is there already, or no cell can give.
    """
    router = cell_map.router
    for one in add:
        fresh = one if isinstance(one, Cell) else Cell(one[0], one[1])
        if fresh.slots:
            raise ConfigurationError(f"cell {fresh.name!r}: a cell to be added gets its slots here; name none")
        router = _with(router, fresh)
    return cell_map.replace(router=router, version=cell_map.version + 1)


def _with(router: CellRouter, fresh: Cell) -> CellRouter:
    held = slots_of(router)
    if fresh.name in held:
        raise ConfigurationError(f"cell {fresh.name!r}: there is one of this name already")
    givers = [cell.name for cell in router.cells if cell.state != "down"]
    left = {name: len(held[name]) for name in givers}
    largest = [(-count, place, name) for place, (name, count) in enumerate(left.items())]
    heapq.heapify(largest)
    for _ in range(SLOTS // (len(router.cells) + 1)):
        if not largest or largest[0][0] >= -1:
            raise ConfigurationError(f"cell {fresh.name!r}: no cell can give it slots; those that are down give none")
        count, place, name = largest[0]
        left[name] -= 1
        heapq.heapreplace(largest, (count + 1, place, name))
    # The last slots of each: ranges stay few.
    taken = sorted(slot for name in givers for slot in held[name][left[name] :])
    cells = [
        dataclasses.replace(cell, slots=written(merged(held[cell.name][: left.get(cell.name, SLOTS)])))
        for cell in router.cells
    ]
    return router.replace(cells=[*cells, dataclasses.replace(fresh, slots=written(merged(taken)))])


def promote(cell_map: CellMap) -> CellMap:
    """The map with every cell at its standby URL, in one step; its version is one higher.

    Step 3 of a fail-over; promoting the replicas and starting the cells are 1 and 2. The old URLs are gone from the map
    (two active regions on one data set must not be one command away), and a cell that was marked down is active.
    ConfigurationError names the cells that have no standby URL.
    """
    without = [cell.name for cell in cell_map.router.cells if cell.standby_url is None]
    if without:
        raise ConfigurationError(f"cell {', '.join(map(repr, without))}: standby_url is missing; nothing is promoted")
    cells = [
        dataclasses.replace(
            cell,
            url=cell.standby_url or cell.url,
            standby_url=None,
            state="active" if cell.state == "down" else cell.state,
        )
        for cell in cell_map.router.cells
    ]
    return cell_map.replace(router=cell_map.router.replace(cells=cells), version=cell_map.version + 1)


def raise_version(cell_map: CellMap, over: CellMap | None, *, new_epoch: bool = False) -> CellMap:
    """The map with a stamp above that of `over`: as it is if that is so already, else with the next version.

    This is how an old content is put back. `new_epoch`: with a higher epoch, for a store that was restored from a
    backup and so may have lost versions that clients have seen.
    """
    epoch, version = cell_map.stamp
    if over is not None:
        epoch = max(epoch, over.epoch)
        if (epoch, version) <= over.stamp:
            version = over.version + 1
    return cell_map.replace(epoch=epoch + 1 if new_epoch else epoch, version=version)


def publish(cell_map: CellMap, path: str | os.PathLike[str], *, new_epoch: bool = False) -> CellMap:
    """Put the map where it is read: by `raise_version` over what is there, the file replaced at once. What was written.

    ConfigurationError: what is there is no map, or the file cannot be there. OSError: the file system fails.
    """
    file = Path(os.path.realpath(path))
    try:
        with locked(file):
            there = load(file) if file.exists() else None
            made = raise_version(cell_map, there, new_epoch=new_epoch)
            write(file, made)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise ConfigurationError(f"{os.fspath(path)}: cannot be written: {error.strerror}") from error
    return made


def slots_of(router: CellRouter) -> dict[str, list[int]]:
    """The slots of each cell, ascending; `router.slots` of every cell would take seconds where there are thousands."""
    held: dict[str, list[int]] = {cell.name: [] for cell in router.cells}
    for slot, owner in enumerate(router.owners()):
        held[owner.name].append(slot)
    return held


def _router(given: CellMap | CellRouter) -> CellRouter:
    return given.router if isinstance(given, CellMap) else given

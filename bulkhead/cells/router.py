"""Which cell a tenant belongs to. Pure: no clock, lock, I/O, driver or context; what may be added here is arithmetic.

Everything is checked at construction, so that a look-up cannot fail: one hash, one array index. The state of a cell is
carried, not judged: a cell that is down is still the tenant's cell (its data is there), and what that means for a
request is decided by `CellMap.route`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from xxhash import xxh64_intdigest  # the hash itself: a call of `slot_of` costs twice what its hash does

from bulkhead.cells.cell import Cell, cell_faults, cells_of
from bulkhead.cells.faults import refusal
from bulkhead.cells.paths import plain, safe
from bulkhead.cells.slots import LAST, merged, read, told
from bulkhead.errors import ConfigurationError
from bulkhead.hashing import SLOTS, Hash, slot_of
from bulkhead.option_rows import shown
from bulkhead.tenancy import tenant_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from bulkhead.hashing import Key

HASHES = get_args(Hash)


class CellRouter:
    """The cells, which slots each has, and the pins: tenants that have a cell of their own, ahead of the hash.

    `hash`: "xxh64", or "fnv1a64" as the Autumn framework computes it. `pins`: tenant (str, int or UUID) -> name of its
    cell. Immutable; `replace` gives another one. ConfigurationError that lists all that is wrong, each with cell and
    slots.
    """

    __slots__ = ("_bases", "_by_name", "_fast", "_owners", "_pinned", "cells", "even", "hash", "pins")

    cells: tuple[Cell, ...]
    hash: Hash
    pins: Mapping[str, str]
    """Tenant -> name of the cell."""
    even: bool
    """Whether this is an even split: no cell names its slots."""
    _by_name: dict[str, Cell]
    _bases: tuple[str | None, ...]
    _fast: tuple[Cell | None, ...]
    """By slot, as `_bases`: None where a tenant of this slot is pinned; empty for another hash than xxh64."""
    _owners: tuple[Cell, ...]
    _pinned: dict[str, Cell]

    def __init__(
        self,
        cells: Iterable[Cell],
        hash: Hash = "xxh64",  # noqa: A002  its name in files, and in `slot_of`
        pins: Mapping[Any, str] = MappingProxyType({}),
    ) -> None:
        cells = cells_of(cells)
        if not hasattr(pins, "items"):
            raise ConfigurationError(f"pins must be a mapping, tenant to name of a cell, not {shown(pins)}")
        pinned, faults = _pins(pins, cells)
        owners, more = _owners(cells)
        faults = [*cell_faults(cells), *more, *faults]
        if hash not in HASHES:
            faults.append(f"hash must be one of {', '.join(HASHES)}, not {shown(hash)}")
        if faults:
            raise refusal(faults)
        by_name = {one.name: one for one in cells}
        self._keep("cells", cells)
        self._keep("hash", hash)
        self._keep("pins", MappingProxyType(pinned))
        self._keep("even", not cells[0].slots)
        self._keep("_by_name", by_name)
        of_slots = tuple(cells[index] for index in owners)
        self._keep("_owners", of_slots)
        self._keep("_pinned", {tenant: by_name[name] for tenant, name in pinned.items()})
        fast: list[Cell | None] = []
        if hash == "xxh64":
            fast += of_slots
            for tenant in pinned:
                fast[slot_of(tenant)] = None
        self._keep("_fast", tuple(fast))
        self._keep("_bases", tuple(cell and cell.base for cell in fast))

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def for_tenant(self, tenant: str | int | UUID) -> Cell:
        """The tenant's cell: its pin, else that of its slot. An int or UUID is its text, as everywhere for tenants.

        ConfigurationError or ValueError: this cannot be the id of a tenant.
        """
        try:
            cell = self._fast[xxh64_intdigest(tenant.encode()) & 16383]  # type: ignore[union-attr]
        except (AttributeError, IndexError, TypeError, UnicodeEncodeError):  # no text, or another hash
            return self._of_any(tenant)
        return self._of_any(tenant) if cell is None else cell

    def _of_any(self, tenant: object) -> Cell:
        text = tenant if type(tenant) is str else tenant_text(tenant)
        return self._pinned.get(text) or self._owners[slot_of(text, self.hash)]

    def for_key(self, key: Key) -> Cell:
        """The cell of any key (str, bytes, int, UUID) by its hash alone; pins are for tenants."""
        return self._owners[slot_of(key, self.hash)]

    def for_slot(self, slot: int) -> Cell:
        """The cell that owns a slot, 0..16383; ConfigurationError for any other."""
        if type(slot) is not int or not 0 <= slot <= LAST:
            raise ConfigurationError(f"{shown(slot)} is no slot, slots are 0-{LAST}")
        return self._owners[slot]

    def url_for(self, tenant: str | int | UUID, path: str) -> str:
        """The URL of a path (with a query perhaps) in the tenant's cell; exactly one slash is between base and path.

        Whatever the path is, the URL stays on the cell's host and below its base path: what could be taken for more
        than a path is percent-encoded, and UnsafePathError is raised for control characters and "..", also encoded.
        """
        if ".." in path or plain(path) is None:  # `joined` and `for_tenant`, without the cost of two calls
            path = safe(path)
        try:
            base = self._bases[xxh64_intdigest(tenant.encode()) & 16383]  # type: ignore[union-attr]
        except (AttributeError, IndexError, TypeError, UnicodeEncodeError):
            base = None
        return (self._of_any(tenant).base if base is None else base) + path

    def cell(self, name: str) -> Cell:
        """The cell of this name; ConfigurationError if there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise ConfigurationError(f"there is no cell {shown(name)}")
        return found

    def slots(self, name: str) -> tuple[range, ...]:
        """The slots of a cell, ascending, neighbours joined."""
        cell = self.cell(name)
        return tuple(merged(slot for slot, owner in enumerate(self._owners) if owner is cell))

    def owners(self) -> tuple[Cell, ...]:
        """The cell of each slot."""
        return self._owners

    def replace(
        self,
        *,
        cells: Iterable[Cell] | None = None,
        hash: Hash | None = None,  # noqa: A002
        pins: Mapping[Any, str] | None = None,
    ) -> CellRouter:
        """A router with these parts instead, checked anew."""
        return CellRouter(
            self.cells if cells is None else cells,
            self.hash if hash is None else hash,
            self.pins if pins is None else pins,
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a CellRouter is immutable, {name} cannot be set; use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a CellRouter is immutable, {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CellRouter):
            return NotImplemented
        return (self.cells, self.hash, self.pins) == (other.cells, other.hash, other.pins)

    def __hash__(self) -> int:
        return hash((self.cells, self.hash, len(self.pins)))

    def __reduce__(self) -> tuple[Any, ...]:
        return CellRouter, (self.cells, self.hash, dict(self.pins))

    def __repr__(self) -> str:
        return f"<CellRouter {len(self.cells)} cells, {len(self.pins)} pins, {self.hash}>"


def _owners(cells: tuple[Cell, ...]) -> tuple[list[int], list[str]]:
    """The index of the owner of each slot, and what is wrong with the slots."""
    count = len(cells)
    bare = [cell.name for cell in cells if not cell.slots]
    if not cells or len(bare) == count:
        return [slot * count // SLOTS for slot in range(SLOTS)], []
    owners, faults = [-1] * SLOTS, list[str]()
    unread = bool(bare)
    if bare:
        names = ", ".join(map(shown, bare))
        faults.append(f"cell {names}: slots are missing; either every cell names its slots or none does")
    for index, cell in enumerate(cells):
        clashes: dict[int, list[int]] = {}
        for one in cell.slots:  # type: ignore[union-attr]  # a tuple since __post_init__
            part = read(one)
            if isinstance(part, str):
                unread = True
                faults.append(f"cell {shown(cell.name)}: slots: {part}")
                continue
            for slot in part:
                if owners[slot] >= 0:
                    clashes.setdefault(owners[slot], []).append(slot)
                else:
                    owners[slot] = index
        for other, slots in clashes.items():
            whose = "named twice" if other == index else f"those of cell {shown(cells[other].name)} already"
            faults.append(
                f"cell {shown(cell.name)}: {told(set(slots))} {'is' if len(set(slots)) == 1 else 'are'} {whose}"
            )
    gaps = [slot for slot, owner in enumerate(owners) if owner < 0]
    if gaps and not unread:  # what could not be read may be what is missing
        faults.append(f"no cell has {told(gaps)}")
    return owners, faults


def _pins(pins: Mapping[Any, Any], cells: tuple[Cell, ...]) -> tuple[dict[str, str], list[str]]:
    known: list[object] = [cell.name for cell in cells]
    names = {name for name in known if isinstance(name, str)}
    kept: dict[str, str] = {}
    faults: list[str] = []
    for tenant, name in pins.items():
        if not isinstance(name, str) or name not in names:
            faults.append(f"pins.{shown(tenant)}: there is no cell {shown(name)}")
        try:
            text = tenant_text(tenant)
        except ConfigurationError as error:
            faults.append(f"pins.{shown(tenant)}: {error}")
            continue
        if kept.setdefault(text, name) != name:
            faults.append(f"pins.{shown(text)}: pinned to two cells")
    return kept, faults

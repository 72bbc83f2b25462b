"""The process's registry of cells, and the cell of the code that runs now.

`current_memory_cell` is on the way of everything that accounts for its memory: where a request or a block has its cell,
nothing here takes a lock, reads a clock or calls a function of ours.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from bulkhead import measures, request, settings, tenancy
from bulkhead.counting import GIL
from bulkhead.measures import Measure, Number
from bulkhead.memory.registry import MemoryCells
from bulkhead.memory.rules import KIND, Rules, checked
from bulkhead.request import OVER

if TYPE_CHECKING:
    from typing import Any, Unpack

    from bulkhead.memory.cell import MemoryCell
    from bulkhead.memory.options import MemoryOptions
    from bulkhead.request import Held
    from bulkhead.settings import Memory, Settings
    from bulkhead.tenancy import Block

MOST_BOUND: Final = 100
"""Cells that one request binds: work for very many tenants in one request must not keep the cells of all."""


class _Cells(MemoryCells):
    """Follows the settings, which are read when a cell, or the options, are first asked for."""

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}
        self.rules = Rules()  # type: ignore[misc]  # what the other constructor does, less what would read settings
        self._started = False
        self._begin(monotonic)
        settings.on_change(self._follow)

    @property
    def options(self) -> Memory:
        """What is in force."""
        self.start()
        return self.rules.now.options

    def configure(self, **values: Unpack[MemoryOptions]) -> None:
        """As `MemoryCells.configure`. Reads no settings: it may be called before they are."""
        self._give(checked(values, "memory.cells.configure"))
        if self._started:
            self._renew()

    def start(self) -> None:
        """Read the settings if they were not yet. ConfigurationError for faults in them."""
        if not self._started:
            self._renew()
            self._started = True

    def _follow(self, _: Settings) -> None:
        self._renew()

    def _merged(self) -> Memory:
        return replace(settings.current().memory, **self._given)

    def _obtain(self, tenant: str) -> MemoryCell:
        self.start()
        return super()._obtain(tenant)


cells: Final = _Cells()
"""The registry of this process; its options are the section [memory] of the settings, and `configure(…)` over it."""

_tenant: Final = tenancy.current.get
_request: Final = request.current.get
_block: Final = tenancy.entered.get
_table: Final = cells.table
_to_the_end: Final = _table.move_to_end


def current_memory_cell() -> MemoryCell | None:
    """The current tenant's cell, made if there is none; None outside any tenant, and where cells are switched off.

    A request of a middleware keeps the cell that it first got, to its end, also when that is evicted or cells are
    switched off meanwhile. So does a `with tenant(…)` block outside of requests (and a job, which runs in one), except
    that `evict()` orders a fresh cell for its next call.
    """
    tenant = _tenant()
    if tenant is None:
        return None
    held = _request()
    if held is not None:
        try:
            bound: MemoryCell = held[tenant]
        except KeyError:
            return _bind(tenant, held)
        return bound
    block = _block()
    if block is not None:
        try:
            bound = block[2][tenant]
        except KeyError:
            return _hold(tenant, block)
        return _hold(tenant, block) if bound.dismissed else bound
    if GIL:
        try:
            cell = _table[tenant]
            _to_the_end(tenant)
        except KeyError:
            pass
        else:
            cell.used = monotonic()  # two fifths of what it takes here; nothing else tells idle cells from used ones
            return cell
    return _asked(tenant)


def _bind(tenant: str, held: Held) -> MemoryCell | None:
    """The cell from the registry; this request's until its end, whichever of its threads was first."""
    cell = _asked(tenant)
    if cell is None or len(held) >= MOST_BOUND:
        return cell
    bound: MemoryCell = held.setdefault(tenant, cell)
    if OVER in held:
        held.pop(tenant, None)
    return bound


def _hold(tenant: str, block: Block) -> MemoryCell | None:
    """The cell from the registry; this block's until its end, unless the tenant was changed inside of it."""
    cell = _asked(tenant)
    whose, _, held, _ = block
    if cell is not None and whose.tenant == tenant:
        held[tenant] = cell
        if OVER in held:
            held.pop(tenant, None)
    return cell


def _asked(tenant: str) -> MemoryCell | None:
    return cells.get_or_create(tenant) if cells.options.enabled else None


TRACKED_BYTES: Final = Measure("bulkhead_memory_tracked_bytes", "Bytes in use in all memory cells", (), "gauge")
CELLS: Final = Measure("bulkhead_memory_cells", "Memory cells in the registry", (), "gauge")


def _numbers() -> tuple[Number, Number]:
    return Number(TRACKED_BYTES, (), cells.total_tracked_bytes), Number(CELLS, (), len(cells))


measures.add(_numbers)
measures.add_rejections(KIND, lambda: cells.rules.refused.value)

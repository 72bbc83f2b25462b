"""All memory cells of a process: made when first asked for, let go when there are too many or nobody asks.

Letting go drops the registry's reference only. A cell that somebody still holds counts in the total, and unless
`evict()` has ordered otherwise it is what its tenant gets when it comes back: a second one would double its quota.

Rules for a change. What is done under the lock is a few steps, whatever the number of cells; no cell is dropped there,
because values kept in it may run somebody's code as they go. A cell is put where it goes to before it is taken from
where it was, so an exception between the two leaves it in both and never in none. A signal handler may come between any
two calls and do the same things: what was looked at is looked at again, without a call, where it is changed (ledger.py
has the reasons). Cells that were let go are known by
weak references whose callback only appends to a list; whoever has the lock next folds that in.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, ref

from bulkhead import events
from bulkhead.counting import GIL, Tally
from bulkhead.errors import ConfigurationError
from bulkhead.memory.cell import MemoryCell
from bulkhead.memory.rules import Rule, Rules, checked
from bulkhead.option_rows import Refused, number, shown
from bulkhead.settings import Following, Memory
from bulkhead.tenancy import tenant_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Unpack
    from uuid import UUID

    from bulkhead.memory.options import MemoryOptions

AT_ONCE: Final = 16
"""Cells that one step under the lock lets go at most: where a limit was lowered, the next insertions do the rest."""
FOLDED: Final = 4 * AT_ONCE
_SECONDS: Final = number("a number of seconds", 0, above=False)


class Absent(ref[MemoryCell]):
    """A cell that the registry let go, as long as somebody else holds it."""

    __slots__ = ("tenant",)
    tenant: str


class MemoryCells:
    """The cells of tenants, by tenant. `MemoryCells(quota_bytes=…, max_cells=…)` is a registry of its own; the
    process's one, `bulkhead.memory.cells`, follows the settings.

    `clock`: seconds, monotonic. Invariant: every cell that is alive is in `_table` (what was asked for last stands
    last), or known by a reference in `_away` (let go, may come back) or `_dismissed` (by order).
    """  # noqa: D205  the first sentence is long

    clock: Callable[[], float]
    table: OrderedDict[str, MemoryCell]
    """Those that are there now. Only the parts of this package touch it."""

    def __init__(self, *, clock: Callable[[], float] = monotonic, **values: Unpack[MemoryOptions]) -> None:
        self._given = checked(values, "MemoryCells")
        self.rules: Final = Rules()
        self.rules.now = Rule(self._merged())
        self._begin(clock)

    def _begin(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.table = OrderedDict()
        self._away: dict[str, Absent] = {}
        self._dismissed: dict[int, Absent] = {}
        self._dead: deque[Absent] = deque()
        self._following: tuple[Following, ...] = ()
        self._lock = threading.RLock()  # a signal handler or a finalizer may ask for a cell, too
        _registries.add(self)

    # ---- options

    def configure(self, **values: Unpack[MemoryOptions]) -> None:
        """Set these options, over what the settings say; they hold for all cells from their next use.

        The rows of the section [memory], in code also `tenant_quota_bytes` as a callable. ConfigurationError names the
        option that is wrong; then nothing changes.
        """
        self._give(checked(values, "memory.cells.configure"))
        self._renew()

    @property
    def options(self) -> Memory:
        """What is in force."""
        return self.rules.now.options

    def on_change(self, function: Callable[[Memory], object]) -> Following:
        """Call the function with the options whenever others are in force. A bound method is held weakly."""
        one = Following(function)  # type: ignore[arg-type]  # keeps and calls it, whatever it takes
        with self._lock:
            self._following = (*(each for each in self._following if each.function() is not None), one)
        return one

    def _give(self, given: dict[str, Any]) -> None:
        with self._lock:  # or what another thread sets meanwhile would be forgotten
            self._given = self._given | given

    def _merged(self) -> Memory:
        return Memory(**self._given)

    def _renew(self) -> None:
        """Let the options of now hold."""
        before, options = self.rules.now.options, self._merged()
        while True:
            self.rules.now = Rule(options)
            again = self._merged()
            if again == options:
                break
            options = again  # another thread did the same with other settings meanwhile
        if not options.enabled:
            self._let_go(lambda _: True)
        if options == before:
            return
        for one in self._following:
            function: Any = one.function()
            if function is not None:
                function(options)

    # ---- cells

    def get_or_create(self, tenant: str | int | UUID) -> MemoryCell:
        """The tenant's cell. ConfigurationError for what is no tenant id."""
        whose = tenant if type(tenant) is str else tenant_text(tenant)
        if GIL:
            try:
                cell = self.table[whose]
                self.table.move_to_end(whose)
            except KeyError:
                pass
            else:
                cell.used = self.clock()
                return cell
        return self._obtain(tenant_text(whose))

    def find(self, tenant: str | int | UUID) -> MemoryCell | None:
        """The tenant's cell if there is one; to look is not to ask for it."""
        whose = tenant_text(tenant)
        with self._lock:
            return self._present_or_away(whose)

    def evict(self, tenant: str | int | UUID) -> MemoryCell | None:
        """Let the tenant's cell go by order: whoever asks next gets a new one. The cell, or None if there was none.

        Who holds the old one goes on with it, requests under way to their end; until then the tenant has two.
        """
        whose = tenant_text(tenant)
        with self._lock:
            return self._dismiss(whose)

    def evict_idle_older_than(self, seconds: float) -> int:
        """Let go of the cells that nobody asked for during more than so many seconds. How many there were."""
        try:
            seconds = _SECONDS.keep(seconds)
        except Refused:
            says = f"evict_idle_older_than takes {_SECONDS.says}, not {shown(seconds)}"
            raise ConfigurationError(says) from None
        now = self.clock()
        return self._let_go(lambda cell: now - cell.used > seconds)

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[MemoryCell]:
        """Those in the registry now, a snapshot."""
        with self._lock:
            return iter(self._present())

    def __contains__(self, cell: object) -> bool:
        """Whether this is the cell of its tenant."""
        with self._lock:
            return isinstance(cell, MemoryCell) and self.table.get(cell.tenant) is cell

    @property
    def total_tracked_bytes(self) -> int:
        """Bytes in use in all cells, those included that were let go and are still held by somebody."""
        with self._lock:
            everyone = self._everyone()
        return sum(cell.tracked_bytes for cell in everyone.values())

    def __repr__(self) -> str:
        return f"<MemoryCells: {len(self)} cells, {self.total_tracked_bytes:,} bytes>"

    # ---- under the lock, or beside it

    def _obtain(self, tenant: str) -> MemoryCell:
        if events.anybody():  # somebody may wait for a sign of life, see metrics
            events.next_call()
        now = self.clock()
        dropped: list[MemoryCell] = []  # when this function ends
        with self._lock:
            return self._place(tenant, now, dropped)

    def _place(self, tenant: str, now: float, dropped: list[MemoryCell]) -> MemoryCell:
        table, away = self.table, self._away
        self._fold()
        absent = away.get(tenant)
        cell = None if absent is None else absent()
        if cell is None or cell.dismissed:  # by a handler, since we looked
            cell = MemoryCell(tenant, self.rules)
        inserted = False
        if tenant in table:
            cell = table[tenant]
        elif self.rules.now.options.enabled:
            table[tenant] = cell
            inserted = True
            if tenant in away and away[tenant] is absent:
                del away[tenant]
        else:  # nobody's but the caller's
            self._note_away(cell)
        cell.used = now
        if inserted:
            self._make_room(now, dropped)
        elif tenant in table:
            table.move_to_end(tenant)
        return cell

    def _make_room(self, now: float, dropped: list[MemoryCell]) -> None:
        options = self.rules.now.options
        most, ttl = options.max_cells, options.idle_ttl_secs
        while len(dropped) < AT_ONCE:
            oldest = self._oldest()
            if oldest is None:
                return
            if not (0 < most < len(self.table) or 0 < ttl < now - oldest.used):
                return
            dropped.append(oldest)
            self._send_away(oldest)

    def _oldest(self) -> MemoryCell | None:
        while True:
            try:
                return next(iter(self.table.values()), None)
            except RuntimeError:  # another thread asked for a cell between the two calls
                continue

    def _send_away(self, cell: MemoryCell) -> None:
        self._note_away(cell)
        self._take_out(cell)

    def _take_out(self, cell: MemoryCell) -> None:
        table, tenant = self.table, cell.tenant
        if tenant in table and table[tenant] is cell:
            del table[tenant]

    def _note_away(self, cell: MemoryCell) -> None:
        before = self._away.get(cell.tenant)
        if before is not None and before() not in (None, cell):
            self._dismissed[id(before)] = before
        absent = self._absent(cell)
        if not cell.dismissed:  # by a handler, since it was chosen to go
            self._away[cell.tenant] = absent

    def _absent(self, cell: MemoryCell) -> Absent:
        absent = Absent(cell, self._dead.append)
        absent.tenant = cell.tenant
        return absent

    def _present_or_away(self, tenant: str) -> MemoryCell | None:
        table, away = self.table, self._away
        if tenant in table:
            return table[tenant]
        if tenant not in away:
            return None
        cell = away[tenant]()  # no call since the look into the table
        return None if cell is None or cell.dismissed else cell

    def _dismiss(self, tenant: str) -> MemoryCell | None:
        self._fold()
        away, cell = self._away.get(tenant), self._present_or_away(tenant)
        if cell is None:
            return None
        absent, table = self._absent(cell), self.table
        self._dismissed[id(absent)] = absent
        if away is not None and tenant in self._away and self._away[tenant] is away:
            del self._away[tenant]
        if tenant in table and table[tenant] is cell:
            del table[tenant]
        cell.dismissed = True  # without a call since it was taken out: it cannot have come back
        return cell

    def _let_go(self, goes: Callable[[MemoryCell], bool]) -> int:
        """Let the cells go that were asked for longest ago, up to the first that does not go."""
        number = 0
        while True:
            dropped: list[MemoryCell] = []
            with self._lock:
                self._let_some_go(goes, dropped)
            if not dropped:
                return number
            number += len(dropped)

    def _let_some_go(self, goes: Callable[[MemoryCell], bool], dropped: list[MemoryCell]) -> None:
        self._fold()
        while len(dropped) < AT_ONCE:
            oldest = self._oldest()
            if oldest is None or not goes(oldest):
                return
            dropped.append(oldest)
            self._send_away(oldest)

    def _fold(self) -> None:
        """Forget those that nobody held any more."""
        dead, away, dismissed = self._dead, self._away, self._dismissed
        for _ in range(FOLDED):
            if not dead:
                return
            absent = dead[0]
            key, tenant = id(absent), absent.tenant
            if tenant in away and away[tenant] is absent:
                del away[tenant]
            if key in dismissed:
                del dismissed[key]
            if dead and dead[0] is absent:
                del dead[0]

    def _present(self) -> list[MemoryCell]:
        while True:
            try:
                return list(self.table.values())
            except RuntimeError:
                continue

    def _everyone(self) -> dict[int, MemoryCell]:
        found = {id(cell): cell for cell in self._present()}
        for absent in (*self._away.copy().values(), *self._dismissed.copy().values()):
            cell = absent()
            if cell is not None:
                found[id(cell)] = cell
        return found

    def after_fork(self) -> None:
        """In the child: the same cells with what they hold, no lock is taken, nothing was refused."""
        self._lock = threading.RLock()
        self.rules.refused = Tally()
        for cell in self._everyone().values():
            cell.ledger.fresh_lock()


_registries: WeakSet[MemoryCells] = WeakSet()


def _after_fork() -> None:
    for registry in tuple(_registries):
        registry.after_fork()


os.register_at_fork(after_in_child=_after_fork)

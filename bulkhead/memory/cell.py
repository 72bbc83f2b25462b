"""One tenant's account of bytes, and the charges against it.

It accounts for what it is told and bounds nothing else. A cell knows neither the registry nor other cells: quotas come
from `Rules`, which it looks at whenever it is used. Whatever counts is in ledger.py, where it is exact.
"""

from __future__ import annotations

from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import ref

from bulkhead.errors import QuotaExceeded
from bulkhead.memory.ledger import AGAIN, DONE, UNLIMITED, Entry, new_ledger
from bulkhead.memory.scratch import Scratch
from bulkhead.memory.sizes import checked, real_size
from bulkhead.settings.kinds import MAXIMUM_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from bulkhead.memory.ledger import Note, Value
    from bulkhead.memory.rules import Rules


class Charge:
    """Bytes of a cell that are in use until `release()`, the end of a `with` block, or the loss of the last reference.

    Made by `MemoryCell.charge` and `charge_for`. It keeps its cell, evicted or not.
    """

    __slots__ = ("__weakref__", "bytes", "cell", "note")

    bytes: int
    """How many they are, or were."""
    cell: MemoryCell
    """Whose they are."""
    note: Note | None

    def release(self) -> None:
        """Give the bytes back. Any number of times, from any thread; they are given back once."""
        self.cell.ledger.give_back(self)

    def grow(self, size: int) -> None:
        """Charge that many bytes more. QuotaExceeded: nothing changed. ValueError: it was released already."""
        if type(size) is not int or not 0 <= size <= MAXIMUM_BYTES:
            size = checked(size)
        cell = self.cell
        cell.follow()
        answer = cell.ledger.grow(self, size)
        if answer == DONE:
            return
        if answer == AGAIN:
            raise ValueError("this charge was released; make another one")
        cell.refuse(size, answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.cell.ledger.give_back(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a charge can be neither copied nor pickled: it would be given back twice")

    def __repr__(self) -> str:
        return f"<Charge of {self.bytes:,} bytes{', released' if self.note is None else ''}>"


class MemoryCell:
    """What one tenant has in use, of what it was allowed.

    Obtained from `current_memory_cell()` or `cells.get_or_create(tenant)`; as long as anybody holds it, it counts.
    """

    __slots__ = ("__weakref__", "_rules", "dismissed", "ledger", "rule", "tenant", "used")

    def __init__(self, tenant: str, rules: Rules) -> None:
        self.tenant: Final = tenant
        """Whose it is."""
        self.ledger: Final = new_ledger()
        self.used = 0.0
        """When the registry last gave it to somebody, by the registry's clock."""
        self.dismissed = False
        """It was let go by order: who asks next gets another one."""
        self._rules, self.rule = rules, rules.before

    # ---- charges

    def charge(self, size: int) -> Charge:
        """Reserve that many bytes, 0 to 2**63 - 1, until the charge is released or lost.

        QuotaExceeded: there is no room for them, and nothing changed; to reach the quota exactly is fine. 0 bytes are
        never refused. TypeError, ValueError for anything else.
        """
        if type(size) is not int or not 0 <= size <= MAXIMUM_BYTES:
            size = checked(size)
        if self.rule is not self._rules.now:
            self.follow()
        ledger = self.ledger
        charge = Charge()
        charge.cell = self
        charge.bytes = size
        charge.note = note = ref(charge, ledger.note)
        in_use = ledger.reserve(note, size)
        if in_use >= 0:
            note = charge.note = None  # type: ignore[assignment]  # or it would tell of a loss
            self.refuse(size, in_use)
        return charge

    def charge_for(self, one: Any, size: Callable[[Any], int] | None = None) -> Charge:
        """Charge what this object takes: bytes, bytearray, memoryview, array.array, anything with `nbytes`.

        `size`: a function that says it, for other objects. The charge does not keep the object. TypeError for objects
        that cannot tell; else as `charge`.
        """
        return self.charge(real_size(one, size))

    # ---- what there is

    @property
    def tracked_bytes(self) -> int:
        """Bytes in use: charges and scratch. Never negative."""
        return self.ledger.tracked()

    @property
    def peak_bytes(self) -> int:
        """The most that was ever in use."""
        return self.ledger.peak

    @property
    def quota_bytes(self) -> int:
        """How many may be in use, by the settings of now; 0 = no quota."""
        self.follow()
        return self.ledger.limit % UNLIMITED

    @property
    def scratch(self) -> Scratch:
        """The cell's own store, str -> bytes, whose contents count against the same quota."""
        return Scratch(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a memory cell can be neither copied nor pickled: it is this process's account")

    def __repr__(self) -> str:
        quota = self.quota_bytes
        return f"<MemoryCell of {self.tenant!r}: {self.tracked_bytes:,} of {f'{quota:,}' if quota else 'any'} bytes>"

    # ---- for the parts of this package

    def keep(self, key: str, old: Entry | None, value: Value) -> bool:
        """Put this into the scratch in the place of `old`. False: something else is there by now. QuotaExceeded."""
        if self.rule is not self._rules.now:
            self.follow()
        size = getsizeof(value)
        if isinstance(value, memoryview):
            size += value.nbytes
        new = (value, getsizeof(key) if old is None else old[1], size)
        answer = self.ledger.put(key, old, new, self.rule.overhead)
        if answer is not None and answer[0] != AGAIN:
            self.refuse(*answer)
        return answer is None

    def follow(self) -> None:
        """Take over the quota of the rule in force. Its callable runs here, so nothing may be half done.

        What that callable charges itself has the quota from before.
        """
        while (rule := self._rules.now) is not self.rule:
            limit = rule.limit_of(self.tenant)
            if limit is None:
                return
            self.ledger.adopt(self, limit, rule)

    def refuse(self, size: int, in_use: int) -> NoReturn:
        """There is no room for `size` bytes more: count it, say it, raise it."""
        self._rules.count_refusal(self.tenant)
        raise QuotaExceeded(self.tenant, size, in_use, self.ledger.limit % UNLIMITED)

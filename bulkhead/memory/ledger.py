"""The books of one cell: bytes that are charged, entries that are kept, and nothing about tenants or settings.

Rules for a change. Every method body that changes something makes no call between its first read and its last store,
and allocates nothing there that the garbage collector tracks. With the GIL, CPython (3.10 and later) switches threads,
runs signal handlers and finalizers at calls, at the start of functions and at backward jumps only, so such a body
happens as a whole or not at all, and needs no lock (the reasoning of counting.py; `x[key]`, `in` and `del` on a dict
whose keys are str or weak references are no calls). Without the GIL the same bodies run under a lock, `LockedLedger`.
What can raise comes first: a dict that has no memory left raises before any number has changed. (A debugger that runs
Python code between two lines of a body breaks this.)

A charge that is lost comes back by a weak reference whose callback is `returned.append`, a C method, so nothing of ours
runs at the moment of the loss (`__del__` can be hit by an exception itself, and the charge would be gone with it).
Whoever looks at the books next folds in what has come back.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from bulkhead.counting import GIL

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ref

    from bulkhead.memory.cell import Charge, MemoryCell
    from bulkhead.memory.rules import Rule

    Note = ref[Charge]

Value = bytes | bytearray | memoryview
Entry = tuple[Value, int, int]
"""A value, and what its key and the value itself were charged."""

DONE: Final = -1
AGAIN: Final = -2
UNLIMITED: Final = 1 << 200
"""The limit where there is none: an int compares faster with an int."""
_OLDEST: Final = -1 if GIL else 0
# A deque takes 600 bytes when it is empty; but only its first item stays where it is while others are appended.
_Returned: Final[Callable[[], Any]] = list if GIL else deque


class Ledger:
    """Bytes in use, and why.

    Invariant: `count` = what `owed` says of each charge + `kept` (keys and values of `entries`) + `marked` (an overhead
    for each entry that there ever was at the same time); at most `limit` at the moment when it last grew.
    """

    __slots__ = (
        "count", "entries", "kept", "limit", "mark", "marked", "note", "number", "owed", "peak", "returned",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = self.peak = 0
        self.limit = UNLIMITED
        self.owed: dict[Note | None, int] = {}
        self.returned: Any = _Returned()
        self.note: Callable[[Note], None] = self.returned.append
        self.entries: dict[str, Entry] = {}
        self.kept = self.number = 0
        self.mark = self.marked = 0

    def fresh_lock(self) -> None:
        """In a forked child: nobody holds a lock."""

    def adopt(self, cell: MemoryCell, limit: int, rule: Rule) -> None:
        """This limit holds, by this rule."""
        self.limit = limit
        cell.rule = rule

    # ---- charges

    def reserve(self, note: Note, size: int) -> int:
        """Charge `size` bytes to the charge of this note. DONE, or the bytes in use that leave no room for it."""
        if self.returned:
            self.fold()
        total = self.count + size
        if total > self.limit and size:
            return self.count
        self.owed[note] = size
        self.count = total
        if total > self.peak:
            self.peak = total
        return DONE

    def grow(self, charge: Charge, size: int) -> int:
        """The same for a charge that there is. AGAIN: it was released."""
        if self.returned:
            self.fold()
        note, owed = charge.note, self.owed
        if note not in owed:
            return AGAIN
        total = self.count + size
        if total > self.limit and size:
            return self.count
        owed[note] = owed[note] + size
        self.count = total
        charge.bytes = charge.bytes + size
        if total > self.peak:
            self.peak = total
        return DONE

    def give_back(self, charge: Charge) -> None:
        """The charge is over; nothing happens the second time."""
        note, owed = charge.note, self.owed
        if note in owed:
            self.count = self.count - owed[note]
            del owed[note]
            charge.note = None

    def fold(self) -> None:
        """Take out what was lost."""
        returned, owed, note = self.returned, self.owed, None
        while returned:
            try:
                note = returned[_OLDEST]
                if note in owed:
                    self.count = self.count - owed[note]
                    del owed[note]
                del returned[_OLDEST]
            except TypeError:  # it never was in the books, so nobody has asked for its hash while it could tell
                if returned and returned[_OLDEST] is note:  # else what was made for the error ran the garbage collector
                    del returned[_OLDEST]
            except IndexError:  # another thread, or a signal handler, was here first
                return

    def tracked(self) -> int:
        """Bytes in use now."""
        if self.returned:
            self.fold()
        return self.count

    # ---- entries: the caller has looked at what is there (`old`), and keeps that until afterwards

    def put(self, key: str, old: Entry | None, new: Entry, overhead: int) -> tuple[int, int] | None:
        """Keep `new` in the place of `old`.

        None: done. (bytes wanted, bytes in use): there is no room. (AGAIN, 0): something else than `old` is there.
        """
        if self.returned:
            self.fold()
        entries = self.entries
        if (entries[key] if key in entries else None) is not old:
            return AGAIN, 0
        more = new[1] + new[2]
        higher = 0
        if old is not None:
            more = more - old[1] - old[2]
        elif self.number == self.mark:
            higher = overhead
        total = self.count + more + higher
        if total > self.limit and more + higher > 0:
            return more + higher, self.count
        entries[key] = new
        self.count = total
        self.kept = self.kept + more
        if old is None:
            self.number = self.number + 1
            if self.number > self.mark:
                self.mark = self.number
                self.marked = self.marked + higher
        if total > self.peak:
            self.peak = total
        return None

    def last(self) -> str | None:
        """The key that was inserted last; None: there is none."""
        # All in one call of C: where another thread changes the dictionary between `reversed` and `next`, CPython may
        # read behind its end.
        return next(map(next, map(reversed, (self.entries,))), None)

    def remove(self, key: str, old: Entry) -> bool:
        """Keep it no more. False: something else is there by now."""
        entries = self.entries
        if (entries[key] if key in entries else None) is not old:
            return False
        del entries[key]
        size = old[1] + old[2]
        self.count = self.count - size
        self.kept = self.kept - size
        self.number = self.number - 1
        return True

    def clear(self, nothing: dict[str, Entry]) -> dict[str, Entry]:
        """Keep nothing any more, and return what there was, so that it goes when the caller lets it."""
        entries = self.entries
        self.entries = nothing
        self.count = self.count - self.kept
        self.kept = self.number = 0
        return entries


class LockedLedger(Ledger):
    """The same where threads run at once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        super().__init__()
        self.fresh_lock()

    def fresh_lock(self) -> None:
        self._lock = threading.RLock()  # a signal handler or a finalizer may charge, too

    def adopt(self, cell: MemoryCell, limit: int, rule: Rule) -> None:
        with self._lock:
            super().adopt(cell, limit, rule)

    def reserve(self, note: Note, size: int) -> int:
        with self._lock:
            return super().reserve(note, size)

    def grow(self, charge: Charge, size: int) -> int:
        with self._lock:
            return super().grow(charge, size)

    def give_back(self, charge: Charge) -> None:
        with self._lock:
            super().give_back(charge)

    def fold(self) -> None:
        with self._lock:
            super().fold()

    def tracked(self) -> int:
        with self._lock:
            return super().tracked()

    def put(self, key: str, old: Entry | None, new: Entry, overhead: int) -> tuple[int, int] | None:
        with self._lock:
            return super().put(key, old, new, overhead)

    def last(self) -> str | None:  # two threads at once in such an iterator end the process (3.13)
        with self._lock:
            return super().last()

    def remove(self, key: str, old: Entry) -> bool:
        with self._lock:
            return super().remove(key, old)

    def clear(self, nothing: dict[str, Entry]) -> dict[str, Entry]:
        with self._lock:
            return super().clear(nothing)


new_ledger: Final[type[Ledger]] = Ledger if GIL else LockedLedger

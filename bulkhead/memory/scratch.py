"""A cell's own store of bytes: a mapping whose contents count against the quota.

A view: it keeps its cell, and the cell keeps the entries. What is kept is measured before it is let in and remembered
with the entry, so what an entry gives back is what it took. Entries are changed by one step of the ledger each; if
somebody else was there between looking and changing, it is looked again. Values that go are dropped after that step,
because a value kept with copy=False may run somebody's code when it goes.
"""

from __future__ import annotations

from collections.abc import ItemsView as _ItemsView
from collections.abc import Iterator, Mapping, MutableMapping
from collections.abc import ValuesView as _ValuesView
from typing import TYPE_CHECKING, Any, NoReturn

from bulkhead.memory.ledger import Entry, Value

if TYPE_CHECKING:
    from bulkhead.memory.cell import MemoryCell

_NOTHING: Any = object()


class Scratch(MutableMapping[str, Value]):
    """str -> bytes, charged to the cell: the size of key and value (`sys.getsizeof`: capacity, not length), and
    `scratch_entry_overhead` for each entry above the highest number that there ever was.

    Removing gives back key and value, not the overhead, which the next entry uses again; so does `clear()`. Replacing a
    value charges the difference: one that is no larger is never refused. QuotaExceeded: nothing changed. Keys are plain
    str. bytearray and memoryview are copied to bytes, unless `insert(…, copy=False)`. Any thread may use it; iterating
    goes over what was there at its beginning. `update()` goes entry by entry: what is refused is refused alone.
    """  # noqa: D205  the first sentence is long

    __slots__ = ("_cell",)

    def __init__(self, cell: MemoryCell) -> None:
        self._cell = cell

    # ---- one entry

    def insert(self, key: str, value: Value, *, copy: bool = True) -> None:
        """As `scratch[key] = value`; with copy=False the very object is kept, and charged as large as it is now.

        QuotaExceeded: nothing changed. TypeError for other keys and values.
        """
        if type(key) is not str:
            raise TypeError(f"a key is a str, not {type(key).__name__}")
        kept = _kept(value, copy=copy)
        cell = self._cell
        while not cell.keep(key, cell.ledger.entries.get(key), kept):
            pass

    def __setitem__(self, key: str, value: Value) -> None:
        self.insert(key, value)

    def __getitem__(self, key: str) -> Value:
        return self._cell.ledger.entries[key][0]

    def __delitem__(self, key: str) -> None:
        self._take(key)

    def __contains__(self, key: object) -> bool:
        return key in self._cell.ledger.entries

    def pop(self, key: str, default: Any = _NOTHING) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Remove the entry and return its value. KeyError without a default."""
        try:
            return self._take(key)[0]
        except KeyError:
            if default is _NOTHING:
                raise
            return default

    def popitem(self) -> tuple[str, Value]:
        """Remove and return the entry that was inserted last. KeyError if there is none."""
        while True:
            key = self._cell.ledger.last()
            if key is None:
                raise KeyError("the scratch is empty")
            try:
                return key, self._take(key)[0]
            except KeyError:  # gone meanwhile
                continue

    def setdefault(self, key: str, default: Value | None = None) -> Value:
        """The value that is there, else `default` inserted. QuotaExceeded, TypeError as `insert`."""
        if type(key) is not str:
            raise TypeError(f"a key is a str, not {type(key).__name__}")
        cell = self._cell
        kept: Value | None = None
        while True:
            there = cell.ledger.entries.get(key)
            if there is not None:
                return there[0]
            if kept is None:
                kept = _kept(default, copy=True)
            if cell.keep(key, None, kept):
                return kept

    def _take(self, key: str) -> Entry:
        ledger = self._cell.ledger
        if not issubclass(type(key), str):
            raise KeyError(key)
        plain = str.__str__(key)  # a member of a StrEnum finds its entry here too
        while True:
            old = ledger.entries[plain]
            if ledger.remove(plain, old):
                return old

    # ---- all of them

    def clear(self) -> None:
        """Remove all entries at once."""
        self._cell.ledger.clear({})

    def __len__(self) -> int:
        return len(self._cell.ledger.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._snapshot())

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._snapshot())

    def items(self) -> _Items:
        """A view of keys and values."""
        return _Items(self)

    def values(self) -> _Values:
        """A view of the values."""
        return _Values(self)

    def snapshot(self) -> dict[str, Value]:
        """A plain dict of what is there now; the values are not copied."""
        return {key: entry[0] for key, entry in self._snapshot().items()}

    def _snapshot(self) -> dict[str, Entry]:
        return self._cell.ledger.entries.copy()

    def __eq__(self, other: object) -> bool:
        return self.snapshot() == dict(other) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a scratch can be neither copied nor pickled; dict(scratch) is a copy of what is in it")

    def __repr__(self) -> str:
        number = len(self)
        return f"<Scratch of {number} entr{'y' if number == 1 else 'ies'}>"


class _Items(_ItemsView[str, Value]):
    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return iter(_of(self).snapshot().items())


class _Values(_ValuesView[Value]):
    def __iter__(self) -> Iterator[Value]:
        return iter(_of(self).snapshot().values())

    def __contains__(self, value: object) -> bool:
        return any(one is value or one == value for one in self)


def _of(view: Any) -> Scratch:
    scratch: Scratch = view._mapping  # noqa: SLF001  where collections.abc keeps it
    return scratch


def _kept(value: Any, *, copy: bool) -> Value:
    """What the scratch keeps of this value."""
    if type(value) is bytes:
        return value
    if not issubclass(type(value), (bytes, bytearray, memoryview)):  # isinstance would let in what stands for one
        raise TypeError(f"a value is bytes, a bytearray or a memoryview, not {type(value).__name__}")
    if not copy:
        kept: Value = value
        return kept
    return memoryview(value).tobytes()  # bytes(value) would ask a subclass, which may answer with anything

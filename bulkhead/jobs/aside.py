"""Jobs that wait but are in no line, so they give their tenant no place in the round: not due, or without a handler.

Pure but for the moments that are arguments. No lock: the one who uses it has one.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from bulkhead.jobs.records import Entry

BATCH = 200  # jobs that are moved at a time: a millisecond or so, in an event loop and under the lock
SAY_AGAIN = 60.0  # seconds between two warnings of one name


class Later:
    """Jobs that are not due: delayed, or between two attempts."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._order = itertools.count()

    def add(self, entry: Entry) -> bool:
        """Keep it until it is due. Is it the next one now?"""
        heapq.heappush(self._heap, (entry.due, next(self._order), entry))
        return self._heap[0][2] is entry

    def due(self, now: float) -> list[Entry]:
        """Those that are due, in order; of many the first BATCH. They stay."""
        found: list[Entry] = []
        heap = self._heap
        front = [(*heap[0][:2], 0)] if heap else []
        while front and front[0][0] <= now and len(found) < BATCH:  # down the heap, always on from the earliest
            place = heapq.heappop(front)[2]
            found.append(heap[place][2])
            for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heapq.heappush(front, (*heap[below][:2], below))
        return found

    def first(self, now: float, tenants: Collection[str | None]) -> Entry | None:
        """The next job if it is due and of one of these tenants."""
        if not self._heap or self._heap[0][0] > now or self._heap[0][2].tenant not in tenants:
            return None
        return self._heap[0][2]

    def remove_first(self) -> None:
        """It has gone elsewhere."""
        heapq.heappop(self._heap)

    def wait(self, now: float, longest: float) -> float:
        """Seconds until the next one is due, at most `longest`."""
        return min(longest, self._heap[0][0] - now) if self._heap else longest

    def all(self) -> list[Entry]:
        """All of them, the next one first."""
        return [entry for _, _, entry in sorted(self._heap, key=lambda one: one[:2])]

    def take_all(self) -> list[Entry]:
        """All of them, the next one first; none is kept."""
        found = self.all()
        self._heap.clear()
        return found

    def __len__(self) -> int:
        return len(self._heap)


class Unknown:
    """Jobs whose name no handler has."""

    __slots__ = ("_of", "_said")

    def __init__(self) -> None:
        self._of: dict[str, dict[Entry, None]] = {}  # by name
        self._said: dict[str, float] = {}

    def add(self, entry: Entry) -> None:
        """Keep it until a handler has its name."""
        self._of.setdefault(entry.name, {})[entry] = None

    def remove(self, entry: Entry) -> None:
        """It has gone elsewhere."""
        entries = self._of[entry.name]
        del entries[entry]
        if not entries:
            del self._of[entry.name]
            self._said.pop(entry.name, None)

    def expired(self, before: float) -> list[Entry]:
        """Those that were kept before this moment; of many the first BATCH."""
        found = (
            entry
            for entries in self._of.values()
            for entry in itertools.takewhile(lambda one: one.since < before, entries)
        )
        return list(itertools.islice(found, BATCH))

    def known(self, names: Collection[str]) -> list[Entry]:
        """Those that have a handler by now; of many the first BATCH."""
        found = (entry for name, entries in self._of.items() if name in names for entry in entries)
        return list(itertools.islice(found, BATCH))

    def to_be_said(self, now: float) -> dict[str, int]:
        """Names with how many wait, each of them once a minute."""
        found = {
            name: len(entries)
            for name, entries in self._of.items()
            if name not in self._said or now - self._said[name] >= SAY_AGAIN
        }
        self._said |= dict.fromkeys(found, now)
        return found

    def numbers(self) -> dict[str, int]:
        """Name -> how many wait."""
        return {name: len(entries) for name, entries in self._of.items()}

    def all(self) -> list[Entry]:
        """All of them."""
        return [entry for entries in self._of.values() for entry in entries]

    def take_all(self) -> list[Entry]:
        """All of them; none is kept."""
        found = self.all()
        self._of.clear()
        self._said.clear()
        return found

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

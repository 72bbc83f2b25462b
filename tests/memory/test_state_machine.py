"""Random stories against a naive model: what is in use is what the model says, at every step, in every cell."""

from __future__ import annotations

from sys import getsizeof
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from stories import Clock

from bulkhead import QuotaExceeded
from bulkhead.memory import Charge, MemoryCell, MemoryCells

pytestmark = pytest.mark.timeout(400)
TENANTS = st.sampled_from(["a", "b", "c", "d", "e"])
KEYS = st.sampled_from(["k", "key", "another key"])
SIZES = st.integers(0, 400)
OVERHEAD = 20


class Books:
    """What one cell should hold."""

    def __init__(self) -> None:
        self.charges: dict[int, int] = {}
        self.entries: dict[str, bytes] = {}
        self.mark = self.peak = 0

    @property
    def total(self) -> int:
        kept = sum(getsizeof(key) + getsizeof(value) for key, value in self.entries.items())
        return sum(self.charges.values()) + kept + OVERHEAD * self.mark


class CellStory(RuleBasedStateMachine):
    """Cells are known to the model by the object: a tenant can have several, of which one is in the registry."""

    charges = Bundle("charges")

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.quota, self.most = Clock(0), 1000, 3
        self.cells = MemoryCells(
            clock=self.clock, quota_bytes=self.quota, max_cells=self.most, scratch_entry_overhead=OVERHEAD
        )
        self.order: dict[str, float] = {}  # tenant -> when it was asked for, the one longest ago first
        self.held: dict[int, Charge] = {}
        self.number = 0
        self.books: dict[int, tuple[MemoryCell, Books]] = {}  # of cells that are held by the model, so that ids stay

    def ask(self, tenant: str) -> tuple[MemoryCell, Books]:
        present = tenant in self.order
        cell = self.cells.get_or_create(tenant)
        self.order.pop(tenant, None)
        self.order[tenant] = self.clock.now
        if not present and len(self.order) > self.most:
            del self.order[next(iter(self.order))]
        return self.books.setdefault(id(cell), (cell, Books()))

    def fits(self, books: Books, more: int) -> bool:
        return more <= 0 or books.total + more <= self.quota

    @rule(target=charges, tenant=TENANTS, size=SIZES)
    def charge(self, tenant: str, size: int) -> Any:
        cell, books = self.ask(tenant)
        fits = self.fits(books, size)
        try:
            charge = cell.charge(size)
        except QuotaExceeded as error:
            said: tuple[object, ...] | None = error.args
        else:
            said = None
        assert said == (None if fits else (tenant, size, books.total, self.quota))
        if not fits:
            return multiple()
        self.number += 1
        self.held[self.number] = charge
        books.charges[self.number] = size
        books.peak = max(books.peak, books.total)
        return self.number

    @rule(number=charges, size=SIZES)
    def grow(self, number: int, size: int) -> None:
        charge = self.held[number]
        books = self.books[id(charge.cell)][1]
        fits = self.fits(books, size)
        try:
            charge.grow(size)
        except QuotaExceeded:
            assert not fits
        except ValueError:
            assert number not in books.charges
        else:
            assert fits
            books.charges[number] += size
            books.peak = max(books.peak, books.total)

    @rule(number=charges)
    def release(self, number: int) -> None:
        self.held[number].release()
        self.books[id(self.held[number].cell)][1].charges.pop(number, None)

    @rule(number=consumes(charges))
    def lose(self, number: int) -> None:
        self.books[id(self.held[number].cell)][1].charges.pop(number, None)
        del self.held[number]

    @rule(tenant=TENANTS, key=KEYS, size=SIZES, only=st.booleans())
    def insert(self, tenant: str, key: str, size: int, only: bool) -> None:  # noqa: FBT001  a rule
        cell, books = self.ask(tenant)
        value, old = bytes(size), books.entries.get(key)
        if only and old is not None:
            assert cell.scratch.setdefault(key, value) == old
            return
        if old is not None:
            more = getsizeof(value) - getsizeof(old)
        else:
            more = getsizeof(key) + getsizeof(value) + (OVERHEAD if len(books.entries) == books.mark else 0)
        fits = self.fits(books, more)
        try:
            cell.scratch[key] = value
        except QuotaExceeded as error:
            said: tuple[object, ...] | None = error.args
        else:
            said = None
        assert said == (None if fits else (tenant, more, books.total, self.quota))
        if fits:
            books.entries[key] = value
            books.mark = max(books.mark, len(books.entries))
            books.peak = max(books.peak, books.total)

    @rule(tenant=TENANTS, key=KEYS, how=st.sampled_from(["pop", "del", "popitem", "clear"]))
    def remove(self, tenant: str, key: str, how: str) -> None:
        cell, books = self.ask(tenant)
        if how == "clear":
            cell.scratch.clear()
            books.entries.clear()
        elif how == "popitem":
            if books.entries:
                assert cell.scratch.popitem() == books.entries.popitem()
        elif how == "pop":
            assert cell.scratch.pop(key, None) == books.entries.pop(key, None)
        elif key in books.entries:
            del cell.scratch[key]
            del books.entries[key]

    @rule(tenant=TENANTS)
    def evict(self, tenant: str) -> None:
        cell = self.cells.evict(tenant)
        self.order.pop(tenant, None)
        assert self.cells.find(tenant) is None
        assert cell is None or cell.tenant == tenant

    @rule(seconds=st.sampled_from([0, 1, 5]), older=st.sampled_from([0, 3]))
    def time_passes(self, seconds: float, older: float) -> None:
        self.clock.advance(seconds)
        gone = [tenant for tenant, asked in self.order.items() if self.clock.now - asked > older]
        assert self.cells.evict_idle_older_than(older) == len(gone)
        for tenant in gone:
            del self.order[tenant]

    @rule(quota=st.sampled_from([300, 1000, 1500]))
    def change_the_quota(self, quota: int) -> None:
        self.quota = quota
        self.cells.configure(quota_bytes=quota)

    @rule(tenant=TENANTS)
    def let_an_empty_one_go(self, tenant: str) -> None:
        """The model holds cells; one that the registry let go, and no charge holds, it lets go too."""
        for key, (cell, _) in list(self.books.items()):
            held = cell in self.cells or any(charge.cell is cell for charge in self.held.values())
            if cell.tenant == tenant and not held:
                del self.books[key]

    @invariant()
    def the_books_are_right(self) -> None:
        for cell, books in self.books.values():
            assert (cell.tracked_bytes, cell.peak_bytes) == (books.total, books.peak)
            assert dict(cell.scratch) == books.entries

    @invariant()
    def the_sum_is_the_total(self) -> None:
        assert self.cells.total_tracked_bytes == sum(books.total for _, books in self.books.values())
        assert {id(cell) for cell in self.cells} <= set(self.books)

    @invariant()
    def those_asked_for_last_are_there(self) -> None:
        assert [cell.tenant for cell in self.cells] == list(self.order)


TestCells = CellStory.TestCase

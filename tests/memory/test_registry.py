"""The registry, by stories on a clock moved by hand: who is let go, who comes back, and what the total says."""

from __future__ import annotations

import gc
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import pytest
from stories import Clock

from bulkhead import ConfigurationError
from bulkhead.memory import MemoryCells

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

T = TypeVar("T")


def made(clock: Clock | None = None, **options: Any) -> MemoryCells:
    return MemoryCells(clock=clock or Clock(), **options)


def names(cells: MemoryCells) -> list[str]:
    return [cell.tenant for cell in cells]


def test_a_tenant_has_one_cell() -> None:
    cells = made()
    one = cells.get_or_create("acme")
    assert cells.get_or_create("acme") is one
    assert (len(cells), one.tenant, cells.find("acme"), cells.find("other")) == (1, "acme", one, None)
    assert one in cells
    assert cells.get_or_create(7) is cells.get_or_create("7")
    number = UUID(int=5)
    assert cells.get_or_create(number).tenant == str(number)


@pytest.mark.parametrize("wrong", ["", "x" * 257, "a\nb", 1.5, None, True, b"x", "\ud800"])
def test_what_is_no_tenant_id_gets_no_cell(wrong: Any) -> None:
    cells = made()
    for call in (cells.get_or_create, cells.find, cells.evict):
        with pytest.raises(ConfigurationError):
            call(wrong)
    assert len(cells) == 0


def test_above_max_cells_the_one_asked_for_longest_ago_goes() -> None:
    cells = made(max_cells=3)
    for tenant in "abc":
        cells.get_or_create(tenant)
    cells.get_or_create("a")
    cells.get_or_create("d")
    assert names(cells) == ["c", "a", "d"]
    cells.find("c")
    cells.get_or_create("e")
    assert names(cells) == ["a", "d", "e"], "to look is not to ask for it"


def test_max_cells_0_is_no_bound() -> None:
    cells = made(max_cells=0)
    for number in range(20_000):
        cells.get_or_create(str(number))
    assert len(cells) == 20_000


def test_a_lowered_max_cells_is_reached_a_few_at_a_time() -> None:
    cells = made(max_cells=100)
    for number in range(100):
        cells.get_or_create(str(number))
    cells.configure(max_cells=10)
    assert len(cells) == 100, "only insertions let go"
    for number, left in enumerate([85, 70, 55, 40, 25, 10]):
        cells.get_or_create(f"new{number}")
        assert len(cells) == left
    assert names(cells)[4:] == [f"new{number}" for number in range(6)]


def test_cells_that_nobody_asked_for_are_let_go_when_another_one_is_made() -> None:
    clock = Clock(0)
    cells = made(clock, idle_ttl_secs=10)
    cells.get_or_create("a")
    cells.get_or_create("b")
    clock.advance(5)
    cells.get_or_create("b")
    clock.advance(5)
    cells.get_or_create("c")
    assert names(cells) == ["a", "b", "c"], "10 seconds are not more than 10"
    clock.advance(0.5)
    cells.get_or_create("c")
    assert names(cells) == ["a", "b", "c"], "nothing was inserted"
    cells.get_or_create("d")
    assert names(cells) == ["b", "c", "d"]


def test_evict_idle_older_than_lets_go_of_those_strictly_older() -> None:
    clock = Clock(0)
    cells = made(clock)
    for tenant in "abcd":
        cells.get_or_create(tenant)
        clock.advance(1)
    assert cells.evict_idle_older_than(4) == 0
    assert cells.evict_idle_older_than(2) == 2
    assert names(cells) == ["c", "d"]
    clock.advance(0.25)
    assert cells.evict_idle_older_than(0) == 2
    assert cells.evict_idle_older_than(0) == 0
    for wrong in (-1, float("nan"), float("inf"), "5", None, True):
        with pytest.raises(ConfigurationError, match="evict_idle_older_than takes a number of seconds"):
            cells.evict_idle_older_than(wrong)  # type: ignore[arg-type]


def test_very_many_idle_cells_go_at_one_call() -> None:
    clock = Clock(0)
    cells = made(clock, max_cells=0)
    for number in range(5000):
        cells.get_or_create(str(number))
    clock.advance(1)
    assert cells.evict_idle_older_than(0.5) == 5000
    assert (len(cells), cells.total_tracked_bytes) == (0, 0)


def test_the_total_counts_what_was_let_go_until_the_last_reference_goes() -> None:
    cells = made(max_cells=1)
    held = cells.get_or_create("a")
    charge = held.charge(100)
    held.scratch["key"] = b"x"
    kept = held.tracked_bytes
    cells.get_or_create("b").charge(0)
    other = cells.get_or_create("b").charge(7)
    assert (names(cells), cells.total_tracked_bytes) == (["b"], kept + 7)
    assert held not in cells
    more = held.charge(50)
    assert cells.total_tracked_bytes == kept + 50 + 7, "who holds it goes on"
    del held
    more.release()
    assert cells.total_tracked_bytes == kept + 7, "the charge holds its cell"
    scratch = charge.cell.scratch
    charge.release()
    del charge, more
    assert cells.total_tracked_bytes == kept - 100 + 7, "the scratch holds it"
    del scratch
    assert cells.total_tracked_bytes == 7
    other.release()
    assert cells.total_tracked_bytes == 0


def test_a_cell_goes_at_once_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        cells = made(max_cells=1)
        one = cells.get_or_create("a")
        one.scratch["key"] = b"x"
        one.charge(5).release()
        gone = weakref.ref(one)
        del one
        cells.get_or_create("b")
        assert gone() is None
    finally:
        gc.enable()


def test_a_tenant_that_comes_back_while_somebody_holds_its_cell_gets_the_same() -> None:
    cells = made(max_cells=1, quota_bytes=100)
    held = cells.get_or_create("a")
    charge = held.charge(80)
    cells.get_or_create("b")
    assert cells.find("a") is held
    assert cells.get_or_create("a") is held, "a second one would double its quota"
    assert (names(cells), cells.total_tracked_bytes) == (["a"], 80)
    charge.release()


def test_idle_cells_come_back_too() -> None:
    clock = Clock(0)
    cells = made(clock)
    held = cells.get_or_create("a")
    clock.advance(10)
    assert cells.evict_idle_older_than(5) == 1
    assert cells.get_or_create("a") is held
    assert cells.evict_idle_older_than(5) == 0, "it was asked for just now"


def test_a_cell_that_nobody_held_begins_anew() -> None:
    cells = made(max_cells=1)
    cells.get_or_create("a").scratch["key"] = b"x"
    cells.get_or_create("b")
    again = cells.get_or_create("a")
    assert (again.tracked_bytes, again.peak_bytes, dict(again.scratch)) == (0, 0, {})


def test_evict_is_an_order_the_next_one_is_fresh() -> None:
    cells = made(quota_bytes=100)
    held = cells.get_or_create("a")
    charge = held.charge(80)
    assert cells.evict("a") is held
    assert (len(cells), cells.find("a"), cells.total_tracked_bytes) == (0, None, 80)
    fresh = cells.get_or_create("a")
    assert fresh is not held
    other = fresh.charge(100)
    assert cells.total_tracked_bytes == 180, "up to twice the quota, until the old one goes"
    del held, charge
    assert cells.total_tracked_bytes == 100
    other.release()
    assert cells.evict("nobody") is None


def test_evict_is_an_order_also_for_a_cell_that_was_let_go_before() -> None:
    cells = made(max_cells=1)
    held = cells.get_or_create("a")
    charge = held.charge(5)
    cells.get_or_create("b")
    assert cells.evict("a") is held
    assert cells.evict("a") is None
    assert cells.get_or_create("a") is not held
    assert cells.total_tracked_bytes == 5
    charge.release()


def struck_at(at: int, handler: Callable[[], object], call: Callable[[], T]) -> tuple[T, bool]:
    """What call() returned, with handler() called where the at-th call inside of it returns; whether it came to that."""
    count = 0

    def profile(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event.endswith("return")
        if count == at:
            sys.setprofile(None)
            handler()

    sys.setprofile(profile)
    result = call()
    struck = sys.getprofile() is None
    sys.setprofile(None)
    return result, struck


@pytest.mark.parametrize("during", ["it comes back", "it is let go"])
def test_evict_is_an_order_also_from_a_signal_handler_while(during: str) -> None:
    def strike(at: int) -> bool:
        """Evict where the at-th call inside of the other one returns; whether it came to that."""
        cells = made(max_cells=1)
        held = cells.get_or_create("a")
        if during == "it comes back":
            cells.get_or_create("b")

        def order() -> None:
            assert cells.evict("a") is held

        _, struck = struck_at(at, order, partial(cells.get_or_create, "a" if during == "it comes back" else "b"))
        if struck:
            for call in (cells.find, cells.evict, cells.get_or_create):
                assert call("a") is not held
        return struck

    assert next(at for at in range(1, 100) if not strike(at)) > 5


@pytest.mark.parametrize("where", ["there", "let go"])
@pytest.mark.parametrize("what", ["get_or_create", "evict_idle_older_than"])
def test_a_signal_handler_does_not_undo_an_order(where: str, what: str) -> None:
    def strike(at: int) -> bool:
        """Do something else where the at-th call inside of evict() returns; whether it came to that."""
        clock = Clock()
        cells = made(clock, max_cells=1)
        held = cells.get_or_create("a")
        if where == "let go":
            cells.get_or_create("b")
        clock.now += 10
        ask = partial(cells.get_or_create, "a")
        other = ask if what == "get_or_create" else partial(cells.evict_idle_older_than, 5)
        ordered, struck = struck_at(at, other, partial(cells.evict, "a"))
        if struck:
            assert ordered is held
            for call in (cells.find, cells.evict, cells.get_or_create):
                assert call("a") is not ordered
        return struck

    assert next(at for at in range(1, 100) if not strike(at)) > 5


def test_an_evicted_cell_follows_its_quota() -> None:
    cells = made(quota_bytes=100)
    held = cells.get_or_create("a")
    cells.evict("a")
    cells.configure(quota_bytes=50)
    assert held.quota_bytes == 50


def test_what_is_known_of_cells_that_went_is_forgotten() -> None:
    cells = made(max_cells=2)
    held = [cells.get_or_create(str(number)) for number in range(300)]
    ordered = [cells.evict(str(number)) for number in range(100)]
    assert (len(cells._away), len(cells._dismissed)) == (198, 100)
    held.clear()
    ordered.clear()
    for number in range(20):
        cells.get_or_create(f"new{number}")
    assert (len(cells._away), len(cells._dismissed), len(cells._dead)) == (1, 0, 1)


def test_code_that_runs_as_a_cell_goes_may_use_the_registry() -> None:
    cells = made(max_cells=1)
    said: list[int] = []

    class Noisy(bytearray):
        def __del__(self) -> None:
            said.append(len(cells))
            cells.get_or_create("from a finalizer")

    cells.get_or_create("a").scratch.insert("key", Noisy(5), copy=False)
    cells.get_or_create("b")
    assert said == [1]
    assert names(cells) == ["from a finalizer"]


def test_without_cells_nothing_is_kept() -> None:
    cells = made()
    held = cells.get_or_create("a")
    charge = held.charge(5)
    cells.configure(enabled=False)
    assert (len(cells), cells.total_tracked_bytes) == (0, 5)
    assert cells.get_or_create("a") is held
    other = cells.get_or_create("b")
    with other.charge(3):
        assert (len(cells), cells.total_tracked_bytes, cells.get_or_create("b") is other) == (0, 8, True)
    del other
    assert (len(cells), cells.find("b")) == (0, None)
    cells.configure(enabled=True)
    assert cells.get_or_create("a") is held
    assert names(cells) == ["a"]
    charge.release()

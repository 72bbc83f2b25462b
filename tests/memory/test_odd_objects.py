"""Sizes, keys and values that are not what they seem, and code that runs where nobody expects it."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest
import wrapt
from counts import often

import bulkhead
from bulkhead.memory import MemoryCells

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.memory import Charge, MemoryCell


@pytest.fixture
def cell() -> MemoryCell:
    return MemoryCells(quota_bytes=10_000).get_or_create("acme")


class Number(int):
    """It compares as it likes, and is something else when it is converted."""

    def __le__(self, other: object) -> bool:
        return True

    def __ge__(self, other: object) -> bool:
        return True

    def __int__(self) -> int:
        return 5


class Text(bytes):
    """It is something else when it is converted."""

    def __bytes__(self) -> bytes:
        return Text(b"short")


class Sized(bytearray):
    """It says that it is smaller, or larger, than it is."""

    says: Any = 1

    def __sizeof__(self) -> int:
        return int(self.says)


def test_an_int_of_another_class_is_the_number_that_it_is(cell: MemoryCell) -> None:
    charge = cell.charge(Number(700))
    assert (charge.bytes, type(charge.bytes), cell.tracked_bytes) == (700, int, 700)
    charge.grow(Number(1))
    assert (charge.bytes, type(charge.bytes), cell.tracked_bytes) == (701, int, 701)
    for wrong in (Number(-1), Number(2**63)):
        with pytest.raises(ValueError, match=r"from 0 to 2\*\*63 - 1"):
            cell.charge(wrong)
        with pytest.raises(ValueError, match=r"from 0 to 2\*\*63 - 1"):
            charge.grow(wrong)
    assert cell.tracked_bytes == 701


def test_what_stands_for_a_number_is_no_number(cell: MemoryCell) -> None:
    """Frameworks have lazy objects and proxies that name the class of what they stand for, which may change."""
    proxy: Any = wrapt.ObjectProxy(700)
    assert proxy.__class__ is int
    charge = cell.charge(1)
    for attempt in (
        lambda: cell.charge(proxy),
        lambda: charge.grow(proxy),
        lambda: cell.charge_for("x", lambda _: proxy),
    ):
        with pytest.raises(TypeError, match="is an int, not ObjectProxy"):
            attempt()
    assert (cell.tracked_bytes, charge.bytes) == (1, 1)


def test_what_stands_for_a_key_or_a_value_is_neither_and_has_no_known_size(cell: MemoryCell) -> None:
    key: Any = wrapt.ObjectProxy("key")
    value: Any = wrapt.ObjectProxy(bytearray(5000))
    for insert in (lambda: cell.scratch.update({key: b"x"}), lambda: cell.scratch.setdefault(key, b"x")):
        with pytest.raises(TypeError, match="a key is a str, not ObjectProxy"):
            insert()
    for copy in (True, False):
        with pytest.raises(TypeError, match="a value is bytes, a bytearray or a memoryview, not ObjectProxy"):
            cell.scratch.insert("key", value, copy=copy)
    with pytest.raises(TypeError, match="the size of ObjectProxy is not known"):
        cell.charge_for(value)
    assert (cell.tracked_bytes, len(cell.scratch)) == (0, 0)


def test_bytes_of_another_class_come_back_as_the_bytes_that_they_are(cell: MemoryCell) -> None:
    for value in (Text(b"x" * 1000), Sized(b"x" * 1000)):
        cell.scratch["a"] = value
        assert type(cell.scratch["a"]) is bytes
        assert cell.scratch["a"] == b"x" * 1000
        assert cell.tracked_bytes > 1033
        cell.scratch.clear()


@pytest.mark.parametrize("says", [-1, 2**70])
def test_a_value_whose_size_makes_no_sense_is_not_kept(says: int, cell: MemoryCell) -> None:
    value = Sized(b"x")
    value.says = says
    with pytest.raises((ValueError, OverflowError)):
        cell.scratch.insert("a", value, copy=False)
    assert (cell.tracked_bytes, len(cell.scratch)) == (0, 0)


def test_a_view_that_was_released_is_neither_kept_nor_charged(cell: MemoryCell) -> None:
    view = memoryview(b"abc")
    view.release()
    attempts: list[Callable[[], object]] = [
        lambda: cell.charge_for(view),
        lambda: cell.scratch.insert("a", view),
        lambda: cell.scratch.insert("a", view, copy=False),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match="released"):
            attempt()
    assert (cell.tracked_bytes, len(cell.scratch)) == (0, 0)


def test_a_view_that_is_released_while_it_is_kept_frees_what_it_was_charged(cell: MemoryCell) -> None:
    view = memoryview(bytearray(1000))
    cell.scratch.insert("a", view, copy=False)
    assert cell.tracked_bytes > 1000
    view.release()
    assert cell.scratch.pop("a") is view
    assert cell.tracked_bytes == cell.ledger.marked


@pytest.mark.parametrize("view", [memoryview(b"0123456789")[::2], memoryview(bytes(12)).cast("B", (3, 4))])
def test_views_with_gaps_and_of_more_dimensions_are_copied(view: memoryview, cell: MemoryCell) -> None:
    cell.scratch["a"] = view
    assert cell.scratch["a"] == view.tobytes()
    assert cell.charge_for(view).bytes >= view.nbytes


def test_a_charge_that_two_threads_release_is_given_back_once(cell: MemoryCell) -> None:
    kept = cell.charge(1)
    for _ in range(often(100, 5000)):
        charge, both = cell.charge(10), threading.Barrier(2)

        def release(charge: Charge = charge, both: threading.Barrier = both) -> None:
            both.wait()
            charge.release()

        threads = [threading.Thread(target=release) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cell.tracked_bytes == 1
    assert kept.bytes == 1


def test_a_charge_that_grows_as_it_is_released_leaves_nothing(cell: MemoryCell) -> None:
    for _ in range(often(100, 5000)):
        charge, both = cell.charge(10), threading.Barrier(2)

        def grow(charge: Charge = charge, both: threading.Barrier = both) -> None:
            both.wait()
            try:
                charge.grow(5)
            except ValueError:
                pass  # it came second

        thread = threading.Thread(target=grow)
        thread.start()
        both.wait()
        charge.release()
        thread.join()
        assert cell.tracked_bytes == 0


def test_finalizers_and_callbacks_may_charge_keep_and_evict() -> None:
    registry = MemoryCells(quota_bytes=10_000, max_cells=3)
    ran: list[str] = []

    class Ends:
        def __init__(self) -> None:
            self.itself = self  # so that it ends wherever the garbage collector runs

        def __del__(self) -> None:
            one = registry.get_or_create("acme")
            with one.charge(7):
                one.scratch["a"] = b"1"
                del one.scratch["a"]
            registry.evict("acme")
            ran.append("finalizer")

    for number in range(often(2000, 50_000)):
        Ends()
        charge = registry.get_or_create(f"tenant {number % 5}").charge(3)
        watched = ref(charge, lambda _: ran.append(f"{registry.total_tracked_bytes}"))
        del charge
        assert watched() is None
    gc.collect()
    assert "finalizer" in ran
    for tenant in ("acme", *(f"tenant {number}" for number in range(5))):
        registry.evict(tenant)
    assert registry.total_tracked_bytes == 0


def test_a_callable_that_changes_the_quotas_is_asked_again(cell: MemoryCell) -> None:
    registry = MemoryCells()
    asked: list[str] = []

    def quota(tenant: str) -> int:
        asked.append(tenant)
        if len(asked) < 3:
            registry.configure(quota_bytes=len(asked))
        return 100

    registry.configure(tenant_quota_bytes=quota)
    one = registry.get_or_create("acme")
    with pytest.raises(bulkhead.QuotaExceeded):
        one.charge(101)
    assert (asked, one.quota_bytes, one.tracked_bytes) == (["acme"] * 3, 100, 0)


def test_numpy_tells_its_size_and_its_numbers_are_no_ints(cell: MemoryCell) -> None:
    numpy = pytest.importorskip("numpy")
    assert cell.charge_for(numpy.zeros(100)).bytes == 800
    assert cell.charge_for(numpy.zeros((10, 10))[::2]).bytes == 400
    for wrong in (numpy.int64(5), numpy.bool_(True)):
        with pytest.raises(TypeError, match="is an int, not"):
            cell.charge(wrong)

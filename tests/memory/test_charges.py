"""Charges, by worked examples: what is in use, what is refused, and that everything comes back once."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from array import array
from typing import Any

import pytest

from bulkhead import QuotaExceeded, rejection
from bulkhead.memory import MemoryCell, MemoryCells

MOST = 2**63 - 1


def cell(quota: int = 0, **more: Any) -> MemoryCell:
    return MemoryCells(quota_bytes=quota, **more).get_or_create("acme")


def test_what_is_charged_is_in_use_until_it_is_released() -> None:
    one = cell(1000)
    charge = one.charge(400)
    assert (charge.bytes, one.tracked_bytes, one.peak_bytes, one.quota_bytes) == (400, 400, 400, 1000)
    other = one.charge(500)
    assert one.tracked_bytes == 900
    charge.release()
    assert (one.tracked_bytes, one.peak_bytes, charge.bytes) == (500, 900, 400)
    other.release()
    assert (one.tracked_bytes, one.peak_bytes) == (0, 900)


def test_a_second_release_changes_nothing() -> None:
    one = cell(1000)
    kept, charge = one.charge(300), one.charge(400)
    charge.release()
    charge.release()
    with charge:
        assert one.tracked_bytes == 300
    del charge
    assert one.tracked_bytes == 300
    kept.release()


def test_the_end_of_a_with_block_releases_also_by_an_exception() -> None:
    one = cell(1000)
    with one.charge(400) as charge:
        assert (charge.bytes, one.tracked_bytes) == (400, 400)
    with pytest.raises(ZeroDivisionError), one.charge(400):
        raise ZeroDivisionError
    assert one.tracked_bytes == 0


def test_losing_the_last_reference_releases_at_once() -> None:
    gc.disable()
    try:
        one = cell(1000)
        one.charge(400)
        assert one.tracked_bytes == 0
        held = [one.charge(500), one.charge(500)]
        with pytest.raises(QuotaExceeded):
            one.charge(1)
        held.pop()
        assert one.charge(500).bytes == 500, "what was lost is room at once"
        assert one.tracked_bytes == 500
    finally:
        gc.enable()


def test_the_quota_can_be_reached_and_not_exceeded() -> None:
    one = cell(1000)
    full = one.charge(1000)
    with pytest.raises(QuotaExceeded) as caught:
        one.charge(1)
    error = caught.value
    assert (error.tenant, error.requested, error.in_use, error.quota) == ("acme", 1, 1000, 1000)
    assert str(error) == "the memory cell of tenant 'acme' has no room for 1 bytes more: 1,000 of 1,000 are in use"
    assert (one.tracked_bytes, one.peak_bytes) == (1000, 1000)
    assert one.charge(0).bytes == 0
    full.release()


def test_nothing_changes_by_a_refused_charge() -> None:
    one = cell(1000)
    kept = one.charge(600)
    for size in (401, 1000, MOST):
        with pytest.raises(QuotaExceeded):
            one.charge(size)
    assert (one.tracked_bytes, one.peak_bytes) == (600, 600)
    assert one.charge(400).bytes == 400
    kept.release()


def test_nothing_can_be_charged_over_a_lowered_quota_but_nothing() -> None:
    registry = MemoryCells(quota_bytes=1000)
    one = registry.get_or_create("acme")
    kept = one.charge(800)
    registry.configure(quota_bytes=500)
    assert (one.quota_bytes, one.tracked_bytes) == (500, 800)
    assert one.charge(0).bytes == 0
    with pytest.raises(QuotaExceeded) as caught:
        one.charge(1)
    assert (caught.value.in_use, caught.value.quota) == (800, 500)
    nothing = one.charge(0)
    nothing.grow(0)
    with pytest.raises(QuotaExceeded):
        nothing.grow(1)
    kept.release()
    assert one.charge(500).bytes == 500


def test_without_a_quota_everything_is_counted_and_nothing_refused() -> None:
    one = cell(0)
    charges = [one.charge(MOST), one.charge(MOST)]
    assert (one.quota_bytes, one.tracked_bytes) == (0, 2 * MOST)
    for charge in charges:
        charge.release()
    assert one.tracked_bytes == 0


@pytest.mark.parametrize("wrong", [-1, MOST + 1, -(10**5000)], ids=["-1", "one more", "very many digits"])
def test_a_number_of_bytes_has_a_range(wrong: int) -> None:
    one = cell()
    with pytest.raises(ValueError, match="from 0 to 2"):
        one.charge(wrong)
    assert one.tracked_bytes == 0


@pytest.mark.parametrize("wrong", [1.0, "1", None, True, b"x"])
def test_a_number_of_bytes_is_an_int(wrong: Any) -> None:
    one = cell()
    with pytest.raises(TypeError, match="is an int, not"):
        one.charge(wrong)
    with pytest.raises(TypeError, match="is an int, not"):
        one.charge(1).grow(wrong)
    assert one.tracked_bytes == 0


def test_a_charge_grows_and_is_one_charge_still() -> None:
    one = cell(1000)
    charge = one.charge(0)
    charge.grow(600)
    charge.grow(400)
    assert (charge.bytes, one.tracked_bytes, one.peak_bytes) == (1000, 1000, 1000)
    with pytest.raises(QuotaExceeded) as caught:
        charge.grow(1)
    assert (caught.value.requested, caught.value.in_use) == (1, 1000)
    assert (charge.bytes, one.tracked_bytes) == (1000, 1000)
    charge.release()
    assert (charge.bytes, one.tracked_bytes) == (1000, 0)
    with pytest.raises(ValueError, match="released"):
        charge.grow(1)
    assert one.tracked_bytes == 0


def test_a_grown_charge_that_is_lost_comes_back_whole() -> None:
    one = cell(1000)
    charge = one.charge(1)
    charge.grow(999)
    del charge
    assert one.tracked_bytes == 0


def test_the_real_size_of_an_object_is_charged() -> None:
    one = cell()
    spare = bytearray(b"x" * 1000)
    del spare[10:]
    numbers = array("q", range(100))
    shown = memoryview(bytes(64))[::2]
    for thing, size in (
        (b"x" * 1000, sys.getsizeof(b"") + 1000),
        (spare, sys.getsizeof(spare)),
        (numbers, sys.getsizeof(numbers)),
        (shown, sys.getsizeof(shown) + 32),
    ):
        with one.charge_for(thing) as charge:
            assert (charge.bytes, one.tracked_bytes) == (size, size)
    assert sys.getsizeof(numbers) >= 800
    assert one.tracked_bytes == 0


def test_whatever_tells_its_nbytes_can_be_charged_and_others_by_a_function() -> None:
    class Matrix:
        nbytes = 4096

    one = cell()
    assert one.charge_for(Matrix()).bytes == 4096
    assert one.charge_for("text", size=len).bytes == 4
    with pytest.raises(TypeError, match=r"size of str is not known.*size=sys\.getsizeof"):
        one.charge_for("text")
    with pytest.raises(TypeError, match="is an int, not float"):
        one.charge_for("text", size=lambda _: 1.5)  # type: ignore[arg-type,return-value]


def test_the_error_is_pickled_copied_and_found_inside_others() -> None:
    error = QuotaExceeded("acme", 5, 10, 12)
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301  our own
        assert (type(same), same.args, same.quota, str(same)) == (QuotaExceeded, error.args, 12, str(error))
    outer = ValueError("wrapped")
    outer.__cause__ = error
    assert rejection(outer) is error


def test_cells_charges_and_scratches_cannot_be_copied() -> None:
    one = cell()
    charge = one.charge(5)
    for thing in (one, charge, one.scratch):
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            copy.copy(thing)
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            pickle.dumps(thing)
    assert one.tracked_bytes == 5


def test_texts_say_numbers_and_nothing_that_is_kept() -> None:
    one = cell(1000)
    charge = one.charge(300)
    one.scratch["secret-key"] = b"secret-value"
    assert repr(charge) == "<Charge of 300 bytes>"
    charge.release()
    assert repr(charge) == "<Charge of 300 bytes, released>"
    assert repr(one.scratch) == "<Scratch of 1 entry>"
    assert repr(one).startswith("<MemoryCell of 'acme': ")
    assert "secret" not in repr(one) + repr(one.scratch)

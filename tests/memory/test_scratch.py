"""The scratch of a cell, by worked examples: what is charged, what comes back, what is refused."""

from __future__ import annotations

from array import array
from sys import getsizeof
from typing import Any

import pytest

from bulkhead import QuotaExceeded
from bulkhead.memory import MemoryCell, MemoryCells

OVERHEAD = 100
KEY, HEAD = getsizeof("a"), getsizeof(b"")  # of a key of one letter, of empty bytes


def cell(quota: int = 0) -> MemoryCell:
    return MemoryCells(quota_bytes=quota, scratch_entry_overhead=OVERHEAD).get_or_create("acme")


def test_key_value_and_overhead_are_charged() -> None:
    one = cell()
    one.scratch["a"] = b"x" * 1000
    assert one.tracked_bytes == KEY + HEAD + 1000 + OVERHEAD
    assert one.scratch["a"] == b"x" * 1000
    assert ("a" in one.scratch, "b" in one.scratch, len(one.scratch)) == (True, False, 1)


def test_removal_frees_key_and_value_and_not_the_overhead() -> None:
    one = cell()
    scratch = one.scratch
    for key in "abc":
        scratch[key] = b""
    assert one.tracked_bytes == 3 * (KEY + HEAD + OVERHEAD)
    del scratch["a"]
    assert scratch.pop("b") == b""
    assert one.tracked_bytes == KEY + HEAD + 3 * OVERHEAD
    scratch.clear()
    assert (one.tracked_bytes, len(scratch)) == (3 * OVERHEAD, 0)
    for key in "xyz":
        scratch[key] = b""
    assert one.tracked_bytes == 3 * (KEY + HEAD + OVERHEAD), "below the mark no overhead is added"
    scratch["w"] = b""
    assert one.tracked_bytes == 4 * (KEY + HEAD + OVERHEAD)


def test_what_was_charged_as_overhead_stays_when_the_overhead_is_changed() -> None:
    registry = MemoryCells(scratch_entry_overhead=OVERHEAD)
    one = registry.get_or_create("acme")
    one.scratch["a"] = b""
    registry.configure(scratch_entry_overhead=7)
    one.scratch["b"] = b""
    assert one.tracked_bytes == 2 * (KEY + HEAD) + OVERHEAD + 7
    one.scratch.clear()
    one.scratch["c"] = b""
    assert one.tracked_bytes == KEY + HEAD + OVERHEAD + 7


def test_a_replacement_is_charged_the_difference() -> None:
    one = cell(KEY + HEAD + 100 + OVERHEAD)
    one.scratch["a"] = b"x" * 50
    one.scratch["a"] = b"y" * 100
    assert one.tracked_bytes == one.quota_bytes
    with pytest.raises(QuotaExceeded) as caught:
        one.scratch["a"] = b"z" * 101
    assert (caught.value.requested, caught.value.in_use) == (1, one.quota_bytes)
    assert one.scratch["a"] == b"y" * 100
    one.scratch["a"] = b"z"
    assert one.tracked_bytes == KEY + HEAD + 1 + OVERHEAD


def test_a_replacement_that_is_no_larger_never_fails_also_over_a_lowered_quota() -> None:
    registry = MemoryCells()
    one = registry.get_or_create("acme")
    one.scratch["a"] = b"x" * 1000
    registry.configure(quota_bytes=1)
    before = one.tracked_bytes
    one.scratch["a"] = b"y" * 1000
    assert (one.scratch["a"], one.tracked_bytes) == (b"y" * 1000, before)
    one.scratch["a"] = b"z" * 10
    assert (one.scratch["a"], one.tracked_bytes) == (b"z" * 10, before - 990)
    with pytest.raises(QuotaExceeded):
        one.scratch["a"] = b"z" * 11
    with pytest.raises(QuotaExceeded):
        one.scratch["b"] = b""
    assert dict(one.scratch) == {"a": b"z" * 10}


def test_an_equal_key_that_is_larger_changes_nothing_of_a_same_size_replacement() -> None:
    """A str that was once encoded keeps its UTF-8 beside it."""
    first, later = ("".join(["ä"] * 100) for _ in range(2))
    registry = MemoryCells()
    one = registry.get_or_create("acme")
    one.scratch[first] = b"x" * 10
    b"".decode("ascii", later)
    assert getsizeof(later) > getsizeof(first)
    registry.configure(quota_bytes=1)
    before = one.tracked_bytes
    one.scratch[later] = b"y" * 10
    assert one.tracked_bytes == before
    del one.scratch[first]
    assert one.tracked_bytes == 160, "the overhead"


def test_a_refused_insert_leaves_everything_as_it_was() -> None:
    one = cell(1000)
    one.scratch["a"] = b"x"
    before = (one.tracked_bytes, one.peak_bytes, dict(one.scratch))
    for change in (
        lambda: one.scratch.update(b=b"x" * 1000),
        lambda: one.scratch.setdefault("b", b"x" * 1000),
        lambda: one.scratch.insert("a", bytearray(1000), copy=False),
    ):
        with pytest.raises(QuotaExceeded):
            change()
    assert (one.tracked_bytes, one.peak_bytes, dict(one.scratch)) == before
    one.scratch["b"] = b"x"
    assert one.tracked_bytes == 2 * (KEY + HEAD + 1 + OVERHEAD)


def test_a_refused_insert_adds_no_overhead() -> None:
    one = cell(KEY + HEAD + OVERHEAD)
    with pytest.raises(QuotaExceeded):
        one.scratch["a"] = b"x"
    assert one.tracked_bytes == 0
    one.scratch["a"] = b""
    assert one.tracked_bytes == one.quota_bytes


def test_charges_and_scratch_share_the_quota() -> None:
    one = cell(1000)
    with one.charge(1000 - (KEY + HEAD + OVERHEAD)):
        one.scratch["a"] = b""
        with pytest.raises(QuotaExceeded):
            one.charge(1)
    assert one.tracked_bytes == KEY + HEAD + OVERHEAD


def test_buffers_are_copied_to_bytes() -> None:
    one = cell()
    buffer = bytearray(b"x" * 100)
    del buffer[50:]
    one.scratch["a"] = buffer
    one.scratch["b"] = memoryview(b"abcdef")[::2]
    one.scratch["c"] = memoryview(array("h", [1, 2]))
    buffer[0] = 0
    assert one.scratch["a"] == b"x" * 50
    assert one.scratch["b"] == b"ace"
    assert one.scratch["c"] == array("h", [1, 2]).tobytes()
    assert {type(value) for value in one.scratch.values()} == {bytes}
    assert one.tracked_bytes == 3 * (KEY + HEAD + OVERHEAD) + 50 + 3 + 4


def test_without_copy_the_object_itself_is_kept_and_charged_with_its_capacity() -> None:
    one = cell()
    buffer = bytearray(b"x" * 1000)
    del buffer[1:]
    view = memoryview(bytes(500))
    one.scratch.insert("a", buffer, copy=False)
    one.scratch.insert("b", view, copy=False)
    assert one.scratch["a"] is buffer
    assert one.scratch["b"] is view
    assert one.tracked_bytes == 2 * (KEY + OVERHEAD) + getsizeof(buffer) + getsizeof(view) + 500


def test_an_entry_frees_what_it_was_charged_however_large_it_is_by_now() -> None:
    one = cell()
    buffer = bytearray(10)
    one.scratch.insert("a", buffer, copy=False)
    charged = one.tracked_bytes
    buffer.extend(bytes(100_000))
    assert one.tracked_bytes == charged
    del one.scratch["a"]
    assert one.tracked_bytes == OVERHEAD
    one.scratch.insert("a", buffer, copy=False)
    assert one.tracked_bytes > 100_000
    buffer.clear()
    one.scratch["a"] = b""
    assert one.tracked_bytes == KEY + HEAD + OVERHEAD


def test_it_is_a_mapping_like_any_other() -> None:
    scratch = cell().scratch
    scratch.update({"a": b"1"}, b=b"2")
    assert scratch.setdefault("a", b"9") == b"1"
    assert scratch.setdefault("c", bytearray(b"3")) == b"3"
    assert list(scratch) == ["a", "b", "c"]
    assert list(reversed(scratch)) == ["c", "b", "a"]
    assert list(scratch.items()) == [("a", b"1"), ("b", b"2"), ("c", b"3")]
    assert list(scratch.values()) == [b"1", b"2", b"3"]
    assert ("a", b"1") in scratch.items()
    assert b"3" in scratch.values()
    assert scratch == {"a": b"1", "b": b"2", "c": b"3"}
    assert scratch != {"a": b"1"}
    assert (scratch.get("x"), scratch.get("x", b"0"), scratch.pop("x", None)) == (None, b"0", None)
    assert scratch.popitem() == ("c", b"3")
    assert (scratch.pop("a"), len(scratch)) == (b"1", 1)
    scratch.clear()
    for missing in (lambda: scratch["a"], lambda: scratch.pop("a"), scratch.popitem, lambda: scratch.pop(1)):  # type: ignore[arg-type]
        with pytest.raises(KeyError):
            missing()
    with pytest.raises(KeyError):
        del scratch["a"]


def test_two_views_show_the_same_entries() -> None:
    one = cell()
    first, second = one.scratch, one.scratch
    first["a"] = b"1"
    assert second["a"] == b"1"
    assert first == second


def test_iterating_goes_over_what_was_there_at_the_beginning() -> None:
    scratch = cell().scratch
    scratch.update(a=b"1", b=b"2", c=b"3")
    for number, (key, value) in enumerate(scratch.items()):
        del scratch[key]
        scratch[f"new{number}"] = value
    assert list(scratch) == ["new0", "new1", "new2"]
    for key in scratch:
        scratch.pop(key)
    assert not scratch


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("key", [1, None, b"a", Text("a")])
def test_a_key_is_a_plain_str(key: Any) -> None:
    one = cell()
    with pytest.raises(TypeError, match="a key is a str"):
        one.scratch[key] = b""
    with pytest.raises(TypeError, match="a key is a str"):
        one.scratch.setdefault(key, b"")
    assert one.tracked_bytes == 0


def test_an_entry_that_is_found_by_a_str_of_another_class_is_removed_by_it_too() -> None:
    one = cell()
    for remove in (one.scratch.__delitem__, one.scratch.pop, lambda key: one.scratch.pop(key, None)):
        one.scratch["a"] = b"x"
        assert (Text("a") in one.scratch, one.scratch.get(Text("a"))) == (True, b"x")
        remove(Text("a"))
        assert (len(one.scratch), one.tracked_bytes) == (0, OVERHEAD)


@pytest.mark.parametrize("value", ["text", None, 5, [1], array("b", [1])])
def test_a_value_is_bytes_or_a_buffer(value: Any) -> None:
    one = cell()
    for insert in (lambda: one.scratch.insert("a", value, copy=False), lambda: one.scratch.update(a=value)):
        with pytest.raises(TypeError, match="a value is bytes, a bytearray or a memoryview"):
            insert()  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError):
        one.scratch.setdefault("a")
    assert one.tracked_bytes == 0


def test_what_a_value_runs_as_it_goes_may_use_the_scratch() -> None:
    one = cell()

    class Noisy(bytearray):
        def __del__(self) -> None:
            one.scratch["said"] = b"gone"
            one.charge(5).release()

    for go in (
        lambda: one.scratch.pop("a"),
        one.scratch.clear,
        lambda: one.scratch.update(a=b""),
    ):
        one.scratch.insert("a", Noisy(10), copy=False)
        go()
        assert one.scratch.pop("said") == b"gone"
        one.scratch.clear()
    assert one.tracked_bytes == 2 * OVERHEAD

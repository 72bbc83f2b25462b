"""What a key may be, and what lane sets have in common whatever the key."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkhead.hashing import SLOTS, Hash, shuffle_shard, slot_of

HASHES: tuple[Hash, ...] = ("xxh64", "fnv1a64")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


class Tier(str, enum.Enum):  # noqa: UP042  what older applications have
    GOLD = "gold"


class Number(enum.IntEnum):
    SEVEN = 7


@given(TEXTS | st.binary(max_size=40) | st.integers(-(1 << 63), (1 << 64) - 1) | st.uuids(), st.sampled_from(HASHES))
def test_a_slot_is_within_the_key_space(key: Any, algorithm: Hash) -> None:
    assert 0 <= slot_of(key, algorithm) < SLOTS


@pytest.mark.parametrize("algorithm", HASHES)
def test_a_member_of_an_enum_has_the_slot_of_its_value(algorithm: Hash) -> None:
    assert slot_of(Tier.GOLD, algorithm) == slot_of("gold", algorithm)
    assert slot_of(Number.SEVEN, algorithm) == slot_of(7, algorithm)
    assert shuffle_shard(Tier.GOLD, 8, 2) == shuffle_shard("gold", 8, 2)


@pytest.mark.parametrize("key", [True, False, None, 1.0, ["a"], bytearray(b"a"), memoryview(b"a"), ("a",), object()])
def test_a_key_of_another_type_is_refused_by_its_type(key: Any) -> None:
    name = type(key).__name__
    for algorithm in HASHES:
        with pytest.raises(TypeError, match=rf"a str, bytes, an int or a UUID, not {name}"):
            slot_of(key, algorithm)
    with pytest.raises(TypeError, match=rf"a str, bytes, an int or a UUID, not {name}"):
        shuffle_shard(key, 8, 2)


def test_a_text_that_is_no_utf8_is_refused_and_not_quoted() -> None:
    for ask in (
        lambda: slot_of("secret\ud800"),
        lambda: slot_of("secret\ud800", "fnv1a64"),
        lambda: shuffle_shard("secret\ud800", 8, 2),
    ):
        with pytest.raises(ValueError, match="lone surrogate") as caught:
            ask()
        assert not isinstance(caught.value, UnicodeError)
        assert "secret" not in str(caught.value)
        assert caught.value.__suppress_context__


def test_a_number_out_of_range_is_refused() -> None:
    for key in (1 << 64, -(1 << 63) - 1):
        assert 0 <= slot_of(key) < SLOTS
        with pytest.raises(ValueError, match=r"-2\*\*63 to 2\*\*64 - 1"):
            slot_of(key, "fnv1a64")
    with pytest.raises(ValueError, match="8192 bits"):
        slot_of(1 << 10_000)


@pytest.mark.parametrize("algorithm", ["xxh32", "", None, 64])
def test_an_unknown_hash_is_refused(algorithm: Any) -> None:
    with pytest.raises(ValueError, match="'xxh64' or 'fnv1a64'"):
        slot_of("acme", algorithm)


@pytest.mark.parametrize("number", [True, 2.0, "2", None])
def test_lanes_and_size_are_ints(number: Any) -> None:
    with pytest.raises(TypeError, match=f"lanes must be an int, not {type(number).__name__}"):
        shuffle_shard("a", number, 2)
    with pytest.raises(TypeError, match=f"size must be an int, not {type(number).__name__}"):
        shuffle_shard("a", 8, number)


def test_lanes_and_size_are_not_below_0() -> None:
    with pytest.raises(ValueError, match="lanes must be 0 or more"):
        shuffle_shard("a", -1, 2)
    with pytest.raises(ValueError, match="size must be 0 or more"):
        shuffle_shard("a", 8, -1)


@given(TEXTS, st.integers(0, 40), st.integers(0, 50))
def test_a_lane_set_is_sorted_distinct_and_as_large_as_it_can_be(key: str, lanes: int, size: int) -> None:
    chosen = shuffle_shard(key, lanes, size)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) == min(size, lanes)
    assert all(0 <= lane < lanes for lane in chosen)


@given(TEXTS, st.integers(1, 40), st.integers(0, 39))
def test_a_larger_size_only_adds_lanes(key: str, lanes: int, size: int) -> None:
    assert set(shuffle_shard(key, lanes, size)) <= set(shuffle_shard(key, lanes, size + 1))

"""Every number of tests/data/hashing.json: a change of one of them is a breaking change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from bulkhead.hashing import Hash, Key, shuffle_shard, slot_of

DATA = Path(__file__).parent.parent / "data" / "hashing.json"
HASHES: tuple[Hash, ...] = ("xxh64", "fnv1a64")


@cache
def vectors() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(DATA.read_text()))


def keys(algorithm: str) -> list[tuple[Key, int]]:
    table = vectors()[f"slot_{algorithm}"]
    return [
        *table["text"].items(),
        *((int(text), slot) for text, slot in table["int"].items()),
        *((bytes.fromhex(text), slot) for text, slot in table["bytes_hex"].items()),
    ]


def test_the_file_holds_what_was_agreed() -> None:
    assert set(vectors()) == {"slot_xxh64", "slot_fnv1a64", "shuffle_shard", "shuffle_shard_statistics"}
    assert [len(keys(algorithm)) for algorithm in HASHES] == [40, 40]
    assert len(vectors()["shuffle_shard"]) == 27


@pytest.mark.parametrize("algorithm", HASHES)
def test_every_key_has_its_slot(algorithm: Hash) -> None:
    assert [(key, slot_of(key, algorithm)) for key, _ in keys(algorithm)] == keys(algorithm)


def test_xxh64_is_what_is_used_where_nothing_is_said() -> None:
    assert slot_of("acme") == slot_of("acme", "xxh64") == vectors()["slot_xxh64"]["text"]["acme"]


@pytest.mark.parametrize("algorithm", HASHES)
def test_a_uuid_has_the_slot_of_its_lower_case_text(algorithm: Hash) -> None:
    text = "00000000-0000-0000-0000-000000000001"
    assert slot_of(UUID(text), algorithm) == vectors()[f"slot_{algorithm}"]["text"][text]
    high = UUID("ABCDEFAB-CDEF-4BCD-8FAB-ABCDEFABCDEF")
    assert slot_of(high, algorithm) == slot_of(str(high).lower(), algorithm)


def test_an_int_has_the_xxh64_slot_of_its_decimal_text() -> None:
    assert all(slot_of(int(text)) == slot_of(text) for text in vectors()["slot_xxh64"]["int"])


@pytest.mark.parametrize("vector", vectors()["shuffle_shard"], ids=lambda v: f"{v['key']}-{v['lanes']}-{v['size']}")
def test_every_key_has_its_lanes(vector: dict[str, Any]) -> None:
    assert shuffle_shard(vector["key"], vector["lanes"], vector["size"]) == tuple(vector["expect"])


def test_one_tenant_in_28_shares_both_lanes_of_a_noisy_one() -> None:
    pairs = Counter(shuffle_shard(f"tenant-{number}", 8, 2) for number in range(1000))
    assert len(pairs) == 28
    assert pairs[shuffle_shard("noisy", 8, 2)] == vectors()["shuffle_shard_statistics"]["same_pair_as_noisy"]


def test_what_a_process_computes_does_not_depend_on_its_hash_seed() -> None:
    """Known fault 85."""
    script = (
        "from bulkhead.hashing import slot_of, shuffle_shard\n"
        "names = [f'tenant-{n}' for n in range(500)]\n"
        "print([(slot_of(n), slot_of(n, 'fnv1a64'), shuffle_shard(n, 8, 2)) for n in names])\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    names = [f"tenant-{number}" for number in range(500)]
    here = [(slot_of(name), slot_of(name, "fnv1a64"), shuffle_shard(name, 8, 2)) for name in names]
    assert said == {f"{here}\n"}

"""Which slot a key belongs to, and which lanes a tenant gets: pure arithmetic that other programs compute as well.

Both functions are permanent contracts: routers, databases and other processes rely on these very numbers, now and
after an upgrade. tests/data/hashing.json pins them, and a change of any of them is a breaking change. Python's own
`hash` differs from process to process and is never used here.

No clock, no lock, no I/O, and no state but a bounded cache of lane sets.
"""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias
from uuid import UUID

from xxhash import xxh64_intdigest

__all__ = ["SLOTS", "Hash", "Key", "shuffle_shard", "slot_of"]

Key: TypeAlias = "str | bytes | int | UUID"
Hash = Literal["xxh64", "fnv1a64"]

SLOTS = 16384
"""Slots of the key space: `slot_of` is below it."""

_LOW_BITS = SLOTS - 1
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_FNV_OFFSET, _FNV_PRIME = 0xCBF2_9CE4_8422_2325, 0x0000_0100_0000_01B3
_GOLDEN_GAMMA = 0x9E37_79B9_7F4A_7C15
_ROUNDS = 1 << 20
_DECIMAL_BITS = 8192  # of an int key: the decimal text of a longer one takes time that grows with its square
_CACHED = 16_384  # lane sets; keys are ids chosen by clients


def slot_of(key: Key, hash: Hash = "xxh64") -> int:  # noqa: A002  the name of the option everywhere, `hash = "xxh64"` in files too
    """The slot of a key, 0..16383.

    `xxh64`: XXH64 with seed 0, low 14 bits, of the UTF-8 of a text, of bytes as they are, of an int's decimal text, of
    a UUID's lower-case text; HAProxy's `xxh64(0),and(16383)` is the same number. `fnv1a64`: as the Autumn framework
    does it, FNV-1a 64 of those bytes, but of an int (-2**63 to 2**64 - 1) the splitmix64; it spreads ids that follow
    one another badly, and is there for deployments that share cells with that framework.

    TypeError: the key is of another type; a bool is none. ValueError: the text is not UTF-8 (a lone surrogate), the
    number is out of range, or there is no such hash.
    """
    if hash == "xxh64":
        if type(key) is str:
            try:
                return xxh64_intdigest(key.encode()) & _LOW_BITS
            except UnicodeEncodeError:
                raise ValueError(_NO_TEXT) from None
        return xxh64_intdigest(_octets(key)) & _LOW_BITS
    if hash != "fnv1a64":
        raise ValueError("hash must be 'xxh64' or 'fnv1a64'")
    if isinstance(key, int) and not isinstance(key, bool):
        if not -(1 << 63) <= key < 1 << 64:
            raise ValueError("an int key of fnv1a64 is from -2**63 to 2**64 - 1")
        return _finalized((int(key) + _GOLDEN_GAMMA) & _MASK) & _LOW_BITS
    return _fnv1a64(_octets(key)) & _LOW_BITS


def shuffle_shard(key: Key, lanes: int, size: int) -> tuple[int, ...]:
    """The `min(size, lanes)` distinct lanes of a key out of 0..lanes-1, sorted; none if either is 0.

    A larger `size` only adds lanes. The recipe of the Autumn framework bit for bit: round i hashes the key's bytes
    (see `slot_of`), 0xff and i (4 bytes, little endian) by FNV-1a 64, finalizes that as splitmix64 does, takes it mod
    lanes and skips repeats; after 2**20 rounds the lowest free lanes fill up. The last 16,384 results are remembered.

    TypeError: the key is of another type, or a number is no int. ValueError: a number is below 0, or the text of the
    key is not UTF-8.
    """
    for name, number in (("lanes", lanes), ("size", size)):
        if type(number) is not int:
            raise TypeError(f"{name} must be an int, not {type(number).__name__}")
        if number < 0:
            raise ValueError(f"{name} must be 0 or more")
    return _lane_set(_octets(key), lanes, size)


@functools.lru_cache(maxsize=_CACHED)
def _lane_set(octets: bytes, lanes: int, size: int) -> tuple[int, ...]:
    if size >= lanes:
        return tuple(range(lanes))
    prefix, chosen = _fnv1a64(octets + b"\xff"), set[int]()
    for turn in range(_ROUNDS):
        if len(chosen) == size:
            break
        chosen.add(_finalized(_fnv1a64(turn.to_bytes(4, "little"), prefix)) % lanes)
    else:
        chosen.update([lane for lane in range(lanes) if lane not in chosen][: size - len(chosen)])
    return tuple(sorted(chosen))


_NO_TEXT = "a key that is a text must be encodable as UTF-8; this one holds a lone surrogate"


def _octets(key: object) -> bytes:
    """The bytes of a key. Errors do not quote it: ids are hostile input."""
    if isinstance(key, str):
        try:
            return str.encode(key)  # of a str subclass its text, whatever its own methods say
        except UnicodeEncodeError:
            raise ValueError(_NO_TEXT) from None
    if isinstance(key, bytes):
        return bytes(key)
    if isinstance(key, int) and not isinstance(key, bool):
        if key.bit_length() > _DECIMAL_BITS:
            raise ValueError(f"an int key has at most {_DECIMAL_BITS} bits")
        return int.__repr__(key).encode()
    if isinstance(key, UUID):
        return str(key).encode()
    raise TypeError(f"a key is a str, bytes, an int or a UUID, not {type(key).__name__}")


def _fnv1a64(octets: bytes, state: int = _FNV_OFFSET) -> int:
    for octet in octets:
        state = (state ^ octet) * _FNV_PRIME & _MASK
    return state


def _finalized(number: int) -> int:
    number = (number ^ number >> 30) * 0xBF58_476D_1CE4_E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D0_49BB_1331_11EB & _MASK
    return number ^ number >> 31

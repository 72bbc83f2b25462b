"""CellRouter: what it refuses, whose each slot is, and that its answers are the permanent numbers."""

from __future__ import annotations

import copy
import json
import pickle
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkhead.cells import Cell, CellRouter
from bulkhead.errors import ConfigurationError
from bulkhead.hashing import SLOTS, Hash, slot_of

if TYPE_CHECKING:
    from conftest import RunPython

VECTORS: dict[str, dict[str, dict[str, int]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "hashing.json").read_text(encoding="utf-8")
)
HASHES: tuple[Hash, ...] = ("xxh64", "fnv1a64")


def cells(count: int, **more: Any) -> list[Cell]:
    return [Cell(f"c{number}", f"http://c{number}.internal", **more) for number in range(count)]


def by_slot() -> CellRouter:
    """As many cells as slots: the name of the cell is the slot."""
    return CellRouter([Cell(f"c{slot}", "http://cell.internal") for slot in range(SLOTS)])


# ---- the permanent numbers


@pytest.mark.parametrize("hash_name", HASHES)
def test_the_cell_is_that_of_the_pinned_vector(hash_name: Hash) -> None:
    router = by_slot().replace(hash=hash_name)
    vectors = VECTORS[f"slot_{hash_name}"]
    for text, slot in vectors["text"].items():
        assert router.for_tenant(text).name == router.for_key(text).name == f"c{slot}"
    for number, slot in vectors["int"].items():
        assert router.for_key(int(number)).name == f"c{slot}"
    for octets, slot in vectors["bytes_hex"].items():
        assert router.for_key(bytes.fromhex(octets)).name == f"c{slot}"


@pytest.mark.no_cover
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_tenants_slot_is_that_of_slot_of(tenant: str) -> None:
    for hash_name in HASHES:
        router = CellRouter(cells(7), hash_name)
        assert router.for_tenant(tenant) is router.for_slot(slot_of(tenant, hash_name))


@pytest.mark.parametrize("hash_name", HASHES)
def test_an_int_or_uuid_is_the_tenant_of_its_text(hash_name: Hash) -> None:
    """`bulkhead.tenant(7)` is the tenant "7" everywhere: in the context, in headers, and here."""
    router, unique = CellRouter(cells(300), hash_name, {"7": "c3"}), uuid.UUID(int=0xABCDEF)
    assert router.for_tenant(7).name == router.for_tenant("7").name == "c3"
    assert router.for_tenant(8) == router.for_tenant("8")
    assert router.for_tenant(unique) == router.for_tenant(str(unique))


def test_known_fault_85_the_choice_does_not_depend_on_the_hash_seed_of_the_process(run_python: RunPython) -> None:
    source = """
from bulkhead.cells import Cell, CellRouter
for name in ("xxh64", "fnv1a64"):
    router = CellRouter([Cell(f"c{n}", f"http://c{n}") for n in range(16)], name, {"tenant-5": "c0"})
    print(*(router.for_tenant(f"tenant-{n}").name for n in range(500)))
"""
    answers = {run_python(source, env={"PYTHONHASHSEED": seed}).stdout for seed in ("1", "2", "77")}
    assert len(answers) == 1
    (answer,) = answers
    assert len(set(answer.split())) == 16


@pytest.mark.parametrize("tenant", [None, True, 1.5, b"acme", ["acme"], "\ud800"])
def test_what_is_no_tenant_is_an_error(tenant: Any) -> None:
    for hash_name in HASHES:
        with pytest.raises(ValueError):  # noqa: PT011  ConfigurationError is one
            CellRouter(cells(2), hash_name).for_tenant(tenant)


# ---- each slot has one cell


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16, 100, SLOTS])
def test_an_even_split_is_in_order(count: int) -> None:
    router = CellRouter(cells(count))
    assert router.even
    for slot in range(0, SLOTS, 97):
        assert router.for_slot(slot).name == f"c{slot * count // SLOTS}"


@pytest.mark.no_cover
@given(st.data())
def test_every_slot_has_the_one_cell_that_names_it(data: st.DataObject) -> None:
    """Random cuts of the slots, dealt to cells in random order, written in every form."""
    cuts = data.draw(st.lists(st.integers(1, SLOTS - 1), min_size=1, max_size=20, unique=True).map(sorted))
    parts = list(zip([0, *cuts], [*cuts, SLOTS], strict=True))
    count = data.draw(st.integers(1, len(parts)))
    owner = [*range(count), *(data.draw(st.integers(0, count - 1)) for _ in parts[count:])]
    named: dict[int, list[Any]] = {index: [] for index in range(count)}
    for (first, end), index in zip(parts, owner, strict=True):
        one = first == end - 1
        named[index].append(data.draw(st.sampled_from([first, str(first)])) if one else f"{first}-{end - 1}")
    router = CellRouter([Cell(f"c{index}", "http://h", slots) for index, slots in named.items()])
    for (first, end), index in zip(parts, owner, strict=True):
        assert router.for_slot(first).name == router.for_slot(end - 1).name == f"c{index}"
    held = [slot for index in range(count) for part in router.slots(f"c{index}") for slot in part]
    assert sorted(held) == list(range(SLOTS))
    assert not router.even


@pytest.mark.no_cover
@given(st.integers(0, SLOTS - 1), st.integers(0, SLOTS - 1))
def test_an_overlap_or_gap_names_cell_and_slots(first: int, last: int) -> None:
    low, high = min(first, last), max(first, last)
    part = f"slots {low}-{high}" if low < high else f"slot {low}"
    with pytest.raises(ConfigurationError) as caught:
        CellRouter([Cell("a", "http://a", "0-16383"), Cell("b", "http://b", f"{low}-{high}")])
    assert str(caught.value).startswith(f"cell 'b': {part} ")
    assert "cell 'a'" in str(caught.value)
    if low > 0:
        rest = [f"{high + 1}-16383"] if high + 1 < SLOTS - 1 else [SLOTS - 1] if high < SLOTS - 1 else []
        with pytest.raises(ConfigurationError) as caught:
            CellRouter([Cell("a", "http://a", [f"0-{low - 1}", *rest])])
        assert str(caught.value) == f"no cell has {part}"


@pytest.mark.parametrize(
    ("faulty", "says"),
    [
        ([], "there are no cells"),
        (cells(SLOTS + 1), "there are 16385 cells, at most 16384"),
        ([*cells(1), *cells(1)], "cell 'c0': the name is used twice"),
        ([Cell("a", "http://h", "9-3")], "cell 'a': slots: '9-3' is inverted; write 3-9"),
        ([Cell("a", "http://h", "0-16384")], "cell 'a': slots: '0-16384' is out of range"),
        ([Cell("a", "http://h", 16384)], "cell 'a': slots: 16384 is out of range"),
        ([Cell("a", "http://h", -1)], "cell 'a': slots: -1 is out of range"),
        ([Cell("a", "http://h", "1-2-3")], "cell 'a': slots: '1-2-3' is neither a slot nor a range"),
        ([Cell("a", "http://h", "")], "cell 'a': slots: '' is neither"),
        ([Cell("a", "http://h", "٣")], "cell 'a': slots: '٣' is neither"),
        ([Cell("a", "http://h", [True])], "cell 'a': slots: True is neither"),
        ([Cell("a", "http://h", ["0-16383", "5-9", 7])], "cell 'a': slots 5-9 are named twice"),
        ([Cell("a", "http://h", ["0-5", "9-16000"])], "no cell has slots 6-8, 16001-16383"),
        ([Cell("a", "http://h", "0-16383"), Cell("b", "http://h")], "cell 'b': slots are missing"),
        ([Cell("a b", "http://h")], "cell 'a b': the name must be"),
        ([Cell("", "http://h")], "cell '': the name must be"),
        ([Cell("a", "http://h", state="asleep")], "cell 'a': state must be one of active"),  # type: ignore[arg-type]
        ([Cell("a", "ftp://h")], "cell 'a': url must be http"),
        ([Cell("a", "h:80")], "cell 'a': url must be http"),
        ([Cell("a", "http://")], "cell 'a': url must be http"),
        ([Cell("a", "http:///path")], "cell 'a': url must be http"),
        ([Cell("a", "http://h:0")], "cell 'a': url has a port"),
        ([Cell("a", "http://h:99999")], "cell 'a': url has a port"),
        ([Cell("a", "http://[::g]")], "cell 'a': url must be http"),
        ([Cell("a", "http://[1:2]")], "cell 'a': url has a host that is no IPv6 address"),
        ([Cell("a", "http://h?x=1")], "cell 'a': url must not have a query"),
        ([Cell("a", "http://h/?")], "cell 'a': url must not have a query"),
        ([Cell("a", "http://h/#x")], "cell 'a': url must not have a fragment"),
        ([Cell("a", "http://h/a/../b")], "cell 'a': url has a path with a segment"),
        ([Cell("a", "http://h/a/%2e%2e")], "cell 'a': url has a path with a segment"),
        ([Cell("a", "http://h/a b")], "cell 'a': url has a path with characters"),
        ([Cell("a", "http://h\\@x/")], "cell 'a': url must not have user info"),
        ([Cell("a", "http://h\r\n")], "cell 'a': url must be http"),
        ([Cell("a", "http://é")], "cell 'a': url must be http"),
        ([Cell("a", "http://h", standby_url="file:///x")], "cell 'a': standby_url must be http"),
        ([Cell("a", 7)], "cell 'a': url must be a text"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_found_at_construction(faulty: list[Cell], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CellRouter(faulty)
    assert says in str(caught.value)


def test_all_faults_are_told_at_once() -> None:
    faulty = [Cell("a", "ftp://h", "0-9"), Cell("b", "http://h", ["5-20", "x"]), Cell("b", "http://h", 7)]
    with pytest.raises(ConfigurationError) as caught:
        CellRouter(faulty, "md5", {"acme": "z", "": "a"})  # type: ignore[arg-type]
    text = str(caught.value)
    for says in (
        "8 faults",
        "url must",
        "twice",
        "slots 5-9",
        "'x'",
        "slot 7 is",
        "pins.'acme'",
        "pins.''",
        "hash must",
    ):
        assert says in text


def test_an_error_about_a_url_does_not_show_its_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        CellRouter([Cell("a", "http://user:hunter2@h/")])
    assert "user info" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("slot", [-1, SLOTS, 1.0, "7", True, None])
def test_a_slot_out_of_range_is_an_error(slot: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no slot, slots are 0-16383"):
        CellRouter(cells(2)).for_slot(slot)


# ---- pins, states, immutability


@pytest.mark.parametrize("hash_name", HASHES)
def test_a_pin_goes_ahead_of_the_hash_for_its_tenant_only(hash_name: Hash) -> None:
    plain = CellRouter(cells(8), hash_name)
    pinned = plain.replace(pins={"acme": "c7", 42: "c6"})
    assert plain.for_tenant("acme").name != "c7"
    assert pinned.for_tenant("acme").name == "c7"
    assert pinned.for_tenant(42).name == pinned.for_tenant("42").name == "c6"
    assert pinned.for_key("acme") == plain.for_key("acme")
    for number in range(500):
        assert pinned.for_tenant(f"t-{number}") == plain.for_tenant(f"t-{number}")


def test_known_fault_90_a_cell_that_is_down_is_still_its_tenants_cell() -> None:
    """A tenant is never sent to a cell that has not its data, whatever the health of its own."""
    up = CellRouter(cells(4))
    down = up.replace(cells=[*cells(1, state="down"), *cells(4)[1:]])
    for number in range(500):
        assert down.for_tenant(f"t-{number}").name == up.for_tenant(f"t-{number}").name


def test_a_router_is_immutable_and_replace_gives_another_one() -> None:
    pins = {"acme": "c1"}
    router = CellRouter(cells(2), pins=pins)
    pins["acme"] = "c0"
    assert router.for_tenant("acme").name == "c1"
    for name in ("cells", "pins", "hash", "new"):
        with pytest.raises(AttributeError):
            setattr(router, name, ())
    with pytest.raises(AttributeError):
        del router.cells
    with pytest.raises(TypeError):
        router.pins["x"] = "c0"  # type: ignore[index]
    with pytest.raises(AttributeError):
        router.cells[0].url = "http://elsewhere"  # type: ignore[misc]
    other = router.replace(pins={})
    assert (other.pins, router.pins) == ({}, {"acme": "c1"})
    assert other != router
    assert other.replace(pins={"acme": "c1"}) == router


def test_a_router_can_be_copied_and_pickled() -> None:
    router = CellRouter(cells(3), "fnv1a64", {"acme": "c1"})
    for twin in (copy.deepcopy(router), pickle.loads(pickle.dumps(router))):  # noqa: S301
        assert twin == router
        assert hash(twin) == hash(router)
        assert twin.for_tenant("acme").name == "c1"
    assert "3 cells" in repr(router)


def test_a_cell_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="there is no cell 'x'"):
        CellRouter(cells(2)).slots("x")

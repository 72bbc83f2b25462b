"""What moves between two maps, a new cell, a fail-over, and publishing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from counts import often
from hypothesis import given, settings
from hypothesis import strategies as st

from bulkhead.cells import Cell, CellMap, CellRouter, MapVersion, diff, load, promote, publish, raise_version, rebalance
from bulkhead.errors import ConfigurationError
from bulkhead.hashing import SLOTS

if TYPE_CHECKING:
    from pathlib import Path

TENANTS = [f"tenant-{number}" for number in range(100_000)]


def even(count: int, **states: Any) -> CellMap:
    cells = [Cell(f"c{n}", f"http://c{n}", state=states.get(f"c{n}", "active")) for n in range(count)]
    return CellMap(CellRouter(cells))


def counts(router: CellRouter) -> Counter[str]:
    """How many slots each cell has."""
    return Counter(cell.name for cell in router.owners())


def test_from_eight_cells_to_nine_about_one_ninth_of_100_000_tenants_moves_none_between_the_old_ones() -> None:
    old = even(8)
    new = rebalance(old, [("c8", "http://c8")])
    found = diff(old, new, TENANTS)
    assert found.tenant_share == pytest.approx(1 / 9, abs=0.005)
    assert found.slots_moved == SLOTS // 9
    assert {one.target for one in found.tenants} == {one.target for one in found.slots} == {"c8"}
    assert {one.source for one in found.slots} == {f"c{n}" for n in range(8)}
    assert not found.even_split
    assert new.version == old.version + 1


@pytest.mark.parametrize("count", [2, 3, 8, 16])
def test_an_even_split_over_one_cell_more_moves_half_of_all_tenants_and_says_so(count: int) -> None:
    found = diff(even(count), even(count + 1), TENANTS[:20_000])
    assert found.even_split
    assert found.slot_share == pytest.approx(0.5, abs=0.001)
    assert found.tenant_share == pytest.approx(0.5, abs=0.02)


@pytest.mark.no_cover
@settings(max_examples=often(20, 100))
@given(st.integers(1, 12), st.integers(1, 4), st.data())
def test_a_rebalance_takes_evenly_and_moves_nothing_between_old_cells(
    count: int, more: int, data: st.DataObject
) -> None:
    names = [f"c{n}" for n in range(count)]
    states = {name: data.draw(st.sampled_from(["active", "draining", "down"])) for name in names}
    old = even(count, **states)
    if all(state == "down" for state in states.values()):
        with pytest.raises(ConfigurationError, match="no cell can give it slots"):
            rebalance(old, [("new0", "http://new0")])
        return
    new = rebalance(old, [(f"new{n}", f"http://new{n}") for n in range(more)])
    fresh, held = {f"new{n}" for n in range(more)}, counts(new.router)
    for before, after in zip(old.router.owners(), new.router.owners(), strict=True):
        assert after.name in fresh or after.name == before.name
        assert before.state != "down" or after.name == before.name
    assert diff(old, new).refused == ()
    assert sum(held.values()) == SLOTS
    if "down" not in states.values():
        assert max(held.values()) - min(held.values()) <= 2
    assert {cell.name: cell.state for cell in new.router.cells} == {**states, **dict.fromkeys(fresh, "active")}


def test_a_rebalance_again_and_again_stays_even_and_keeps_pins_and_tenant_states() -> None:
    now = even(2).replace(tenants={"acme": "moving"})
    now = now.replace(router=now.router.replace(pins={"globex": "c1"}, hash="fnv1a64"))
    for number in range(2, 20):
        now = rebalance(now, [Cell(f"c{number}", f"http://c{number}", standby_url="http://west")])
    held = counts(now.router)
    assert max(held.values()) - min(held.values()) <= 2
    assert (now.router.pins, now.router.hash, now.tenants) == ({"globex": "c1"}, "fnv1a64", {"acme": "moving"})
    assert now.version == 19


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (("c1", "http://x"), "cell 'c1': there is one of this name already"),
        (Cell("x", "http://x", slots=7), "cell 'x': a cell to be added gets its slots here"),
        (("x", "ftp://x"), "cell 'x': url must be http"),
    ],
)
def test_a_cell_that_cannot_be_added_is_an_error(add: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        rebalance(even(2), [add])


def test_a_diff_tells_slots_as_ranges_pins_and_what_must_not_be() -> None:
    old = CellMap(CellRouter([Cell("a", "http://a", "0-9999"), Cell("b", "http://b", "10000-16383", state="draining")]))
    router = CellRouter(
        [Cell("a", "http://a2", ["0-4999", 16383]), Cell("b", "http://b", "5000-16382", state="draining")],
        pins={"acme": "a"},
    )
    found = diff(old, old.replace(router=router), ["acme", "tenant-1"])
    assert [(one.slots, one.source, one.target) for one in found.slots] == [
        (range(5000, 10_000), "a", "b"),
        (range(16_383, 16_384), "b", "a"),
    ]
    assert found.slots_moved == 5001
    assert [tuple(one) for one in found.tenants] == [("acme", "b", "a")]
    assert (found.tenants_looked_at, found.tenant_share) == (2, 0.5)
    assert [one.target for one in found.refused] == ["b"]
    assert not found.rehashed


def test_a_diff_says_when_the_hash_is_another_one() -> None:
    old = even(4)
    found = diff(old, old.replace(router=old.router.replace(hash="fnv1a64")), TENANTS[:1000])
    assert found.rehashed
    assert found.slots == ()
    assert (found.tenant_share or 0) > 0.5


def test_a_url_or_state_that_changes_moves_nothing() -> None:
    old = even(3)
    new = old.replace(router=old.router.replace(cells=[Cell(f"c{n}", "https://x", state="draining") for n in range(3)]))
    found = diff(old.router, new.router, TENANTS[:1000])
    assert (found.slots, found.tenants, found.refused) == ((), (), ())


def test_promote_switches_every_cell_in_one_step_and_only_once() -> None:
    cells = [
        Cell("a", "http://a", standby_url="http://a.west"),
        Cell("b", "http://b", standby_url="http://b.west", state="down"),
        Cell("c", "http://c", standby_url="http://c.west", state="draining"),
    ]
    old = CellMap(CellRouter(cells, pins={"acme": "b"}), 7, tenants={"acme": "moving"})
    new = promote(old)
    assert [(one.name, one.url, one.standby_url, one.state) for one in new.router.cells] == [
        ("a", "http://a.west", None, "active"),
        ("b", "http://b.west", None, "active"),
        ("c", "http://c.west", None, "draining"),
    ]
    assert new.stamp == MapVersion(0, 8)
    assert (new.tenants, new.router.pins) == (old.tenants, old.router.pins)
    found = diff(old, new, TENANTS[:1000])
    assert (found.slots, found.tenants) == ((), ())
    with pytest.raises(ConfigurationError, match="cell 'a', 'b', 'c': standby_url is missing; nothing is promoted"):
        promote(new)


def test_a_map_is_raised_only_if_it_has_to_be() -> None:
    low, high = even(2), even(2).replace(version=5, epoch=1)
    assert raise_version(low, None) is not low
    assert raise_version(low, None) == low
    assert raise_version(low, high).stamp == MapVersion(1, 6)
    assert raise_version(high, low) == high
    assert raise_version(high, high).stamp == MapVersion(1, 6)
    assert raise_version(low, high, new_epoch=True).stamp > high.stamp
    assert raise_version(low, low, new_epoch=True).epoch == 1


def test_publishing_over_what_is_no_map_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "cells.toml"
    file.write_text("version = 9", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"cells\.toml: cells are missing"):
        publish(even(2), file)
    assert file.read_text(encoding="utf-8") == "version = 9"


def test_moving_a_tenant_is_two_maps(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    now = publish(even(2), file)
    moving = publish(now.replace(tenants={"acme": "moving"}), file)
    target = next(cell.name for cell in now.router.cells if cell != now.router.for_tenant("acme"))
    moved = publish(moving.replace(router=moving.router.replace(pins={"acme": target}), tenants={}), file)
    assert [one.version for one in (now, moving, moved)] == [1, 2, 3]
    assert load(file).route("acme") == (moved.router.cell(target), None)

"""Where quotas come from: the settings, code over them, by tenant; and that a change is followed at the next use."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from stories import together

import bulkhead
from bulkhead import ConfigurationError, QuotaExceeded, settings
from bulkhead.memory import MemoryCells, cells, current_memory_cell
from bulkhead.memory.options import MemoryOptions
from bulkhead.option_rows import rows_of
from bulkhead.settings import Memory
from bulkhead.settings.live import live

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Write the settings file, and read it (the first time) or reload it."""
    pytest.importorskip("pydantic_settings")
    before = live.now, live.place, live.seen
    file = tmp_path / "bulkhead.toml"

    def now(text: str) -> None:
        first = not file.exists()
        file.write_text(text)
        if first:
            settings.load(file)
        else:
            settings.reload()

    yield now
    file.write_text("")
    settings.reload()
    live.now, live.place, live.seen = before


def test_the_keywords_are_the_keys_of_the_section() -> None:
    assert set(MemoryOptions.__annotations__) == set(rows_of(Memory))


def test_the_section_is_known_to_every_settings_file(write: Callable[[str], None]) -> None:
    write("[memory]\nquota_bytes = 5_000_000_000\ntenant_quota_bytes = {acme = 7}\nidle_ttl_secs = 30\n")
    found = settings.current().memory
    assert (found.quota_bytes, found.tenant_quota_bytes, found.idle_ttl_secs) == (5_000_000_000, {"acme": 7}, 30.0)
    assert cells.options == found
    assert (found.enabled, found.max_cells, found.charge_bodies) == (True, 10_000, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("quota_bytes = '10MB'", r"memory\.quota_bytes must be a whole number of bytes"),
        ("quota_bytes = -1", r"memory\.quota_bytes must be"),
        ("quota_bytes = 9223372036854775808", r"memory\.quota_bytes must be"),
        ("quota_bytes = true", r"memory\.quota_bytes must be"),
        ("tenant_quota_bytes = 5", r"memory\.tenant_quota_bytes must be a table"),
        ("tenant_quota_bytes = {a = 1.5}", r"memory\.tenant_quota_bytes must be .* the number of 'a' is 1\.5"),
        ("tenant_quota_bytes = {'' = 1}", r"memory\.tenant_quota_bytes must be .* empty"),
        ("max_cell = 5", r"memory has no key 'max_cell': did you mean 'max_cells'"),
        ("idle_ttl_secs = -0.5", r"memory\.idle_ttl_secs must be"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(write: Callable[[str], None], text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        write(f"[memory]\n{text}\n")
    write("")


def test_the_environment_is_over_the_file(write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_MEMORY__QUOTA_BYTES", "2000")
    monkeypatch.setenv("BULKHEAD_MEMORY__TENANT_QUOTA_BYTES", '{"acme": 3000}')
    write("[memory]\nquota_bytes = 1000\ntenant_quota_bytes = {other = 5}\n")
    assert [cells.get_or_create(tenant).quota_bytes for tenant in ("acme", "other", "third")] == [3000, 5, 2000]


def test_a_reload_changes_the_quota_of_living_cells_at_their_next_use(write: Callable[[str], None]) -> None:
    write("[memory]\nquota_bytes = 1000\n")
    with bulkhead.tenant("acme"):
        cell = current_memory_cell()
    assert cell is not None
    charge = cell.charge(800)
    write("[memory]\nquota_bytes = 500\n")
    with pytest.raises(QuotaExceeded):
        cell.charge(1)
    assert cell.quota_bytes == 500
    write("[memory]\nquota_bytes = 2000\n")
    assert cell.charge(1200).bytes == 1200
    write("[memory]\nquota_bytes = 2000\ntenant_quota_bytes = {acme = 900}\n")
    with pytest.raises(QuotaExceeded):
        cell.scratch["a"] = bytes(200)
    write("")
    assert (cell.quota_bytes, cell.charge(10**9).bytes, cells.get_or_create("acme") is cell) == (0, 10**9, True)
    charge.release()


def test_code_is_over_the_settings(write: Callable[[str], None]) -> None:
    cells.configure(quota_bytes=7)
    write("[memory]\nquota_bytes = 1000\nmax_cells = 5\n")
    assert (cells.options.quota_bytes, cells.options.max_cells) == (7, 5)
    write("[memory]\nquota_bytes = 2000\nmax_cells = 6\n")
    assert (cells.options.quota_bytes, cells.options.max_cells) == (7, 6)
    cells.configure(max_cells=8)
    assert (cells.options.quota_bytes, cells.options.max_cells) == (7, 8)


def test_options_in_code_are_checked_by_the_same_rows() -> None:
    for make in (cells.configure, MemoryCells):
        with pytest.raises(ConfigurationError, match="quota_bytes must be a whole number of bytes"):
            make(quota_bytes=1.5)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="unknown option 'quota': did you mean 'quota_bytes'"):
            make(quota=5)  # type: ignore[call-arg]
        with pytest.raises(ConfigurationError, match="tenant_quota_bytes must be a table"):
            make(quota_bytes=5, tenant_quota_bytes=int)
    assert cells.options.quota_bytes == 0, "nothing of it holds"


@pytest.mark.parametrize("make", [lambda: cells, MemoryCells], ids=["of the process", "of its own"])
def test_options_that_are_set_while_others_are_set_are_both_kept(make: Callable[[], MemoryCells]) -> None:
    one = make()

    class Table(dict[str, int]):
        """Somebody else's turn comes while it is checked."""

        def items(self) -> Any:
            one.configure(max_cells=5)
            return super().items()

    one.configure(tenant_quota_bytes=Table(acme=7))
    assert (one.options.max_cells, one.get_or_create("acme").quota_bytes) == (5, 7)


def test_all_who_ask_at_the_same_time_are_told_of_changes() -> None:
    one, told = MemoryCells(), list[int]()

    def follow(first: int) -> None:
        for number in range(first, first + 100):
            one.on_change(partial(tell, number))

    def tell(number: int, _: Memory) -> None:
        told.append(number)

    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    try:
        assert together(*[partial(follow, first) for first in range(0, 800, 100)]) == [None] * 8
    finally:
        sys.setswitchinterval(before)
    one.configure(quota_bytes=5)
    assert sorted(told) == [*range(800)]


def test_a_table_has_quotas_by_name_0_is_none() -> None:
    one = MemoryCells(quota_bytes=100, tenant_quota_bytes={"gold": 500, "free": 0, "7": 3})
    assert [one.get_or_create(tenant).quota_bytes for tenant in ("gold", "free", 7, "default")] == [500, 0, 3, 100]
    assert one.get_or_create("free").charge(10**9).bytes == 10**9


def test_a_callable_is_asked_once_for_each_tenant_and_again_after_a_change() -> None:
    asked: list[str] = []

    def quota(tenant: str) -> int | None:
        asked.append(tenant)
        return {"gold": 500, "free": 0}.get(tenant)

    one = MemoryCells(quota_bytes=100, tenant_quota_bytes=quota)
    for _ in range(3):
        assert [one.get_or_create(tenant).quota_bytes for tenant in ("gold", "free", "other")] == [500, 0, 100]
        one.get_or_create("gold").charge(1).release()
        one.get_or_create("free").charge(10**9).release()
    assert asked == ["gold", "free", "other"]
    one.configure(quota_bytes=200)
    assert one.get_or_create("other").quota_bytes == 200
    assert asked == ["gold", "free", "other", "other"]


@pytest.mark.parametrize("nonsense", [-1, 1.5, "5", True, 2**63])
def test_for_a_callable_that_answers_nonsense_quota_bytes_holds_said_once(
    nonsense: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one = MemoryCells(quota_bytes=100, tenant_quota_bytes=lambda _: nonsense)
    assert [one.get_or_create(tenant).quota_bytes for tenant in "abc"] == [100, 100, 100]
    assert [record.bulkhead_setting for record in caplog.records] == ["memory.tenant_quota_bytes"]  # type: ignore[attr-defined]


def test_for_a_callable_that_raises_quota_bytes_holds(caplog: pytest.LogCaptureFixture) -> None:
    def broken(tenant: str) -> int:
        raise LookupError(tenant)

    one = MemoryCells(quota_bytes=100, tenant_quota_bytes=broken)
    assert one.get_or_create("secret").quota_bytes == 100
    assert "LookupError" in caplog.text
    assert "secret" not in caplog.text


def test_a_callable_may_charge_what_it_needs_itself() -> None:
    def quota(tenant: str) -> int:
        with one.get_or_create(tenant).charge(50), one.get_or_create("helper").charge(50):
            return 500

    one = MemoryCells(quota_bytes=10, tenant_quota_bytes=quota)
    assert one.get_or_create("acme").quota_bytes == 500
    assert one.get_or_create("helper").quota_bytes == 500
    assert one.total_tracked_bytes == 0


def test_who_asked_is_told_of_changes_and_of_nothing_else(write: Callable[[str], None]) -> None:
    told: list[int] = []
    following = cells.on_change(lambda options: told.append(options.quota_bytes))
    write("[memory]\nquota_bytes = 1000\n")
    write("[memory]\nquota_bytes = 1000\n[server]\nmax_concurrent_requests = 5\n")
    cells.configure(max_cells=5)
    cells.configure(max_cells=5)
    following.cancel()
    write("[memory]\nquota_bytes = 2000\n")
    assert told[-2:] == [1000, 1000]
    assert len(told) == 2


def test_refusals_are_counted_told_and_logged_at_powers_of_two(caplog: pytest.LogCaptureFixture) -> None:
    one = MemoryCells(quota_bytes=1)
    told: list[Any] = []
    with caplog.at_level(logging.WARNING, "bulkhead"), bulkhead.subscribe(told.append, bulkhead.events.Busy):
        for number in range(20):
            with pytest.raises(QuotaExceeded):
                one.get_or_create(f"tenant-{number}").charge(2)
    assert one.rules.refused.value == 20
    assert [record.bulkhead_count for record in caplog.records] == [1, 2, 4, 8, 16]  # type: ignore[attr-defined]
    assert "tenant-" not in caplog.text
    assert (len(told), told[0].identifier, told[0].tenant, told[0].limit) == (20, "server:memory", "tenant-0", "memory")

"""Which clock is read: the monotonic one, nowhere the time of day, which jumps."""

from __future__ import annotations

import ast
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stories import circuit, fail, refused, succeed

import bulkhead
from bulkhead import CircuitOpenError

if TYPE_CHECKING:
    from conftest import Eventually

ROOT = Path(__file__).parents[2]
TIME_OF_DAY = {"time", "time_ns", "localtime", "gmtime", "now", "utcnow", "today", "clock_gettime"}
NOT_OURS_TO_DECIDE = ("bulkhead/console/", "bulkhead/testing/")


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_wall_clock_that_jumps_changes_neither_open_period_nor_window(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually, jump: float
) -> None:
    """Known faults 52 (back: open for an hour) and 92 (forward: the wait is skipped)."""
    one = bulkhead.resource("wall-clock", **circuit(2, 1.5, 1, error_threshold_timeout=60))
    real = time.time
    try:
        fail(one)
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        fail(one)
        assert one.state == "open", "both failures are in the window"
        began = time.monotonic()
        assert 0 < (refused(CircuitOpenError, one).retry_after or 0) <= 1.5
        monkeypatch.setattr(time, "time", lambda: real() - jump)
        refused(CircuitOpenError, one)

        def probed() -> bool:
            try:
                succeed(one)
            except CircuitOpenError:
                return False
            return True

        eventually(probed)
        assert 1.4 < time.monotonic() - began < 12
        assert one.state == "closed"
    finally:
        bulkhead.unregister("call:wall-clock")


def test_no_module_reads_the_time_of_day() -> None:
    """Known faults 52 and 92, for whatever is added: leases, windows, idleness, time limits."""
    found = []
    for path in sorted([*(ROOT / "bulkhead").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]):
        where = path.relative_to(ROOT).as_posix()
        if where.startswith(NOT_OURS_TO_DECIDE):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in {"time", "datetime", "date"} and node.attr in TIME_OF_DAY:
                    found.append(f"{where}:{node.lineno}")
            elif isinstance(node, ast.ImportFrom) and node.module in {"time", "datetime"}:
                clocks = (
                    TIME_OF_DAY if node.module == "time" else {"datetime"}
                )  # its other classes hold dates, as TOML has
                found += [f"{where}:{node.lineno}" for name in node.names if name.name in clocks]
    assert not found

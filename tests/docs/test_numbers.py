"""The numbers in docs/choosing-numbers.md follow from the formulas that stand there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

UTILISATION = "extra utilisation"
CAPACITY = "capacity kept"
TIMES = "\N{MULTIPLICATION SIGN}"


@pytest.fixture
def prose(root: Path) -> str:
    return " ".join((root / "docs" / "choosing-numbers.md").read_text(encoding="utf-8").split())


def percent(formula: str, **values: float) -> float:
    """A formula of the page with these values, in percent."""
    expression = formula.replace(TIMES, "*").replace("driver time-out", "driver_timeout")
    assert set(re.findall(r"[a-z_]+", expression)) == set(values)
    return 100 * float(eval(expression, {"__builtins__": {}}, values))  # noqa: S307  our own page


def formula_of(root: Path, what: str) -> str:
    """The right side of the indented line that defines `what`."""
    text = (root / "docs" / "choosing-numbers.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^ {{4}}{what} = (.*)$", text, re.MULTILINE)
    return str(found)


def test_extra_utilisation(root: Path, prose: str) -> None:
    told = re.search(
        r"With (\d+) resources down, probes of ([\d.]+) s, an error_timeout of ([\d.]+) s and (\d+) threads that is "
        r"([\d.]+) %\..*?at ([\d.]+) s it would be ([\d.]+) %",
        prose,
    )
    assert told
    resources, probe, open_for, threads, short, driver, long = map(float, told.groups())
    given = {"resources": resources, "error_timeout": open_for, "threads": threads}
    wanted = formula_of(root, UTILISATION)
    assert percent(wanted, half_open_resource_timeout=probe, **given) == pytest.approx(short, abs=0.05)
    assert percent(wanted, half_open_resource_timeout=driver, **given) == pytest.approx(long, abs=0.05)


def test_capacity_kept(root: Path, prose: str) -> None:
    told = re.search(
        r"With error_timeout ([\d.]+) s and a driver time-out of ([\d.]+) s the thread keeps ([\d.]+) % of its time; "
        r"with ([\d.]+) s it keeps ([\d.]+) %",
        prose,
    )
    assert told
    open_for, short, much, long, little = map(float, told.groups())
    wanted = formula_of(root, CAPACITY)
    assert percent(wanted, error_timeout=open_for, driver_timeout=short) == pytest.approx(much, abs=0.05)
    assert percent(wanted, error_timeout=open_for, driver_timeout=long) == pytest.approx(little, abs=0.5)

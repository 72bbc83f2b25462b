"""The ledger: what Semian's own tests assert is tested here under its id, or docs/deviations.md says why not.

`tests/data/semian.tsv`: one assertion per line; port = P (to port), R (of Ruby only), - (skipped there). An id counts
as tested where a docstring of a test, or of its module, names it: "CB-01", or a range "UP-01 to UP-13".
"""

from __future__ import annotations

import ast
import csv
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
DEVIATIONS = TESTS.parent / "docs" / "deviations.md"
ID = re.compile(r"\b([A-Z]{2})-(\d\d)\b(?: to \1-(\d\d)\b)?")


@cache
def ledger() -> dict[str, str]:
    """The port of each id."""
    with (TESTS / "data" / "semian.tsv").open(newline="") as file:
        return {row["id"]: row["port"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


def ids(text: str) -> set[str]:
    found = set()
    for section, first, last in ID.findall(text):
        found |= {f"{section}-{number:02}" for number in range(int(first), int(last or first) + 1)}
    return found


@cache
def shown() -> frozenset[str]:
    """Ids named in docstrings of tests."""
    found: set[str] = set()
    for path in sorted([*TESTS.rglob("test_*.py"), *TESTS.rglob("cases_*.py")]):
        if path != Path(__file__):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    found |= ids(ast.get_docstring(node) or "")
    return frozenset(found)


@cache
def deviating() -> frozenset[str]:
    """Ids in the first column of a table of docs/deviations.md."""
    rows = [line.split("|")[1] for line in DEVIATIONS.read_text().splitlines() if line.startswith("|")]
    return frozenset(ids(" ".join(rows)))


def test_the_ledger_can_be_read() -> None:
    assert len(ledger()) == 421
    assert set(ledger().values()) == {"P", "R", "-"}


@pytest.mark.parametrize("section", sorted({one[:2] for one in ledger()}))
def test_each_line_is_tested_or_deviates_with_a_reason(section: str) -> None:
    wanted = {one for one, port in ledger().items() if port == "P" and one.startswith(section)}
    assert not sorted(wanted - shown() - deviating())


def test_no_id_is_made_up() -> None:
    sections = {one[:2] for one in ledger()}
    named = {one for one in shown() | deviating() if one[:2] in sections}
    assert not sorted(named - ledger().keys())


FAULT = re.compile(r"[Kk]nown faults? ((?:\d+[a-z]?(?:, | and )?)+)")
# Every number of the sections about probes (1-9), late results (10-16), windows (17-24), exceptions (25-31), threads
# (32-39), streams (41-46), bulkheads (47-50), clocks (52-54), tenants (55-61), patching (71-75) and of our own findings.
FAULTS = frozenset(
    re.findall(
        r"\w+",
        "1 3 4 7 8 9 10 11 12 13 14 16 17 19 21 22 23 24 25 27 27b 28 29 29b 29c 31 32 34 35 36 38 39 41 42 44 46 "
        "47 48 49 50 52 54 55 56 58 60 61 71 72 74 75 92 93 95",
    )
)


@cache
def faults_shown() -> frozenset[str]:
    """Numbers named in docstrings of tests, or written beside the assertion that shows one."""
    named: set[str] = set()
    for path in sorted([*TESTS.rglob("test_*.py"), *TESTS.rglob("cases_*.py")]):
        for numbers in FAULT.findall(path.read_text()):
            named |= set(re.findall(r"\d+[a-z]?", numbers))
    return frozenset(named)


@cache
def faults_deviating() -> frozenset[str]:
    """Numbers in the first column of a table of docs/deviations.md."""
    rows = [line.split("|")[1] for line in DEVIATIONS.read_text().splitlines() if line.startswith("|")]
    numbered = [row for row in rows if re.fullmatch(r"[\s,]*\d+[a-z]?(, \d+[a-z]?)*\s*", row)]
    return frozenset(number for row in numbered for number in re.findall(r"\d+[a-z]?", row))


def test_each_public_fault_that_can_touch_this_toolkit_is_a_test_or_deviates_with_a_reason() -> None:
    """Numbers of faults of other libraries of this kind."""
    assert not sorted(FAULTS - faults_shown() - faults_deviating())


def test_no_number_of_a_fault_is_made_up() -> None:
    assert not sorted(faults_deviating() - FAULTS)

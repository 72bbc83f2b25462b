"""docs/metrics.md names what a real scrape has, and nothing else; both modes have the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scrapes import Scrape

SUFFIXES = ("_total", "_bucket", "_count", "_sum")


def table(page: str, name: str) -> list[list[str]]:
    """The rows between two markers, as cells."""
    found = re.search(rf"<!-- {name}:begin [^>]*-->\n(.*?)<!-- {name}:end -->", page, re.DOTALL)
    assert found, name
    lines = found[1].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(page: str) -> list[list[str]]:
    """The rows of all metrics."""
    return table(page, "names") + table(page, "jobs")


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs" / "metrics.md").read_text(encoding="utf-8")


def ours(scrape: Scrape) -> set[str]:
    """Our metrics, without the times of creation that Prometheus' client adds where it is not told otherwise."""
    return {name for name in scrape.types if name.startswith("bulkhead_") and not name.endswith("_created")}


def test_names_and_labels_in_the_reference_are_those_of_a_scrape(page: str, scrape: Scrape) -> None:
    told = {name: set(labels.split(", ")) - {""} for name, _, labels, *_ in names(page)}
    assert told == {name: scrape.labels(name) for name in ours(scrape)}


def test_types_and_units_in_the_reference_are_right(page: str, scrapes: Callable[[str], Scrape]) -> None:
    one, several = scrapes("one process"), scrapes("several processes")
    for name, kind, _, unit, _ in names(page):
        summary = name.startswith(("bulkhead_wait_seconds", "bulkhead_jobs_wait_seconds"))
        assert one.types[name] == ("summary" if summary else kind), name
        assert several.types[name] == ("gauge" if summary else kind), name
        assert ("seconds" in name) == (unit == "seconds") or name.endswith("_count"), name
        assert name.endswith(SUFFIXES) == (kind in ("counter", "histogram")), name


def test_values_of_labels_in_the_reference_are_those_of_a_scrape(page: str, scrape: Scrape) -> None:
    reasons = {reason.partition("shadow")[1] or reason for reason, _ in table(page, "reasons")}
    found = scrape.values_of("bulkhead_rejections_total", "reason")
    assert {reason.partition("shadow")[1] or reason for reason in found} == reasons
    meaning = {name: what for name, *_, what in names(page)}
    for metric, label in (
        ("bulkhead_calls_total", "outcome"),
        ("bulkhead_tenant_rejections_total", "kind"),
        ("bulkhead_circuit_state", "bulkhead_circuit_state"),
        ("bulkhead_jobs_finished_total", "outcome"),
        ("bulkhead_jobs_refused_total", "reason"),
    ):
        assert {value for value in scrape.values_of(metric, label) if value not in meaning[metric]} == set(), metric


def test_identifiers_in_the_reference_are_those_of_a_scrape(page: str, scrapes: Callable[[str], Scrape]) -> None:
    told = set(re.findall(r"`(server:\w+)`", page))
    for mode, gathered in (("one process", "(evicted)"), ("several processes", "(other)")):
        found = scrapes(mode).values_of("bulkhead_rejections_total", "identifier")
        assert told == {one for one in found if one.startswith("server:")}
        assert gathered in scrapes(mode).values_of("bulkhead_calls_total", "identifier")
        assert f'identifier="{gathered}"' in page


def test_both_modes_say_the_same_of_a_process(scrapes: Callable[[str], Scrape]) -> None:
    """Only the names of resources that went are different."""
    one, several = scrapes("one process"), scrapes("several processes")
    assert ours(one) == ours(several)
    for name in sorted(ours(one)):
        if "seconds_sum" in name or "seconds_bucket" in name:
            continue  # times are never the same
        assert one.value(name) == several.value(name), name
        for identifier in ("call:ok", "call:down", "server:requests"):
            assert one.value(name, identifier=identifier) == several.value(name, identifier=identifier), name


def test_refusals_of_tenants_are_told_by_what_was_limited(scrape: Scrape) -> None:
    assert scrape.value("bulkhead_tenant_rejections_total", kind="request") == 2
    assert scrape.value("bulkhead_tenant_rejections_total", kind="memory") == 1
    # One of the resource `ok`, one of max_db_connections. What shadow would have refused is not among them.
    assert scrape.value("bulkhead_tenant_rejections_total", kind="db") == 2
    assert scrape.value("bulkhead_rejections_total", identifier="call:shadow", reason="shadow_tenant") == 1


def test_memory_in_use_is_that_of_all_cells(scrape: Scrape) -> None:
    assert scrape.value("bulkhead_memory_tracked_bytes") == 60
    assert scrape.value("bulkhead_memory_cells") == 1


def test_jobs_are_counted(scrape: Scrape) -> None:
    assert scrape.value("bulkhead_jobs_finished_total", queue="mail", outcome="success") == 1
    assert scrape.value("bulkhead_jobs_finished_total", queue="mail", outcome="dead") == 1
    assert scrape.value("bulkhead_jobs_waiting", queue="mail") == 1
    assert scrape.value("bulkhead_tenant_rejections_total", kind="job") == 1


def test_no_tenant_is_in_a_scrape(scrape: Scrape) -> None:
    """Known fault 58."""
    values = {value for sample in scrape.samples for value in sample.labels.values()}
    assert values.isdisjoint({"a", "b", "c"})

"""bulkhead_jobs_…: by queue, no tenant, in one process and in several; counters never go back."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from scrapes import Scrape

import bulkhead
from bulkhead import metrics
from bulkhead.jobs import Runner, job, named
from bulkhead.jobs.records import OUTCOMES

if TYPE_CHECKING:
    from conftest import RunPython


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics.register(registry)
    return registry


def scrape(registry: CollectorRegistry) -> Scrape:
    return Scrape(generate_latest(registry).decode())


def test_jobs_are_counted_by_queue_and_outcome(registry: CollectorRegistry) -> None:
    @job("metered", max_attempts=2)
    def fails() -> None:
        raise ValueError

    @job("metered")
    def works() -> None: ...

    gc.collect()
    before = scrape(registry)

    def more(name: str) -> float:
        """Other tests' runners may be there still."""
        return (seen.value(name) or 0) - (before.value(name) or 0)

    with Runner(workers=1, chance=lambda: 0.0) as runner:
        for _ in range(3):
            works.options(tenant="acme-inc").enqueue()
        fails.enqueue()
        assert runner.drain(timeout=20)
        runner.resume()
        runner.pause("acme-inc")
        works.options(tenant="acme-inc").enqueue()
        works.enqueue_in(1000)
        named("nobody's").enqueue()
        seen = scrape(registry)
        assert seen.value("bulkhead_jobs_finished_total", queue="metered", outcome="success") == 3
        assert seen.value("bulkhead_jobs_finished_total", queue="metered", outcome="retry") == 1
        assert seen.value("bulkhead_jobs_finished_total", queue="metered", outcome="dead") == 1
        assert seen.value("bulkhead_jobs_wait_seconds_count", queue="metered") == 5
        assert (seen.value("bulkhead_jobs_wait_seconds_sum", queue="metered") or 0) > 0
        assert seen.value("bulkhead_jobs_waiting", queue="metered") == 1
        assert seen.value("bulkhead_jobs_running", queue="metered") == 0
        assert more("bulkhead_jobs_later") == 1
        assert more("bulkhead_jobs_unknown") == 1
        assert more("bulkhead_jobs_dead") == 1
        assert "acme-inc" not in seen.text


def test_refusals_are_counted_by_limit_and_as_those_of_a_tenant(registry: CollectorRegistry) -> None:
    @job()
    def works() -> None: ...

    before = scrape(registry)
    runner = Runner(max_backlog_per_tenant=1, max_backlog=2)
    for tenant in ("a", "a", "b", None, None):
        try:
            works.options(tenant=tenant, runner=runner).enqueue()
        except bulkhead.Rejected:
            continue
    after = scrape(registry)

    def more(name: str, **labels: str) -> float:
        return (after.value(name, **labels) or 0) - (before.value(name, **labels) or 0)

    assert more("bulkhead_jobs_refused_total", reason="max_backlog_per_tenant") == 1
    assert more("bulkhead_jobs_refused_total", reason="max_backlog") == 2
    assert more("bulkhead_tenant_rejections_total", kind="job") == 1
    assert after.value("bulkhead_tenant_rejections_total", kind="db") is not None


def test_a_runner_that_is_gone_leaves_its_counters(registry: CollectorRegistry) -> None:
    @job("leaving")
    def works() -> None: ...

    def one() -> float | None:
        with Runner(workers=1) as runner:
            works.enqueue()
            assert runner.drain(timeout=20)
        return scrape(registry).value("bulkhead_jobs_finished_total", queue="leaving", outcome="success")

    assert one() == 1
    gc.collect()
    assert scrape(registry).value("bulkhead_jobs_finished_total", queue="leaving", outcome="success") == 1
    assert one() == 2


def test_the_reference_names_what_a_scrape_has(registry: CollectorRegistry) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    table = page[page.index("<!-- jobs:begin") : page.index("<!-- jobs:end")].splitlines()[3:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    told = {name: (kind, labels) for name, kind, labels, *_ in rows}

    @job()
    def works() -> None: ...

    with Runner(workers=1, max_backlog_per_tenant=1) as runner:
        works.enqueue()
        assert runner.drain(timeout=20)
        runner.resume()
        runner.pause("a")
        works.options(tenant="a").enqueue()
        with pytest.raises(bulkhead.Rejected):
            works.options(tenant="a").enqueue()
        seen = scrape(registry)
    found = {
        name: kind for name, kind in seen.types.items() if name.startswith("bulkhead_jobs_") and "created" not in name
    }
    assert set(found) == set(told)
    for name, (kind, labels) in told.items():
        assert found[name] == ("summary" if "wait_seconds" in name else kind), name
        assert ", ".join(sorted(seen.labels(name), reverse=labels.startswith("queue"))) == labels, name
    outcomes = " ".join(what for name, *_, what in rows if name == "bulkhead_jobs_finished_total")
    assert all(outcome in outcomes for outcome in OUTCOMES)


WORKER = """
import os, sys
import bulkhead
from bulkhead import metrics
from bulkhead.jobs import Runner, job
from prometheus_client import CollectorRegistry

registry = CollectorRegistry()
mirror = metrics.register(registry)

@job("shared")
def works(): pass

for round in range(2):
    with Runner(workers=1, max_backlog_per_tenant=1) as runner:
        works.enqueue()
        assert runner.drain(timeout=20)
        runner.resume()
        runner.pause("a")
        for _ in range(2):
            try:
                works.options(tenant="a").enqueue()
            except bulkhead.Rejected:
                pass
        mirror.write()
        mirror.write()
"""


def test_several_processes_add_up(run_python: RunPython, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    for _ in range(2):
        run_python(WORKER, env={"PROMETHEUS_MULTIPROC_DIR": str(folder)})
    seen = Scrape.of_folder(folder)
    assert seen.value("bulkhead_jobs_finished_total", queue="shared", outcome="success") == 4
    assert seen.value("bulkhead_jobs_wait_seconds_count", queue="shared") == 4
    assert seen.value("bulkhead_tenant_rejections_total", kind="job") == 4
    assert seen.value("bulkhead_jobs_refused_total", reason="max_backlog_per_tenant") == 4


def test_a_process_that_only_runs_jobs_writes_its_metrics(run_python: RunPython, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    run_python(
        """
from bulkhead import metrics
from bulkhead.jobs import Runner, job
metrics.register()

@job("alone")
def works(): pass

with Runner(workers=1) as runner:
    works.enqueue()
    assert runner.drain(timeout=20)
""",
        env={"PROMETHEUS_MULTIPROC_DIR": str(folder)},
    )
    assert Scrape.of_folder(folder).value("bulkhead_jobs_finished_total", queue="alone", outcome="success") == 1

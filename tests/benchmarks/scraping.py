"""Group of rows: what a scrape costs, beside generate_latest over as many plain metrics of Prometheus' client."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from guarded import BOTH, CIRCUIT
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Summary,
    disable_created_metrics,
    enable_created_metrics,
    generate_latest,
)
from table import Line, cost_line, ratio_line
from timing import Subject, measure

import bulkhead
from bulkhead import metrics

if TYPE_CHECKING:
    from bulkhead import Resource

RESOURCES = 500
PLAIN = "as many plain metrics"
GAUGES = "as many series of one plain gauge"
BUDGET = 3.0


def _scrape(registry: CollectorRegistry) -> Subject:
    def run(times: int) -> float:
        began = time.thread_time()
        for _ in range(times):
            generate_latest(registry)
        return time.thread_time() - began

    return Subject(run, warm_up=1)


def _used() -> list[Resource]:
    """Resources that have seen a call of each outcome."""
    found = [bulkhead.resource(f"scraped-{number}", **BOTH, **CIRCUIT) for number in range(RESOURCES)]
    for one in found:
        for error in (None, ValueError, KeyboardInterrupt):
            with contextlib.suppress(ValueError, KeyboardInterrupt), one.permit():
                if error is not None:
                    raise error
    return found


def _plain(found: list[Resource]) -> CollectorRegistry:
    """The same series, of ordinary metrics."""
    registry = CollectorRegistry()
    calls = Counter("bulkhead_calls", "Calls let through, by outcome", ["identifier", "outcome"], registry=registry)
    state = Gauge("bulkhead_circuit_state", "State", ["identifier", "bulkhead_circuit_state"], registry=registry)
    tickets = [
        Gauge(f"bulkhead_tickets_{name}", "Tickets", ["identifier"], registry=registry) for name in ("in_use", "limit")
    ]
    waits = Summary("bulkhead_wait_seconds", "Waiting for tickets", ["identifier"], registry=registry)
    for one in found:
        for outcome in ("success", "failure", "ignored"):
            calls.labels(one.identifier, outcome).inc()
        for name in ("closed", "open", "half_open"):
            state.labels(one.identifier, name).set(name == one.state)
        for gauge in tickets:
            gauge.labels(one.identifier).set(1)
        waits.labels(one.identifier).observe(0)
    return registry


def _gauges(number: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    gauge = Gauge("bulkhead_circuit_state", "State", ["identifier", "bulkhead_circuit_state"], registry=registry)
    for index in range(number):
        gauge.labels(f"call:scraped-{index // 10}", f"state-{index % 10}").set(1)
    return registry


def _series(registry: CollectorRegistry) -> int:
    return sum(not line.startswith(b"#") for line in generate_latest(registry).splitlines())


def scraped(rounds: int) -> list[Line]:
    """500 resources, one process."""
    ours = CollectorRegistry()
    metrics.register(ours)
    disable_created_metrics()  # else a plain counter has two series
    found = _used()
    try:
        plain = _plain(found)
        series = _series(plain)
        assert series == _series(ours) - 1  # which has the refusals of tenants, too
        gauges = _gauges(series)
        row = f"scrape of {RESOURCES} resources, {series:,} series"
        results = measure({row: _scrape(ours), PLAIN: _scrape(plain), GAUGES: _scrape(gauges)}, rounds)
    finally:
        enable_created_metrics()
        for one in found:
            bulkhead.unregister(one.identifier)
    return [
        cost_line(PLAIN, results, bare=None),
        ratio_line(row, results, PLAIN, BUDGET, bare=None),
        ratio_line(row, results, GAUGES, BUDGET, bare=None),
    ]

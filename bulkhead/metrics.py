"""Prometheus: a collector that reads the state when it is scraped. One process; no tenant is ever a label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, StateSetMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from bulkhead import events
from bulkhead.registry import registry as resources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

__all__ = ["BulkheadCollector", "register"]

STATES = ("closed", "open", "half_open")
EVICTED = "(evicted)"
OF_A_TENANT = ("tenant", "connections")  # the limits that one tenant is found at


class BulkheadCollector(Collector):
    """Calls by outcome, rejections by reason, tickets, circuit states and waits of all registered resources.

    Resources that the registry let go are summed under identifier="(evicted)", so counters never go back.
    """

    watching: events.Subscription | None = None
    """With call_seconds: what feeds the histogram; cancel it to stop watching calls."""

    def describe(self) -> list[Metric]:
        """Nothing: what there is depends on what is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One sample per resource and state, read now."""
        calls = CounterMetricFamily("bulkhead_calls", "Calls let through, by outcome", labels=["identifier", "outcome"])
        refused = CounterMetricFamily(
            "bulkhead_rejections", "Calls refused, by reason", labels=["identifier", "reason"]
        )
        in_use = GaugeMetricFamily("bulkhead_tickets_in_use", "Tickets with callers", labels=["identifier"])
        limit = GaugeMetricFamily("bulkhead_tickets_limit", "The option tickets", labels=["identifier"])
        state = StateSetMetricFamily("bulkhead_circuit_state", "State of the circuit", labels=["identifier"])
        waits = SummaryMetricFamily("bulkhead_wait_seconds", "Waiting for tickets", labels=["identifier"])
        of_tenants = CounterMetricFamily(
            "bulkhead_tenant_rejections", "Refusals at the limit of one tenant, all tenants together", labels=["kind"]
        )
        everything = {identifier: one.totals() for identifier, one in resources.resources().items()}
        if resources.evicted:
            everything[EVICTED] = dict(resources.evicted)
        for identifier, totals in everything.items():
            for (what, which), value in totals.items():
                if what == "calls":
                    calls.add_metric([identifier, which], value)
                elif what == "rejections":
                    refused.add_metric([identifier, which], value)
            waits.add_metric(
                [identifier], int(totals.get(("waits", "count"), 0)), totals.get(("waits", "seconds"), 0.0)
            )
        of_tenants.add_metric(
            ["db"],
            sum(totals.get(("rejections", reason), 0) for totals in everything.values() for reason in OF_A_TENANT),
        )
        for identifier, one in resources.resources().items():
            in_use.add_metric([identifier], one.in_use)
            if one.limit is not None:
                limit.add_metric([identifier], one.limit)
            now = one.state
            state.add_metric([identifier], {name: name == now for name in STATES})
        yield from (calls, refused, in_use, limit, state, waits, of_tenants)


def register(registry: CollectorRegistry = REGISTRY, *, call_seconds: bool = False) -> BulkheadCollector:
    """Register a collector, and begin to count successes (failures and rejections are counted always).

    `call_seconds` adds the histogram bulkhead_call_seconds{identifier,outcome}: how long calls lasted. Every call is
    watched for it, which costs some microseconds each.
    """
    resources.count_successes()
    collector = BulkheadCollector()
    registry.register(collector)
    if call_seconds:
        seconds = Histogram(
            "bulkhead_call_seconds", "How long calls lasted", ["identifier", "outcome"], registry=registry
        )

        def observe(event: Any) -> None:
            seconds.labels(event.identifier, type(event).__name__.lower()).observe(event.duration)

        collector.watching = events.subscribe(observe, events.Success, events.Failure, events.Ignored)
    return collector

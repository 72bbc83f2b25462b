"""One process: a collector that reads the state when it is scraped, and keeps nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, StateSetMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from bulkhead.metrics.others import families
from bulkhead.metrics.reading import (
    CALLS,
    EVICTED,
    IN_USE,
    LIMIT,
    REJECTIONS,
    STATE,
    STATES,
    TENANT_REJECTIONS,
    WAITS,
    caps,
)
from bulkhead.registry import registry as resources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from bulkhead import events


class BulkheadCollector(Collector):
    """Calls by outcome, rejections by reason, tickets, circuit states and waits of all registered resources.

    Resources that the registry let go are summed under identifier="(evicted)", so counters never go back.
    """

    watching: events.Subscription | None = None
    """With call_seconds: what feeds the histogram; cancel it to stop watching calls."""

    def __init__(self) -> None:
        self._fresh()

    def _fresh(self) -> None:
        self._process, self._of_tenants = os.getpid(), dict[str, float](db=0)

    def describe(self) -> list[Metric]:
        """Nothing: what there is depends on what is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One sample per resource and state, read now."""
        calls = CounterMetricFamily(CALLS.name, CALLS.help, labels=CALLS.labels)
        refused = CounterMetricFamily(REJECTIONS.name, REJECTIONS.help, labels=REJECTIONS.labels)
        in_use = GaugeMetricFamily(IN_USE.name, IN_USE.help, labels=IN_USE.labels)
        limit = GaugeMetricFamily(LIMIT.name, LIMIT.help, labels=LIMIT.labels)
        state = StateSetMetricFamily(STATE.name, STATE.help, labels=STATE.labels[:1])
        waits = SummaryMetricFamily(WAITS.name, WAITS.help, labels=WAITS.labels)
        of_tenants: dict[str, float] = {}
        registered = resources.resources()
        everything = {identifier: one.totals() for identifier, one in registered.items()} | caps()
        if resources.evicted:
            everything[EVICTED] = resources.evicted.copy()
        for identifier, totals in everything.items():
            for (what, which), value in totals.items():
                if what == "calls":
                    calls.add_metric([identifier, which], value)
                elif what == "rejections":
                    refused.add_metric([identifier, which], value)
                elif what == "tenant_rejections":
                    of_tenants[which] = of_tenants.get(which, 0) + value
            if ("waits", "count") in totals:
                waits.add_metric([identifier], int(totals["waits", "count"]), totals["waits", "seconds"])
        for identifier, one in registered.items():
            in_use.add_metric([identifier], one.in_use)
            if one.limit is not None:
                limit.add_metric([identifier], one.limit)
            now = one.state
            state.add_metric([identifier], {name: name == now for name in STATES})
        yield from (calls, refused, in_use, limit, state, waits, self._growing(of_tenants), *families())

    def _growing(self, of_tenants: dict[str, float]) -> CounterMetricFamily:
        """A sum over resources. One that goes while they are read is missing from it: a sum must not go back."""
        if self._process != os.getpid():  # a forked child counts from 0
            self._fresh()
        for kind, value in of_tenants.items():
            self._of_tenants[kind] = max(value, self._of_tenants.get(kind, 0))
        family = CounterMetricFamily(TENANT_REJECTIONS.name, TENANT_REJECTIONS.help, labels=TENANT_REJECTIONS.labels)
        for kind, value in self._of_tenants.items():
            family.add_metric([kind], value)
        return family

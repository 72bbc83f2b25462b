"""Prometheus: what was counted, who holds tickets, in which state circuits are. No tenant is ever a label.

`register()` once per process, where the application is made; before or after a fork makes no difference. In one
process a collector reads the state when it is scraped (collector.py). Where PROMETHEUS_MULTIPROC_DIR is set each worker
mirrors its numbers into ordinary metrics (mirror.py), which `prometheus_client.multiprocess.MultiProcessCollector` adds
up. Names, labels and meaning are the same in both, and stand in reading.py; docs/metrics.md is the reference.

prometheus_client is imported in this package only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Histogram

from bulkhead import events
from bulkhead.metrics.collector import BulkheadCollector
from bulkhead.metrics.mirror import BulkheadMirror, several_processes, the_mirror
from bulkhead.metrics.reading import CALL_SECONDS, Names
from bulkhead.registry import registry as resources

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["BulkheadCollector", "BulkheadMirror", "register"]

_registered: MutableMapping[CollectorRegistry, BulkheadCollector | BulkheadMirror] = WeakKeyDictionary()


def register(
    registry: CollectorRegistry = REGISTRY, *, call_seconds: bool = False
) -> BulkheadCollector | BulkheadMirror:
    """Register with Prometheus' registry, and begin to count successes (failures and rejections are counted always).

    `call_seconds` adds the histogram bulkhead_call_seconds{identifier,outcome}: how long calls lasted. Every call is
    watched for it, which costs some microseconds each. Registering again with the same registry is harmless, also
    after it was taken out by `registry.unregister`.

    ConfigurationError: PROMETHEUS_MULTIPROC_DIR is set and is no folder that can be written.
    """
    found = _registered.get(registry)
    if found is None:
        resources.count_successes()
        if several_processes():
            found = the_mirror()
            found.add_to(registry)
        else:
            found = BulkheadCollector()
            registry.register(found)
        _registered[registry] = found
    elif isinstance(found, BulkheadCollector) and _was_taken_out(found, registry):
        registry.register(found)
    if call_seconds and found.watching is None:
        found.watching = _watch(registry)
    return found


def _was_taken_out(collector: BulkheadCollector, registry: CollectorRegistry) -> bool:
    """There is no public way to ask."""
    return collector not in getattr(registry, "_collector_to_names", (collector,))


def _watch(registry: CollectorRegistry) -> events.Subscription:
    """Observe how long each call lasts. Labels of a histogram stay, so there are at most maximum_resources of them."""
    seconds = Histogram(CALL_SECONDS.name, CALL_SECONDS.help, CALL_SECONDS.labels, registry=registry)
    names = Names()

    def observe(event: Any) -> None:
        seconds.labels(names.of(event.identifier), type(event).__name__.lower()).observe(event.duration)

    return events.subscribe(observe, events.Success, events.Failure, events.Ignored)

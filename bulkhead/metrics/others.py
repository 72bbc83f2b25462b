"""Numbers of parts that are no resource (bulkhead/measures.py), for Prometheus: in one process, and in many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

from bulkhead import measures

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.metrics_core import Metric

    from bulkhead.measures import Measure, Number


def families() -> list[Metric]:
    """What a scrape of one process shows."""
    found: dict[Measure, Any] = {}
    for number in measures.numbers():
        measure = number.measure
        family = found.get(measure)
        if family is None:
            kind: dict[str, Any] = {
                "counter": CounterMetricFamily,
                "gauge": GaugeMetricFamily,
                "summary": SummaryMetricFamily,
            }
            family = found[measure] = kind[measure.kind](measure.name, measure.help, labels=measure.labels)
        if measure.kind == "summary":
            family.add_metric(number.labels, count_value=number.times, sum_value=number.value)
        else:
            family.add_metric(number.labels, number.value)
    return list(found.values())


class Mirrored:
    """The same as ordinary metrics, whose files Prometheus' client adds up; counters are raised by what was added."""

    def __init__(self, show: Callable[[Counter | Gauge], object]) -> None:
        self._show = show
        """Called with each metric that is made."""
        self.metrics: dict[str, Counter | Gauge] = {}
        self.forget()

    def forget(self) -> None:
        """Nothing is written yet. Also in a forked child."""
        self._seen: dict[tuple[str, tuple[str, ...]], float] = {}

    def write(self, *, last: bool = False) -> None:
        """Write the numbers of now. `last`: nothing waits and nothing runs any more."""
        for number in measures.numbers():
            measure = number.measure
            if measure.kind == "summary":
                self._raise(self._gauge(f"{measure.name}_count", measure, "sum"), number, number.times)
                self._raise(self._gauge(f"{measure.name}_sum", measure, "sum"), number, number.value)
            elif measure.kind == "counter":
                self._raise(self._counter(measure), number, number.value)
            else:
                _of(self._gauge(measure.name, measure, "livesum"), number).set(0 if last else number.value)

    def _raise(self, metric: Counter | Gauge, number: Number, now: float) -> None:
        key = metric._name, number.labels  # noqa: SLF001  there is no public way to ask
        more = now - self._seen.get(key, 0)
        if more > 0 or key not in self._seen:
            _of(metric, number).inc(max(0, more))
            self._seen[key] = now

    def _counter(self, measure: Measure) -> Counter | Gauge:
        return self._made(measure.name, lambda: Counter(measure.name, measure.help, measure.labels, registry=None))

    def _gauge(self, name: str, measure: Measure, mode: Any) -> Gauge:
        made = self._made(
            name, lambda: Gauge(name, measure.help, measure.labels, registry=None, multiprocess_mode=mode)
        )
        assert isinstance(made, Gauge)  # noqa: S101  one name, one kind
        return made

    def _made(self, name: str, make: Callable[[], Counter | Gauge]) -> Counter | Gauge:
        found = self.metrics.get(name)
        if found is None:
            found = self.metrics[name] = make()
            self._show(found)
        return found


def _of(metric: Any, number: Number) -> Any:
    return metric.labels(*number.labels) if number.labels else metric

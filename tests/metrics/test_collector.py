"""One process: sums never go back, whatever happens to resources; a child counts from 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import RunPython

START = """
import os, sys
sys.path.insert(0, "tests")
import bulkhead
from bulkhead import metrics
from prometheus_client import CollectorRegistry, generate_latest
from scrapes import Scrape
from stories import circuit, fail, hold, refused, succeed

own = CollectorRegistry()
collector = metrics.register(own)


def scrape(registry=own):
    return Scrape(generate_latest(registry).decode())
"""


def test_sums_never_go_back_when_resources_go(run_python: RunPython) -> None:
    """Eviction and return, unregister, reset: a rate over all identifiers has neither gaps nor jumps."""
    run_python(
        START
        + """
bulkhead.defaults(maximum_lru_size=0, minimum_lru_time=0)
last = {}


def grown():
    found = scrape()
    for name, label in (("bulkhead_calls_total", "outcome"), ("bulkhead_rejections_total", "reason"),
                        ("bulkhead_tenant_rejections_total", "kind"), ("bulkhead_wait_seconds_count", None)):
        for value in found.values_of(name, label) if label else [None]:
            now = found.value(name, **({label: value} if label else {}))
            assert now >= last.get((name, value), 0), (name, value, now)
            last[name, value] = now


for turn in range(60):
    for number in range(8):
        one = bulkhead.resource(f"r{number}", tickets=1, tenant_tickets=1)
        succeed(one)
        held = hold(one, "a")
        refused(bulkhead.Rejected, one, "a")
        held.end()
        if turn % 7 == number:
            one.reset()
        if turn % 11 == number:
            bulkhead.unregister(one.identifier)
        del one, held
        grown()
assert len(bulkhead.resources()) < 8
found = scrape()
assert found.value("bulkhead_calls_total", outcome="success") == 960
assert found.value("bulkhead_rejections_total", reason="tenant") == 480
assert found.value("bulkhead_tenant_rejections_total", kind="db") == 480
assert found.value("bulkhead_calls_total", identifier="(evicted)", outcome="success") > 0
"""
    )


def test_a_forked_child_counts_from_zero(run_python: RunPython) -> None:
    """Known fault 93: what went in the parent, and its refusals, are not the child's."""
    run_python(
        START
        + """
gone = bulkhead.resource("gone", tickets=1, tenant_tickets=1)
held = hold(gone, "a")
refused(bulkhead.Rejected, gone, "a")
held.end()
bulkhead.unregister("call:gone")
assert scrape().value("bulkhead_tenant_rejections_total", kind="db") == 1
pid = os.fork()
if not pid:
    code = 1
    try:
        found = scrape()
        assert found.value("bulkhead_calls_total") is None
        assert found.value("bulkhead_tenant_rejections_total", kind="db") == 0
        succeed(bulkhead.resource("own", tickets=1))
        assert scrape().value("bulkhead_calls_total") == 1
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
"""
    )


def test_registering_again_is_harmless(run_python: RunPython) -> None:
    run_python(
        START
        + """
assert metrics.register(own) is collector
assert metrics.register(own, call_seconds=True) is collector
assert metrics.register(own, call_seconds=True) is collector
other = CollectorRegistry()
assert metrics.register(other) is not collector
succeed(bulkhead.resource("one", tickets=1))
for registry in (own, other):
    assert scrape(registry).value("bulkhead_calls_total", outcome="success") == 1
assert scrape().value("bulkhead_call_seconds_count") == 1
"""
    )


def test_what_was_taken_out_of_a_registry_can_be_registered_again(run_python: RunPython) -> None:
    run_python(
        START
        + """
succeed(bulkhead.resource("one", tickets=1))
own.unregister(collector)
assert metrics.register(own) is collector
assert metrics.register(own) is collector
assert scrape().value("bulkhead_calls_total", outcome="success") == 1
"""
    )


def test_a_histogram_keeps_at_most_as_many_identifiers_as_there_may_be_resources(run_python: RunPython) -> None:
    """Known fault 55, for monitoring: labels of a histogram cannot be removed."""
    run_python(
        START
        + """
metrics.register(own, call_seconds=True)
bulkhead.defaults(maximum_lru_size=0, minimum_lru_time=0, maximum_resources=5)
for number in range(40):
    succeed(bulkhead.resource(f"made-up-{number}", tickets=3))
found = scrape()
assert len(found.values_of("bulkhead_call_seconds_count", "identifier")) == 6
assert found.value("bulkhead_call_seconds_count", identifier="(other)") == 35
"""
    )

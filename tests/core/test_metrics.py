"""Metrics of calls: read from the state of the moment, few whatever the tenants."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from stories import Boom, circuit, fail, hold, refused, succeed

import bulkhead
from bulkhead import ResourceBusyError, metrics
from bulkhead.registry import registry


@pytest.fixture
def scrape() -> Any:
    prometheus = CollectorRegistry()
    metrics.register(prometheus)
    yield lambda: generate_latest(prometheus).decode()
    registry.counting = False


def test_metrics_have_no_tenant(scrape: Any) -> None:
    """Known fault 58: 10,000 tenants, the same few series."""
    one = bulkhead.resource("metrics", **circuit(1_000_000), tickets=3, tenant_tickets=1)
    try:
        for number in range(100):
            succeed(one, f"t{number}")
        before = len(scrape().splitlines())
        for number in range(10_000):
            held = hold(one, f"t{number}")
            refused(ResourceBusyError, one, f"t{number}")
            held.end()
        text = scrape()
        assert len(text.splitlines()) <= before + 1
        assert "t99" not in text
        assert 'bulkhead_rejections_total{identifier="call:metrics",reason="tenant"} 10000.0' in text
        assert 'bulkhead_tenant_rejections_total{kind="db"} 10000.0' in text
    finally:
        bulkhead.unregister("call:metrics")


def test_metrics_read_the_state_of_the_moment(scrape: Any) -> None:
    one = bulkhead.resource("metrics2", **circuit(2), tickets=3)
    try:
        for _ in range(4):
            succeed(one)
        session = hold(one)
        session.settle()
        session.end()
        fail(one)
        fail(one, error=KeyboardInterrupt())
        held = hold(one)
        text = scrape()
        for line in (
            'bulkhead_calls_total{identifier="call:metrics2",outcome="success"} 5.0',
            'bulkhead_calls_total{identifier="call:metrics2",outcome="failure"} 1.0',
            'bulkhead_calls_total{identifier="call:metrics2",outcome="ignored"} 1.0',
            'bulkhead_tickets_in_use{identifier="call:metrics2"} 1.0',
            'bulkhead_tickets_limit{identifier="call:metrics2"} 3.0',
            'bulkhead_circuit_state{bulkhead_circuit_state="closed",identifier="call:metrics2"} 1.0',
            'bulkhead_wait_seconds_count{identifier="call:metrics2"} 0.0',
        ):
            assert line in text, line
        held.fail(Boom())
        assert 'bulkhead_circuit_state{bulkhead_circuit_state="open",identifier="call:metrics2"} 1.0' in scrape()
    finally:
        bulkhead.unregister("call:metrics2")


def test_how_long_calls_last_is_measured_on_request_only() -> None:
    plain, asked = CollectorRegistry(), CollectorRegistry()
    metrics.register(plain)
    collector = metrics.register(asked, call_seconds=True)
    one = bulkhead.resource("metrics3", **circuit(5), tickets=3)
    try:
        succeed(one)
        succeed(one)
        fail(one)
        assert "bulkhead_call_seconds" not in generate_latest(plain).decode()
        text = generate_latest(asked).decode()
        assert 'bulkhead_call_seconds_count{identifier="call:metrics3",outcome="success"} 2.0' in text
        assert 'bulkhead_call_seconds_count{identifier="call:metrics3",outcome="failure"} 1.0' in text
    finally:
        assert collector.watching is not None
        collector.watching.cancel()
        bulkhead.unregister("call:metrics3")
        registry.counting = False


def test_what_the_registry_let_go_is_summed_under_one_name(scrape: Any) -> None:
    registry.evicted["calls", "failure"] = registry.evicted.get(("calls", "failure"), 0) + 3
    before = registry.evicted.get(("tenant_rejections", "db"), 0)
    registry.evicted["tenant_rejections", "db"] = before + 2
    try:
        text = scrape()
    finally:
        registry.evicted.clear()
    assert 'bulkhead_calls_total{identifier="(evicted)",outcome="failure"}' in text
    assert f'bulkhead_tenant_rejections_total{{kind="db"}} {before + 2:.1f}' in text

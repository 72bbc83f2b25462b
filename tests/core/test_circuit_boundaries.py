"""The circuit of a resource at exact moments, and in states that two things reach at once."""

from __future__ import annotations

import pytest
from stories import CONNECT, DIRECT, Boom, Clock, at_rest, circuit, fail, hold, refused, resource, succeed, work_for

from bulkhead import CircuitOpenError, ResourceBusyError, subscribe
from bulkhead.circuit.rules import Run, Window
from bulkhead.events import StateChange
from bulkhead.option_set import Options
from bulkhead.registry import Registry


def test_failures_exactly_lumping_interval_apart_count_each() -> None:
    """What is closer together counts once; at this distance they are two."""
    for rule in (Window(2, 10, 1.0), Run(2, 1.0)):
        assert not rule.failure(5.0, None, anonymous=False)
        assert rule.failure(6.0, None, anonymous=False)


def test_connects_that_failed_before_the_window_open_nothing() -> None:
    """Three of them, but not within ten seconds: what is left is one tenant's poison."""
    clock = Clock()
    one = resource(clock, **circuit(3, 10, 1, error_tenants=2))
    fail(one, site=CONNECT)
    clock.advance(9)
    fail(one, site=CONNECT)
    succeed(one, "b")
    fail(one, "a")
    clock.advance(3)
    fail(one, site=CONNECT)
    assert one.state == "closed"
    fail(one, "c")
    assert one.state == "open", "a and c"


def test_closing_by_hand_forgets_the_back_off_step() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 60, 1, exponential_backoff_error_timeout=True))
    fail(one)
    clock.advance(1)
    fail(one)
    assert refused(CircuitOpenError, one).retry_after == 2.0
    one.close()
    fail(one)
    assert refused(CircuitOpenError, one).retry_after == 1.0
    at_rest(one)


def test_opening_by_hand_what_is_open_is_announced() -> None:
    """It is open for another reason now, and until somebody closes it."""
    one = resource(**circuit(1, 10))
    fail(one)
    seen: list[object] = []
    with subscribe(lambda event: seen.append((event.old, event.new, event.reason)), StateChange):  # type: ignore[union-attr]
        one.open("maintenance")
    assert seen == [("open", "open", "maintenance")]
    assert refused(CircuitOpenError, one).retry_after is None


def test_of_two_probes_over_their_time_the_first_says_when_it_opened() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 2), half_open_max_probes=2, half_open_resource_timeout=3.0)
    fail(one)
    clock.advance(10)
    probes = [hold(one)]
    clock.advance(2)
    probes.append(hold(one))
    clock.advance(4)
    assert refused(CircuitOpenError, one).retry_after == 7.0, "it opened three seconds ago"
    for probe in probes:
        probe.end()
    assert one.state == "open"
    at_rest(one)


def test_a_failed_connect_of_a_probe_is_nobody_s_fault() -> None:
    """With error_tenants a tenant whose probe failed lets others try; not for a connect, which any would have failed."""
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1, error_tenants=2))
    fail(one)
    clock.advance(10)
    fail(one, "a", site=CONNECT)
    refused(CircuitOpenError, one, "b")
    clock.advance(10)
    succeed(one, "a")
    assert one.state == "closed"


def test_a_tenant_that_waited_for_another_s_probe_has_the_next() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 3, error_tenants=2))
    fail(one)
    clock.advance(10)
    fail(one, "a")
    refused(CircuitOpenError, one, "b")
    clock.advance(10)
    refused(CircuitOpenError, one, "a")
    succeed(one, "b")
    succeed(one, "a")
    succeed(one, "a")
    assert one.state == "closed"
    at_rest(one)


def test_a_probe_with_an_early_verdict_says_it_once() -> None:
    clock = Clock()
    own = Registry(clock)
    own.count_successes()
    one = own.get("call:x", Options(**circuit(1, 10, 2)))
    fail(one)
    clock.advance(10)
    probe = hold(one)
    probe.settle()
    probe.end()
    assert one.state == "half_open", "one success of two"
    assert one.totals()["calls", "success"] == 1
    succeed(one)
    assert one.state == "closed"
    at_rest(one)


def test_a_failure_after_the_early_verdict_of_a_probe_opens_again() -> None:
    """The headers of an answer were a success, its body was not."""
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 2))
    fail(one)
    clock.advance(10)
    probe = hold(one)
    probe.settle()
    assert one.state == "half_open"
    probe.fail(Boom())
    assert one.state == "open"
    at_rest(one)


def test_calls_that_hang_are_found_one_after_the_other() -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 50), tickets=5, call_timeout=2.0)
    held = [hold(one)]
    clock.advance(1)
    held.append(hold(one))
    clock.advance(1)
    succeed(one)
    assert one.failures.value == 1
    clock.advance(1)
    refused(CircuitOpenError, one)
    assert one.failures.value == 2
    for session in held:
        session.end()
    at_rest(one)


def test_a_connect_that_lasted_too_long_is_a_failure() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 50), tickets=5, call_timeout=2.0)
    connect = hold(one, site=CONNECT)
    clock.advance(2.5)
    connect.end()
    assert (one.failures.value, one.state) == (1, "open")
    at_rest(one)


@pytest.mark.parametrize("seconds", [2.0, 2.5])
def test_a_probe_that_hangs_is_one_failure_and_one_step(seconds: float) -> None:
    """It has a lease; it is not counted by call_timeout besides."""
    clock = Clock()
    options = circuit(1, 60, 1, exponential_backoff_error_timeout=True)
    one = resource(clock, **options, tickets=5, call_timeout=2.0)
    fail(one)
    clock.advance(1)
    probe = hold(one)
    clock.advance(seconds)
    assert refused(CircuitOpenError, one).retry_after == 4.0 - seconds, "two seconds from the end of its lease"
    assert one.failures.value == 1
    probe.end()
    at_rest(one)


def test_a_refusal_is_found_under_three_wrappers() -> None:
    """SQLAlchemy in Django in a caller's own: none of them makes a failure of what was refused."""
    one = resource(**circuit(1, 10))
    error: Exception = ResourceBusyError("redis:x", None, "resource")
    for number in range(3):
        outer = RuntimeError(f"wrapper {number}")
        outer.__cause__ = error
        error = outer
    fail(one, error=error)
    assert one.state == "closed"
    assert DIRECT.outcome(Boom(), one.options) == "failure"


def test_successes_are_counted_and_break_a_run() -> None:
    own = Registry(Clock())
    own.count_successes()
    one = own.get("call:x", Options(**circuit(2, 10), error_threshold_timeout_enabled=False))
    for _ in range(3):
        fail(one)
        succeed(one)
        succeed(one)
    assert one.state == "closed"
    assert one.totals()["calls", "success"] == 6
    at_rest(one)


def test_a_tenant_at_its_cap_with_its_own_circuit_open_is_told_of_the_circuit() -> None:
    """As with the shared one: it is asked first, and says when to come again."""
    one = resource(**circuit(1, 10, 1, error_tenants=3), tenant_circuit=True, tenant_tickets=1)
    succeed(one, "b")
    held = hold(one, "a")
    with work_for("a"):
        one.report(Boom(), DIRECT)
    assert one.state == "closed"
    assert refused(CircuitOpenError, one, "a").retry_after == 10.0
    held.end()
    at_rest(one)

"""Modes: "shadow" decides and announces, the call runs; "off" does nothing; both at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from stories import DIRECT, Boom, Clock, at_rest, circuit, fail, full, hold, resource, succeed, work_for

from bulkhead import CircuitOpenError, ResourceBusyError, UnknownTenantError, subscribe
from bulkhead.events import Busy, CircuitOpen, Failure, Success, WouldReject
from bulkhead.registry import options_in_force
from bulkhead.tenancy import unknown_tenant

if TYPE_CHECKING:
    from collections.abc import Callable


def test_shadow_announces_and_lets_run() -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 10, 1), tickets=1, tenant_tickets=1, mode="shadow")
    seen: list[Any] = []
    with subscribe(seen.append, WouldReject, Busy, CircuitOpen):
        held = [hold(one, "a") for _ in range(3)]
        assert [type(event.error) for event in seen] == [ResourceBusyError] * 2
        assert {event.error.limit for event in seen} == {"tenant"}
        assert one.in_use == 1, "what would have been rejected holds no ticket"
        for session in held:
            session.end()
        at_rest(one)
        seen.clear()
        fail(one, "a")
        fail(one, "a")
        assert one.state == "open"
        succeed(one, "a")
        assert [type(event.error) for event in seen] == [CircuitOpenError]
    assert one.totals()["rejections", "shadow_tenant"] == 2
    assert one.totals()["rejections", "shadow_open"] == 1


def test_a_call_that_shadow_would_have_rejected_reports_nothing_and_takes_no_probe() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1), tickets=1, mode="shadow")
    fail(one)
    fail(one)
    assert one.failures.value == 1
    clock.advance(10)
    probe = hold(one)
    fail(one)  # no ticket for it
    assert one.state == "half_open"
    probe.end()
    assert one.state == "closed"
    at_rest(one)


def test_shadow_never_waits() -> None:
    one = resource(tickets=1, timeout=30.0, mode="shadow")
    held = hold(one)
    succeed(one)
    assert one.waited[0] == 0
    held.end()


def test_shadow_would_reject_an_unknown_tenant() -> None:
    one = resource(tickets=1, mode="shadow")
    unknown_tenant("reject")
    try:
        one.configure()
        seen: list[Any] = []
        with subscribe(seen.append, WouldReject):
            succeed(one)
        assert isinstance(seen[0].error, UnknownTenantError)
    finally:
        unknown_tenant("allow")


def test_shadow_lets_connections_be_checked_out_and_says_so() -> None:
    one = resource(identifier="sql:story", tenant_connections=1, mode="shadow")
    seen: list[Any] = []
    with work_for("a"), subscribe(seen.append, WouldReject):
        first, second = one.checkout(DIRECT), one.checkout(DIRECT)
    assert [event.error.limit for event in seen] == ["connections"]
    second.end()
    first.end()
    at_rest(one)


def test_off_takes_asks_and_reports_nothing() -> None:
    """PR-04 and the Unprotected resource: UP-08, UP-11."""
    one = resource(**circuit(1), tickets=1, tenant_tickets=1, tenant_circuit=True, call_timeout=1, mode="off")

    @one
    def call() -> int:
        return one.in_use

    seen: list[object] = []
    with subscribe(seen.append):
        for _ in range(3):
            fail(one, "a")
            succeed(one, "a")
            assert call() == 0
        held = [hold(one, "a") for _ in range(10)]
        for session in held:
            session.settle()
            session.end()
        assert one.report(Boom(), DIRECT) == "ignored"
    assert seen == []
    assert one.state == "closed"
    assert one.failures.value == 0
    at_rest(one)


@pytest.mark.parametrize("order", [("enforce", "shadow", "off", "enforce"), ("off", "enforce", "shadow", "enforce")])
def test_the_mode_may_change_while_calls_are_in_flight(order: tuple[str, ...]) -> None:
    """A ticket belongs to a mode as to a limit: calls let through without one never give one back."""
    one = resource(**circuit(1_000_000), tickets=3, tenant_tickets=3)
    held = []
    for mode in order:
        one.update(mode=mode)
        held.append(hold(one, "a"))
    for session in held:
        session.end()
    at_rest(one)
    mine = [hold(one, "a") for _ in range(3)]
    assert full(one, "a") == "tenant"
    for session in mine:
        session.end()


def test_off_and_on_again_enforces_what_is_in_flight() -> None:
    one = resource(tickets=1)
    held = hold(one)
    one.update(mode="off")
    succeed(one)
    one.update(mode="enforce")
    assert full(one) == "resource"
    held.end()
    succeed(one)
    succeed(one)
    assert one.fast


@pytest.mark.parametrize(
    ("variable", "value", "check"),
    [
        ("BULKHEAD_DISABLED", "1", lambda o: o.mode == "off"),
        ("BULKHEAD_DISABLED", "0", lambda o: o.mode == "enforce" and o.tickets == 1 and o.circuit_breaker),
        ("BULKHEAD_DISABLED", "false", lambda o: o.mode == "enforce"),
        ("BULKHEAD_DISABLED", "", lambda o: o.mode == "enforce"),
        ("BULKHEAD_CIRCUIT_BREAKER_DISABLED", "1", lambda o: not o.circuit_breaker and o.tickets == 1),
        ("BULKHEAD_CIRCUIT_BREAKER_DISABLED", "0", lambda o: o.circuit_breaker),
        ("BULKHEAD_TICKETS_DISABLED", "yes", lambda o: o.tickets is None and not o.timeout and o.circuit_breaker),
    ],
)
def test_the_environment_switches_parts_off(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, check: Callable[[Any], bool]
) -> None:
    """CB-21, RG-08, RG-09, RG-12, RG-13, RG-16, RG-17, RG-18. Semian is wrong here: there "0" disables, too."""
    monkeypatch.setenv(variable, value)
    options = resource(**circuit(1), tickets=1, timeout=1.0).options
    assert check(options_in_force(options, "call:story"))


def test_an_environment_that_leaves_nothing_to_enforce_means_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """RG-25."""
    monkeypatch.setenv("BULKHEAD_CIRCUIT_BREAKER_DISABLED", "1")
    options = resource(**circuit(1)).options
    assert options_in_force(options, "call:story").mode == "off"
    monkeypatch.setenv("BULKHEAD_TICKETS_DISABLED", "1")
    assert options_in_force(resource(tickets=1).options, "call:story").mode == "off"


def test_success_and_failure_of_a_shadow_call_are_told_when_it_was_admitted() -> None:
    one = resource(**circuit(5), tickets=1, mode="shadow")
    seen: list[Any] = []
    with subscribe(seen.append, Success, Failure):
        one.configure()
        held = hold(one)
        succeed(one)
        assert seen == []
        held.end()
        fail(one)
    assert [type(event) for event in seen] == [Success, Failure]

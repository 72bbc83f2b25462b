"""A circuit in front of tickets: refusals, probes, tenants, and what many threads see of one transition."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest
from polling import until
from stories import (
    CONNECT,
    DIRECT,
    Boom,
    Clock,
    at_rest,
    circuit,
    fail,
    full,
    hold,
    refused,
    resource,
    succeed,
    together,
    work_for,
)

from bulkhead import CircuitOpenError, ResourceBusyError, subscribe
from bulkhead.events import StateChange

if TYPE_CHECKING:
    from bulkhead.adapter import Resource


def test_open_half_open_closed_with_tickets_and_tenants() -> None:
    """PR-03, CB-14: also while a ticket is held."""
    clock = Clock()
    one = resource(clock, **circuit(3, 10, 2, half_open_max_probes=2), tickets=4, tenant_tickets=2)
    seen: list[tuple[str, str]] = []
    with subscribe(lambda event: seen.append((event.old, event.new)), StateChange):  # type: ignore[union-attr]
        for _ in range(3):
            assert one.state == "closed"
            fail(one, "a")
        clock.advance(4)
        error = refused(CircuitOpenError, one, "a")
        assert error.retry_after == pytest.approx(6)
        assert isinstance(error.__cause__, Boom)
        clock.advance(6)
        first, second = hold(one, "a"), hold(one, "b")
        assert one.state == "half_open"
        assert refused(CircuitOpenError, one, "c").retry_after == pytest.approx(10)
        assert one.in_use == 2, "the refused one took no ticket"
        first.end()
        succeed(one, "c")
        assert one.state == "closed"
        second.end()
    assert seen == [("closed", "open"), ("open", "half_open"), ("half_open", "closed")]
    at_rest(one)
    fail(one, "a")
    fail(one, "a")
    assert one.state == "closed", "the window begins empty"


def test_a_tenant_at_its_cap_never_uses_a_probe() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1), tenant_tickets=1)
    held = hold(one, "a")
    fail(one, "b")
    clock.advance(10)
    assert full(one, "a") == "tenant"
    succeed(one, "b")
    assert one.state == "closed"
    held.end()


def test_a_resource_at_its_cap_never_uses_a_probe() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1), tickets=1)
    held = hold(one)
    one.report(Boom(), DIRECT)
    clock.advance(10)
    assert full(one) == "resource"
    held.end()
    succeed(one)
    assert one.state == "closed"


def test_an_abandoned_probe_frees_its_place_and_its_tickets() -> None:
    """Known faults 1, 7 and 93."""
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1), tickets=1)
    fail(one)
    clock.advance(10)
    hold(one)
    succeed(one)
    assert one.state == "closed"
    at_rest(one)


def test_a_probe_that_outlives_its_lease_keeps_its_ticket_until_it_ends() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1, half_open_resource_timeout=2), tickets=2)
    fail(one)
    clock.advance(10)
    hung = hold(one)
    clock.advance(3)
    assert refused(CircuitOpenError, one).retry_after == pytest.approx(9)
    assert one.in_use == 1
    clock.advance(9)
    succeed(one)
    assert one.state == "closed"
    hung.fail(Boom())
    assert one.state == "closed", "its late result is ignored"
    at_rest(one)


def test_a_connect_that_succeeds_while_half_open_proves_nothing() -> None:
    """Known fault 29: a stuck server accepts connections."""
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1))
    fail(one)
    clock.advance(10)
    for _ in range(5):
        succeed(one, site=CONNECT)
    assert one.state == "half_open"
    succeed(one)
    assert one.state == "closed"


def test_a_connect_that_fails_while_half_open_opens() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1))
    fail(one)
    clock.advance(10)
    fail(one, site=CONNECT)
    assert one.state == "open"


def test_a_connect_that_succeeds_breaks_no_run_and_one_that_fails_counts() -> None:
    one = resource(**circuit(2, 10, error_threshold_timeout_enabled=False))
    fail(one)
    succeed(one, site=CONNECT)
    fail(one, site=CONNECT)
    assert one.state == "open"


def test_late_answers_change_nothing() -> None:
    """Known fault 10, twice; Semian is wrong here (a late failure prolongs the open period)."""
    clock = Clock()
    one = resource(clock, **circuit(2, 10, 1), tickets=9)
    slow_ok, slow_bad, slower = hold(one), hold(one), hold(one)
    fail(one)
    fail(one)
    slow_ok.end()
    assert one.state == "open"
    clock.advance(9)
    slower.fail(Boom())
    assert refused(CircuitOpenError, one).retry_after == pytest.approx(1)
    clock.advance(1)
    succeed(one)
    slow_bad.fail(Boom())
    fail(one)
    assert one.state == "closed"
    at_rest(one)


def test_failures_of_one_tenant_do_not_open_where_several_are_wanted() -> None:
    clock = Clock()
    one = resource(clock, **circuit(3, 10, 1, error_tenants=2), tenant_tickets=5)
    succeed(one, "b")
    for _ in range(20):
        fail(one, "a")
    assert one.state == "closed"
    fail(one, "b")
    assert one.state == "open"


def test_they_do_open_when_no_other_tenant_had_a_success() -> None:
    clock = Clock()
    one = resource(clock, **circuit(3, 10, 1, error_tenants=2))
    succeed(one, "b")
    clock.advance(11)
    for _ in range(3):
        fail(one, "a")
    assert one.state == "open"


@pytest.mark.parametrize("tenant", [None, "a"])
def test_connect_failures_and_those_of_nobody_count_without_that_rule(tenant: str | None) -> None:
    one = resource(**circuit(2, 10, 1, error_tenants=3))
    succeed(one, "healthy")
    for _ in range(2):
        fail(one, tenant, site=CONNECT if tenant else DIRECT)
    assert one.state == "open"


def test_the_tenant_whose_probe_failed_lets_another_try() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1, error_tenants=2))
    fail(one, "noisy")
    clock.advance(10)
    fail(one, "noisy")
    refused(CircuitOpenError, one, "quiet")
    clock.advance(10)
    refused(CircuitOpenError, one, "noisy")
    succeed(one, "quiet")
    assert one.state == "closed"


def test_a_tenant_s_own_circuit_opens_for_that_tenant_only() -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 10, 1, error_tenants=3), tenant_circuit=True)
    succeed(one, "b")
    fail(one, "a")
    fail(one, "a")
    error = refused(CircuitOpenError, one, "a")
    assert error.tenant == "a"
    assert isinstance(error.__cause__, Boom)
    assert one.state == "closed"
    succeed(one, "b")
    succeed(one)
    clock.advance(10)
    succeed(one, "a")
    succeed(one, "a")
    at_rest(one)


def test_the_shared_circuit_is_asked_first_and_both_hear_of_the_outcome() -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 10, 1), tenant_circuit=True)
    fail(one, "a")
    fail(one, "a")
    assert one.state == "open"
    refused(CircuitOpenError, one, "b")
    clock.advance(10)
    succeed(one, "b")
    assert one.state == "closed"
    own = one.tenants.table["a"].circuit
    assert own is not None
    assert own.state == "open"
    succeed(one, "a")
    assert own.state == "closed"
    at_rest(one)


def test_a_call_refused_by_the_tenant_s_circuit_leaves_the_shared_probe_free() -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 10, 1), tenant_circuit=True)
    fail(one, "a")
    fail(one, "a")
    clock.advance(10)
    first = hold(one, "a")  # a probe of both
    refused(CircuitOpenError, one, "a")
    first.fail(KeyboardInterrupt())
    succeed(one, "b")
    assert one.state == "closed"
    at_rest(one)


def test_check_refuses_and_takes_nothing() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1), tickets=1)
    one.check(DIRECT)
    fail(one)
    with pytest.raises(CircuitOpenError):
        one.check(DIRECT)
    clock.advance(10)
    one.check(DIRECT)
    assert one.state == "open", "it asks for no probe"
    assert one.in_use == 0


def test_check_asks_the_tenant_s_own_circuit_too() -> None:
    one = resource(**circuit(1, 10, 1, error_tenants=3), tenant_circuit=True)
    succeed(one, "b")
    fail(one, "a")
    with work_for("b"):
        one.check(DIRECT)
    with work_for("a"), pytest.raises(CircuitOpenError):
        one.check(DIRECT)


def _probes(one: Resource, threads: int, allowed: int) -> list[object]:
    entered: list[int] = []
    refusals: list[int] = []
    everybody = threading.Event()

    def call() -> str:
        try:
            session = hold(one)
        except CircuitOpenError:
            refusals.append(1)
            if len(entered) + len(refusals) == threads:
                everybody.set()
            return "refused"
        entered.append(1)
        if len(entered) + len(refusals) == threads:
            everybody.set()
        everybody.wait(10)
        session.end()
        return "ran"

    results = together(*[call] * threads)
    assert len(entered) == allowed
    return results


def test_one_transition_is_announced_once_whatever_the_number_of_threads() -> None:
    """Known faults 3, 7 and 13."""
    for _ in range(10):
        clock = Clock()
        one = resource(clock, **circuit(2, 10, 2, half_open_max_probes=2))
        seen: list[str] = []
        with subscribe(lambda event: seen.append(event.new), StateChange):  # type: ignore[union-attr]  # noqa: B023
            held = [hold(one) for _ in range(8)]
            together(*[lambda session=session: session.fail(Boom()) for session in held])
            assert seen == ["open"]
            clock.advance(10)
            assert _probes(one, 8, 2).count("refused") == 6
            assert seen == ["open", "half_open", "closed"]
        at_rest(one)


def test_threads_and_a_real_clock_find_back_to_closed() -> None:
    """Known fault 7: when failures stop, two time-outs later it is closed."""
    one = resource(**circuit(3, 0.01, 2, half_open_max_probes=2), tickets=5, tenant_tickets=3)
    one.clock = time.monotonic
    stop = time.monotonic() + 0.5

    def work(seed: int) -> None:
        step = seed
        while time.monotonic() < stop:
            step += 1
            try:
                session = hold(one, f"t{step % 4}")
            except (CircuitOpenError, ResourceBusyError):
                time.sleep(0.0005)
                continue
            if step % 3:
                session.fail(Boom())
            else:
                session.end()

    together(*[lambda seed=seed: work(seed) for seed in range(8)])

    def is_closed() -> bool:
        with contextlib.suppress(CircuitOpenError):
            succeed(one, "t0")
        return one.state == "closed"

    until(is_closed)
    at_rest(one)


def test_opening_starts_no_thread() -> None:
    """Known fault 8."""
    before = threading.active_count()
    clock = Clock()
    one = resource(clock, **circuit(1, 10))
    fail(one)
    clock.advance(10)
    succeed(one)
    assert threading.active_count() == before

"""What is said to a resource at run time: open, close, reset, update; and what it says of itself."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

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

import bulkhead
from bulkhead import CircuitOpenError, ConfigurationError, ResourceBusyError, subscribe
from bulkhead.events import StateChange


def test_open_close_and_reset_are_announced() -> None:
    """CB-09, ST-02, ST-03, ST-05."""
    one = resource(**circuit(5, 10), tickets=1)
    seen: list[Any] = []
    with subscribe(lambda event: seen.append((event.old, event.new, event.reason)), StateChange):  # type: ignore[union-attr]
        one.open("maintenance")
        assert refused(CircuitOpenError, one).retry_after is None
        one.close()
        succeed(one)
        one.close()
        one.open()
        one.reset()
        succeed(one)
    assert seen == [
        ("closed", "open", "maintenance"),
        ("open", "closed", "closed by hand"),
        ("closed", "open", "opened by hand"),
        ("open", "closed", "reset"),
    ]


def test_a_circuit_may_be_opened_by_hand_where_only_tickets_are_kept() -> None:
    one = resource(circuit_breaker=False, tickets=1)
    one.open()
    refused(CircuitOpenError, one)
    one.close()
    succeed(one)
    fail(one)
    assert one.state == "closed"


def test_reset_closes_the_tenants_circuits_too_and_forgets_counts() -> None:
    one = resource(**circuit(1, 10, 1, error_tenants=3), tenant_circuit=True)
    succeed(one, "b")
    fail(one, "a")
    refused(CircuitOpenError, one, "a")
    one.reset()
    succeed(one, "a")
    assert "rejected so far" not in one.explain()
    assert one.totals()["rejections", "open"] == 1, "what monitoring counts never goes back"


def test_update_validates_and_changes_nothing_when_it_fails() -> None:
    one = resource(**circuit(5, 10), tickets=3)
    before = one.options
    for changes in ({"tickets": 0}, {"nope": 1}, {"error_threshold": 0}, {"name": "x"}, {"maximum_tenants": 5}):
        with pytest.raises(ConfigurationError):
            one.update(**changes)
    assert one.options is before


def test_a_closed_circuit_counts_anew_by_its_new_rule_and_an_open_one_keeps_its_time() -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 10))
    fail(one)
    one.update(error_threshold=3)
    fail(one)
    fail(one)
    assert one.state == "closed"
    fail(one)
    assert one.state == "open"
    one.update(error_timeout=100.0)
    assert refused(CircuitOpenError, one).retry_after == pytest.approx(10)
    clock.advance(10)
    fail(one)
    assert refused(CircuitOpenError, one).retry_after == pytest.approx(100)


def test_a_change_of_limits_leaves_the_failures_counted() -> None:
    one = resource(**circuit(2, 10), tickets=3)
    fail(one)
    one.update(tickets=5, tenant_tickets=2)
    fail(one)
    assert one.state == "open"


def test_switching_the_circuit_off_closes_it() -> None:
    one = resource(**circuit(1, 10), tickets=1, tenant_circuit=True)
    fail(one, "a")
    refused(CircuitOpenError, one, "a")
    one.update(circuit_breaker=False)
    for _ in range(3):
        fail(one, "a")
        succeed(one, "a")
    assert one.state == "closed"


def test_circuits_of_tenants_may_be_switched_on() -> None:
    one = resource(**circuit(1, 10, 1, error_tenants=2), tenant_tickets=2)
    succeed(one, "a")
    succeed(one, "b")
    one.update(tenant_circuit=True)
    succeed(one, "b")
    fail(one, "a")
    refused(CircuitOpenError, one, "a")
    succeed(one, "b")
    one.update(tenant_circuit=False)
    succeed(one, "a")


def test_tiers_may_change_while_new_tenants_come() -> None:
    """A limit that was looked up by the old options is not kept beside the new ones."""
    one = resource(tenant_limits={"gold": 2})

    def tiers(tenant: str) -> int:
        if tenant == "gold" and not asked:
            asked.append(1)
            together(lambda: one.update(tenant_limits={"gold": 5}))
        return 1

    asked: list[int] = []
    one.update(tenant_limits=tiers)
    held = [hold(one, "gold") for _ in range(5)]
    assert full(one, "gold") == "tenant"
    for session in held:
        session.end()
    at_rest(one)


def test_updates_at_the_same_time_lose_none_of_each_other() -> None:
    others: list[Any] = [lambda: one.update(tickets=5), lambda: one.update(max_waiting=3, timeout=1.0)]

    def tiers(tenant: str) -> int:
        if changing and others:
            together(others.pop())  # in another thread, in the middle of an update of this one
        return 1

    changing: list[bool] = []
    one: Any = resource(tickets=1, tenant_limits=tiers)
    succeed(one, "a")
    changing.append(True)
    one.update(tenant_tickets=2)
    assert not others
    assert (one.limit, one.options.max_waiting, one.options.timeout, one.options.tenant_tickets) == (5, 3, 1.0, 2)
    at_rest(one)


def test_update_from_many_threads_while_calls_run() -> None:
    one = resource(**circuit(1_000_000), tickets=8, tenant_tickets=4)

    def call(seed: int) -> None:
        for step in range(200):
            with contextlib.suppress(ResourceBusyError):
                hold(one, f"t{(seed + step) % 3}").end()

    def change() -> None:
        for step in range(50):
            one.update(tickets=1 + step % 8, tenant_tickets=1 + step % 4, timeout=0.001 * (step % 2))

    assert together(*[lambda seed=seed: call(seed) for seed in range(6)], change, seconds=50) == [None] * 7
    at_rest(one)


def test_explain_says_why_since_when_and_until_when() -> None:
    """CB-03: the last failure is told there and in the log, never in the refusal."""
    clock = Clock()
    one = resource(clock, **circuit(3, 10, 2), tickets=2, tenant_tickets=1)
    assert "closed; 0 of 3 failures within 10 s" in one.explain()
    held = hold(one, "acme")
    refused(Exception, one, "acme")
    for _ in range(3):
        fail(one, error=Boom("no route"))
    clock.advance(4)
    refused(CircuitOpenError, one)
    told = one.explain()
    assert "open since 4 s because failures reached the threshold, the last one Boom: no route" in told
    assert "the next probe may run in 6 s" in told
    assert "1 of 2 tickets are in use" in told
    assert "at their own limit: 'acme'" in told
    assert "1 tenant" in told
    assert "1 open" in told
    clock.advance(6)
    assert "the next call is a probe" in one.explain()
    probe = hold(one)
    told = one.explain()
    assert "half-open" in told
    assert "1 of 1 probes under way, 0 of 2 successes" in told
    probe.fail(KeyboardInterrupt())
    assert "1 probes ended without saying anything" in one.explain()
    held.end()


def test_explain_shows_a_circuit_that_only_gets_calls_without_a_verdict() -> None:
    one = resource(**circuit(3, 10))
    for _ in range(4):
        fail(one, error=KeyboardInterrupt())
    assert "4 calls ended without saying anything about the resource" in one.explain()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tickets": 1, "circuit_breaker": False}, "no circuit, tickets only"),
        ({"tickets": 1, "mode": "shadow"}, "shadow mode"),
        ({"tickets": 1, "mode": "off"}, "off: nothing is taken"),
        (circuit(3, error_threshold_timeout_enabled=False), "0 of 3 failures in a row"),
        ({}, "the resource as a whole has no limit"),
    ],
)
def test_explain_names_what_is_special(options: dict[str, Any], words: str) -> None:
    assert words in resource(**options).explain()


def test_explain_names_what_was_done_by_hand_and_the_circuits_of_tenants() -> None:
    one = resource(**circuit(1, 10, 1, error_tenants=3), tenant_circuit=True)
    succeed(one, "b")
    fail(one, "a")
    assert "the circuit of tenant 'a' is open" in one.explain()
    one.open("maintenance")
    assert "because maintenance; until close() or reset()" in one.explain()


def test_a_transition_is_one_structured_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """CB-02, CB-03, CB-06: what changed, why, and the failure that did it."""
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1))
    with caplog.at_level(logging.WARNING, "bulkhead"):
        fail(one, error=Boom("no route"))
        clock.advance(10)
        succeed(one, site=CONNECT)
        succeed(one, site=DIRECT)
    lines = [record for record in caplog.records if hasattr(record, "bulkhead_old")]
    assert [(vars(record)["bulkhead_old"], vars(record)["bulkhead_state"]) for record in lines] == [
        ("closed", "open"),
        ("open", "half_open"),
        ("half_open", "closed"),
    ]
    assert 'error="Boom: no route"' in lines[0].getMessage()
    assert all(record.bulkhead_identifier == "call:story" for record in lines)  # type: ignore[attr-defined]


def test_refusals_are_logged_at_a_falling_rate(caplog: pytest.LogCaptureFixture) -> None:
    one = resource(tickets=1)
    held = hold(one)
    with caplog.at_level(logging.WARNING, "bulkhead"):
        for _ in range(1000):
            refused(Exception, one)
    assert [record.bulkhead_count for record in caplog.records] == [2**power for power in range(10)]  # type: ignore[attr-defined]
    held.end()


def test_what_a_resource_shows_of_itself() -> None:
    """UP-01 to UP-13: the same questions have answers in every mode, also where nothing is protected."""
    for options in ({"tickets": 2}, {"mode": "off"}, {}):
        one = resource(**options)
        assert one.identifier == "call:story"
        assert one.limit == options.get("tickets")
        assert one.in_use == 0
        assert one.state == "closed"
        assert "call:story" in repr(one)
        one.reset()
        succeed(one)
        with work_for("a"):
            one.check(DIRECT)
        assert one.top_tenants() == []


def test_everything_that_a_user_catches_or_asks_for_has_a_public_name() -> None:
    """RG-07."""
    for name in bulkhead.__all__:
        assert getattr(bulkhead, name) is not None
    for kind in (bulkhead.CircuitOpenError, bulkhead.ResourceBusyError, bulkhead.UnknownTenantError):
        assert issubclass(kind, bulkhead.Rejected)
        assert issubclass(kind, bulkhead.BulkheadError)
    assert isinstance(resource(), bulkhead.Resource)


def test_explain_says_who_waits_and_which_tenants_are_at_their_limit() -> None:
    one = resource(tickets=4, tenant_tickets=1, timeout=20.0, max_waiting=10)
    held = [hold(one, tenant) for tenant in ("a", "b", "c", "d")]
    told = one.explain()
    assert "4 of 4 tickets are in use" in told
    assert "at their own limit: 'a', 'b', 'c' and 1 more" in told
    assert "callers wait" not in told
    threads = [threading.Thread(target=succeed, args=(one, "e")) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: len(one.queue) == 2)
    assert "2 callers wait for tickets" in one.explain()
    for session in held:
        session.end()
    for thread in threads:
        thread.join(10)
    assert "0 of 4 tickets are in use" in one.explain()
    at_rest(one)

"""What a resource says when it is asked: since when a limit is reached, and who holds it."""

from __future__ import annotations

from stories import Clock, at_rest, circuit, fail, full, hold, resource, succeed

from bulkhead import tenant
from bulkhead.outcomes import DIRECT


def test_explain_says_since_when_calls_are_rejected() -> None:
    clock = Clock()
    one = resource(clock, tickets=2, tenant_tickets=1)
    held = [hold(one, "a"), hold(one, "b")]
    assert full(one, "a") == "tenant"
    clock.advance(3)
    assert "rejected so far: 1 tenant (3 s ago)" in one.explain()
    for _ in range(4):
        full(one, "a")
        clock.advance(2)
    told = one.explain()
    assert "5 tenant (the first 11 s ago, no. 4 4 s ago)" in told
    assert full(one, "c") == "resource"
    assert "1 resource (0 s ago)" in one.explain()
    for session in held:
        session.end()


def test_reset_begins_to_count_anew() -> None:
    clock = Clock()
    one = resource(clock, tickets=1)
    held = hold(one)
    for _ in range(3):
        full(one)
    one.reset()
    assert "rejected so far" not in one.explain()
    clock.advance(5)
    full(one)
    clock.advance(1)
    assert "rejected so far: 1 resource (1 s ago)" in one.explain()
    assert one.totals()["rejections", "resource"] == 4
    held.end()


def test_what_shadow_would_have_rejected_has_its_times_too() -> None:
    clock = Clock()
    one = resource(clock, tickets=1, mode="shadow")
    held = hold(one)
    for _ in range(2):
        succeed(one)
        clock.advance(1)
    assert "2 shadow_resource (the first 2 s ago, no. 2 1 s ago)" in one.explain()
    held.end()


def test_explain_says_how_long_tickets_have_been_out_where_that_is_measured() -> None:
    clock = Clock()
    one = resource(clock, **circuit(5), tickets=3, call_timeout=10.0)
    assert "0 of 3 tickets are in use" in one.explain()
    first = hold(one)
    clock.advance(4)
    second = hold(one)
    clock.advance(1)
    assert "2 of 3 tickets are in use, the longest for 5 s" in one.explain()
    first.end()
    assert "1 of 3 tickets are in use, the longest for 1 s" in one.explain()
    second.end()
    assert "the longest" not in one.explain()
    at_rest(one)


def test_explain_measures_nothing_where_no_option_does() -> None:
    one = resource(tickets=1)
    held = hold(one)
    assert "1 of 1 tickets are in use" in one.explain()
    assert "the longest" not in one.explain()
    held.end()


def test_top_tenants_are_told_in_order_with_their_limits() -> None:
    limits = {"gold": 10}
    one = resource(tickets=20, tenant_tickets=2, tenant_limits=limits)
    held = [hold(one, name) for name in ["gold"] * 3 + ["a"] * 2 + ["b"]]
    assert [(use.tenant, use.in_use, use.limit) for use in one.top_tenants()] == [
        ("gold", 3, 10),
        ("a", 2, 2),
        ("b", 1, 2),
    ]
    assert [use.tenant for use in one.top_tenants(2)] == ["gold", "a"]
    assert one.top_tenants(0) == one.top_tenants(-1) == []
    for session in held:
        session.end()
    assert one.top_tenants() == []


def test_tenants_that_share_their_tickets_are_told_one_by_one() -> None:
    """Above maximum_tenants the noisiest tenant may be one without an entry of its own."""
    one = resource(tickets=50, tenant_tickets=9, maximum_tenants=2)
    held = [hold(one, name) for name in ["a"] + ["b"] * 2 + ["late"] * 4 + ["later"]]
    told = {use.tenant: (use.in_use, use.limit) for use in one.top_tenants()}
    assert told == {"late": (4, 9), "b": (2, 9), "a": (1, 9), "later": (1, 9)}
    assert one.top_tenants(1)[0].tenant == "late"
    for session in held:
        session.end()
    assert one.top_tenants() == []


def test_connections_that_a_tenant_has_checked_out_are_told_too() -> None:
    one = resource(tenant_connections=3, circuit_breaker=False, identifier="sql:x")
    checkouts = []
    for name, number in (("a", 1), ("b", 3)):
        with tenant(name):
            checkouts += [one.checkout(DIRECT) for _ in range(number)]
    assert [(use.tenant, use.in_use, use.connections) for use in one.top_tenants()] == [("b", 0, 3), ("a", 0, 1)]
    for checkout in checkouts:
        checkout.end()
    assert one.top_tenants() == []


def test_without_limits_of_tenants_nobody_is_told_apart() -> None:
    one = resource(tickets=5)
    held = hold(one, "a")
    assert one.top_tenants() == []
    held.end()
    fail(one, "a")

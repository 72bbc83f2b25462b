"""Limits that change while tickets are out: more at once, less as they come back, and nothing twice."""

from __future__ import annotations

from stories import NEVER_OPENS, at_rest, full, hold, resource, succeed


def test_a_lower_limit_is_paid_as_tickets_come_back() -> None:
    """BH-40, BH-41, PR-06: nobody waits and nobody is cut off; the surplus retires."""
    one = resource(**NEVER_OPENS, tickets=4, tenant_tickets=3)
    mine = [hold(one, "a") for _ in range(3)]
    other = hold(one, "b")
    one.update(tickets=2)
    assert full(one, "c") == "resource"
    other.end()
    mine.pop().end()
    assert full(one, "c") == "resource", "two are in flight still"
    mine.pop().end()
    last = hold(one, "c")
    assert full(one, "c") == "resource"
    last.end()
    mine.pop().end()
    at_rest(one)
    assert one.shared is not None
    assert len(one.shared.watch) == 2


def test_a_higher_limit_holds_at_once() -> None:
    """BH-39."""
    one = resource(tickets=1, tenant_tickets=1)
    held = [hold(one, "a")]
    one.update(tickets=5, tenant_tickets=3)
    held += [hold(one, "a"), hold(one, "a"), hold(one, "b")]
    assert full(one, "a") == "tenant"
    del held
    at_rest(one)


def test_a_lower_limit_of_a_tenant_is_paid_too() -> None:
    one = resource(**NEVER_OPENS, tickets=10, tenant_limits={"a": 3})
    held = [hold(one, "a") for _ in range(3)]
    one.update(tenant_limits={"a": 1})
    held.pop().end()
    held.pop().end()
    assert full(one, "a") == "tenant"
    held.pop().end()
    last = hold(one, "a")
    assert full(one, "a") == "tenant"
    last.end()
    succeed(one, "a")
    assert "a" in one.fast, "once it is paid the tenant is fast again"


def test_calls_admitted_without_a_ticket_never_give_one_back() -> None:
    one = resource()
    before = [hold(one, "a") for _ in range(5)]
    one.update(tickets=2, tenant_tickets=1)
    inside = hold(one, "a")
    for session in before:
        session.end()
    assert full(one, "a") == "tenant"
    inside.end()
    at_rest(one)


def test_a_ticket_of_an_older_pool_adds_nothing_to_a_new_one() -> None:
    one = resource(tickets=2)
    held = [hold(one), hold(one)]
    one.update(tickets=None)
    one.update(tickets=1)
    last = hold(one)
    for session in held:
        session.end()
    assert full(one) == "resource"
    last.end()
    at_rest(one)

"""The table of tenants: bounded, evicted by use, and never at the price of a cap."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from counts import TENANT_IDS
from stories import (
    NEVER_OPENS,
    Clock,
    at_rest,
    circuit,
    fail,
    full,
    hold,
    resource,
    succeed,
    together,
)

from bulkhead import CircuitOpenError, ResourceBusyError


def test_idle_tenants_go_and_those_in_use_stay() -> None:
    """Known faults 55 and 56."""
    one = resource(tenant_tickets=2, maximum_tenants=10, tickets=50)
    held = hold(one, "held")
    for number in range(1000):
        succeed(one, f"t{number}")
    assert len(one.tenants) <= 10
    assert len(one.tenants._hand) == len(one.tenants)
    second = hold(one, "held")
    assert full(one, "held") == "tenant", "its first call counts still"
    held.end()
    second.end()
    at_rest(one)


def test_tenants_in_use_survive_a_scan_of_made_up_ids() -> None:
    one = resource(tenant_tickets=2, maximum_tenants=10)
    succeed(one, "hot")
    pool = one.tenants.table["hot"]
    kept = 0
    for number in range(300):
        succeed(one, f"scan{number}")
        kept += one.tenants.table.get("hot") is pool
        succeed(one, "hot")
        succeed(one, "hot")
    assert kept == 300


def test_a_first_call_publishes_nothing() -> None:
    one = resource(tenant_tickets=2)
    succeed(one, "a")
    assert not one.fast
    succeed(one, "a")
    assert list(one.fast) == ["a"]


def test_if_no_entry_is_idle_further_tenants_share_one() -> None:
    one = resource(tenant_tickets=2, maximum_tenants=3)
    held = [hold(one, name) for name in "abc"]
    late = [hold(one, "d"), hold(one, "e")]
    assert full(one, "f") == "tenant"
    assert len(one.tenants) == 3
    assert {(use.tenant, use.in_use, use.limit) for use in one.top_tenants()} == {(name, 1, 2) for name in "abcde"}
    for session in late:
        session.end()
    hold(one, "f").end()
    for session in held:
        session.end()
    at_rest(one)


def test_the_shared_entry_has_the_limit_of_nobody_in_particular() -> None:
    one = resource(tenant_tickets=1, tenant_limits={"gold": 5, "banned": 0}, maximum_tenants=1)
    held = hold(one, "a")
    first = hold(one, "gold")
    assert full(one, "gold") == "tenant", "not 5: this entry belongs to everybody"
    assert full(one, "banned") == "tenant"
    first.end()
    assert full(one, "banned") == "tenant", "0 is no limit to be shared"
    held.end()
    at_rest(one)


def test_a_tenant_of_the_shared_entry_has_no_more_than_its_own_limit() -> None:
    one = resource(tenant_tickets=3, tenant_limits={"small": 1}, maximum_tenants=1)
    held = [hold(one, "a"), hold(one, "small")]
    assert full(one, "small") == "tenant"
    held.append(hold(one, "other"))
    for session in held:
        session.end()
    at_rest(one)


def test_a_tenant_of_the_shared_entry_gets_no_second_limit_when_there_is_room_again() -> None:
    """A cap is never exceeded: what is in flight in the shared entry counts."""
    one = resource(tenant_tickets=2, maximum_tenants=1)
    held = hold(one, "a")
    late = [hold(one, "b"), hold(one, "b")]
    held.end()
    assert full(one, "b") == "tenant"
    succeed(one, "c")
    late.pop().end()
    third = hold(one, "b")
    assert full(one, "b") == "tenant"
    late.pop().end()
    third.end()
    mine = [hold(one, "b"), hold(one, "b")]
    assert full(one, "b") == "tenant"
    assert "b" in one.tenants.table
    del mine
    at_rest(one)


def test_an_entry_whose_own_circuit_says_something_stays() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1, error_tenants=3), tenant_circuit=True, maximum_tenants=2)
    succeed(one, "healthy")
    fail(one, "ill")
    for number in range(100):
        succeed(one, f"t{number}")
    assert "ill" in one.tenants.table
    try:
        hold(one, "ill").end()
    except CircuitOpenError:
        pass
    else:
        raise AssertionError("its circuit was forgotten")
    clock.advance(11)
    for number in range(100):
        succeed(one, f"t{number}")
    assert "ill" not in one.tenants.table


def test_threads_that_make_and_evict_the_same_tenants_exceed_no_cap() -> None:
    one = resource(**NEVER_OPENS, tenant_tickets=1, maximum_tenants=2)
    inside = {f"t{number}": 0 for number in range(5)}
    over: list[str] = []
    guard = threading.Lock()

    def work(seed: int) -> None:
        for step in range(400):
            tenant = f"t{(seed * 7 + step * 3) % 5}"
            try:
                session = hold(one, tenant)
            except ResourceBusyError:
                continue
            with guard:
                inside[tenant] += 1
                if inside[tenant] > 1:
                    over.append(tenant)
            with guard:
                inside[tenant] -= 1
            session.end()

    together(*[lambda seed=seed: work(seed) for seed in range(8)])
    assert not over
    at_rest(one)


@pytest.mark.no_cover  # which would make a minute ten
@pytest.mark.timeout(600)
def test_a_million_tenant_ids_leave_the_memory_flat() -> None:
    """Known fault 55. Full count: 1,000,000 ids."""
    one = resource(tickets=16, tenant_tickets=4, maximum_tenants=1000)

    def rss() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for number in range(TENANT_IDS // 10):
        succeed(one, f"warm-{number}")
    before = rss()
    for number in range(TENANT_IDS):
        succeed(one, f"new-{number}")
    assert rss() - before < 5 * 2**20
    assert len(one.tenants) <= 1000
    assert len(one.tenants._hand) <= 1001
    assert len(one.fast) <= 1000
    at_rest(one)


def test_top_tenants_are_those_that_hold_most_now() -> None:
    one = resource(tickets=20, tenant_tickets=5)
    held = [hold(one, name) for name in "aaabbc"]
    assert [(use.tenant, use.in_use, use.limit) for use in one.top_tenants(2)] == [("a", 3, 5), ("b", 2, 5)]
    assert len(one.top_tenants()) == 3
    for session in held:
        session.end()
    assert one.top_tenants() == []

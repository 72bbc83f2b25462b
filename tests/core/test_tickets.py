"""Tickets of one process: caps of the resource and of its tenants, who may pass, what comes back and when."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from stories import (
    CONNECT,
    DIRECT,
    NEVER_OPENS,
    Boom,
    at_rest,
    circuit,
    fail,
    full,
    hold,
    pools,
    refused,
    resource,
    succeed,
    together,
    work_for,
)

from bulkhead import ResourceBusyError
from bulkhead.tickets.pool import Pool


def test_two_levels_and_what_was_found_full_first() -> None:
    """BH-13, BH-14, BH-33. Known fault 48: a limit is given, never guessed."""
    one = resource(tickets=3, tenant_tickets=2)
    held = [hold(one, "a"), hold(one, "a")]
    busy = refused(ResourceBusyError, one, "a")
    assert (busy.limit, busy.tenant, busy.identifier, busy.retry_after) == ("tenant", "a", "call:story", None)
    assert one.in_use == 2, "the refused call left no ticket of the resource behind"
    held.append(hold(one, "b"))
    assert full(one, "b") == "resource"
    assert full(one, "c") == "resource"
    assert one.in_use == 3
    for session in held:
        session.end()
    at_rest(one)
    succeed(one, "a")
    fail(one, "a")
    at_rest(one)


def test_a_tenant_at_its_cap_leaves_the_others_alone() -> None:
    one = resource(tickets=10, tenant_tickets=1)
    held = [hold(one, f"t{number}") for number in range(9)]
    assert {full(one, f"t{number}") for number in range(9)} == {"tenant"}
    succeed(one, "another")
    del held
    at_rest(one)


@pytest.mark.parametrize(
    ("options", "tenant", "capacity"),
    [
        ({"tickets": 2}, "a", 2),
        ({"tenant_tickets": 3}, "a", 3),
        ({"tickets": 5, "tenant_quota": 0.5}, "a", 3),
        ({"tickets": 100, "tenant_quota": 0.07}, "a", 7),
        ({"tickets": 1, "tenant_quota": 0.001}, "a", 1),
        ({"tickets": 3, "tenant_tickets": 9}, "a", 3),
        ({"tickets": 4, "tenant_tickets": 1}, None, 4),
        ({"tenant_tickets": 1, "tenant_limits": {"gold": 3, "none": None, "banned": 0}}, "gold", 3),
        ({"tenant_tickets": 1, "tenant_limits": {"gold": 3, "none": None, "banned": 0}}, "none", 1),
        ({"tenant_tickets": 1, "tenant_limits": {"gold": 3, "none": None, "banned": 0}}, "banned", 0),
        ({"tenant_tickets": 1, "tenant_limits": {"gold": 3, "none": None, "banned": 0}}, "other", 1),
        ({"tenant_limits": len}, "four", 4),
    ],
)
def test_capacity(options: dict[str, Any], tenant: str | None, capacity: int) -> None:
    """BH-04, BH-05, BH-27, RG-19, RG-21, RG-26, RG-27, PR-02."""
    one = resource(**options)
    held = [hold(one, tenant) for _ in range(capacity)]
    assert full(one, tenant) in ("tenant", "resource")
    for session in held:
        session.end()
    held = [hold(one, tenant) for _ in range(capacity)]
    refused(ResourceBusyError, one, tenant)
    del held
    at_rest(one)


def test_no_limits_means_no_limits() -> None:
    one = resource()
    held = [hold(one, "a") for _ in range(1000)]
    assert one.in_use == 0
    assert not one.tenants.table, "without tenant limits nothing is kept of a tenant"
    for session in held:
        session.end()


@pytest.mark.parametrize("answer", [RuntimeError, "many", -1, True, 2.5])
def test_a_tier_function_that_raises_or_answers_nonsense_leaves_tenant_tickets_in_force(answer: object) -> None:
    def tiers(tenant: str) -> Any:
        if answer is RuntimeError:
            raise RuntimeError("no")
        return answer

    one = resource(tenant_tickets=2, tenant_limits=tiers)
    held = [hold(one, "a"), hold(one, "a")]
    assert full(one, "a") == "tenant"
    del held
    at_rest(one)


def test_the_tier_function_runs_outside_the_lock_and_may_call_the_resource() -> None:
    """No user code under a lock."""
    asked: list[str] = []

    def tiers(tenant: str) -> int:
        asked.append(tenant)
        if tenant == "outer":
            assert together(lambda: succeed(one, "inner")) == [None]
        return 1

    one = resource(tenant_limits=tiers)
    succeed(one, "outer")
    assert asked == ["outer", "inner"]
    at_rest(one)


@pytest.mark.parametrize("tier", [0, 1, 3])
def test_the_tier_function_may_look_the_tier_up_by_the_same_resource(tier: int) -> None:
    """Each look-up would ask for the tier again, to the end of the stack; and what it left behind would be the limit."""
    asked: list[str] = []

    def tiers(tenant: str) -> int:
        asked.append(tenant)
        succeed(one, tenant)
        others = [hold(one, tenant) for _ in range(5)]
        assert refused(ResourceBusyError, one, tenant).limit == "resource"
        for session in others:
            session.end()
        return tier

    one = resource(tickets=5, tenant_tickets=1, tenant_limits=tiers)
    held = [hold(one, "a") for _ in range(tier)]
    busy = refused(ResourceBusyError, one, "a")
    assert busy.limit == "tenant"
    assert asked == ["a"]
    for session in held:
        session.end()
    at_rest(one)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), GeneratorExit(), asyncio.CancelledError(), Boom("x")]
)
@pytest.mark.parametrize(
    "options", [{"tickets": 2, "tenant_tickets": 1}, {"tickets": 1}, {"tenant_tickets": 1}, {}, {"call_timeout": 5}]
)
def test_every_way_out_gives_everything_back(error: BaseException, options: dict[str, Any]) -> None:
    """Known faults 27 and 46: no verdict except of the Exception, tickets back, the error unchanged."""
    one = resource(**circuit(100), **options)

    @one
    def call() -> None:
        raise error

    for _ in range(5):
        with work_for("a"), pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error
    at_rest(one)
    assert one.failures.value == (5 if isinstance(error, Exception) else 0)
    assert one.ignored.value == (0 if isinstance(error, Exception) else 5)


def test_a_lost_ticket_comes_back_by_itself() -> None:
    """A permit that is dropped on the floor, and one whose thread died: never by a timer, never twice. BH-29."""
    one = resource(tickets=2, tenant_tickets=1)
    for _ in range(10):
        hold(one, "a")

    def die() -> None:
        with work_for("a"):
            permit = one.begin(DIRECT)
        with pytest.raises(ResourceBusyError), work_for("a"):
            one.begin(DIRECT)
        del permit

    for _ in range(5):
        thread = threading.Thread(target=die)
        thread.start()
        thread.join()
    gc.collect()
    succeed(one, "a")
    at_rest(one)


def test_giving_back_twice_adds_nothing() -> None:
    """BH-18 is undone here: Semian's count goes to 2 of 1."""
    one = resource(tickets=1)
    session = hold(one)
    session.end()
    session.end()
    session.fail(Boom())
    assert session.ended
    held = hold(one)
    assert full(one) == "resource"
    held.end()
    at_rest(one)


def test_many_rounds_keep_the_count() -> None:
    """BH-34: 65,536 times."""
    one = resource(tickets=2, tenant_tickets=2)
    with work_for("a"):
        for _ in range(65_536):
            permit = one.begin(DIRECT)
            permit[3](permit[2])
            permit[1](permit[0])
    at_rest(one)
    assert sum(len(pool.watch) for pool in pools(one)) == 4


def test_an_eviction_between_two_steps_of_a_call_exceeds_no_cap() -> None:
    """Known fault 5 of our own: a pool that is in use is never unlinked."""
    one = resource(tenant_tickets=1, maximum_tenants=1)
    held = hold(one, "a")
    succeed(one, "b")
    assert full(one, "a") == "tenant"
    held.end()
    at_rest(one)


def test_the_fast_path_is_two_c_methods_and_needs_no_clock() -> None:
    """Known fault 39: nothing of ours to interrupt where nothing special is asked for."""

    def stopped() -> float:
        raise AssertionError("the clock was read")

    one = resource(tickets=4, tenant_tickets=2)
    succeed(one, "a")
    succeed(one, "a")
    take, give, take_shared, give_shared, _ = one.fast["a"]
    pool = one.tenants.table["a"]
    assert (take, give) == (pool.pop, pool.append)
    assert one.shared is not None
    assert (take_shared, give_shared) == (one.shared.pop, one.shared.append)
    one.clock = stopped
    with work_for("a"):
        permit = one.begin(DIRECT)
    permit[3](permit[2])
    permit[1](permit[0])


def test_taking_a_ticket_is_one_step_however_many_threads() -> None:
    """Known fault 16. PR-01, PR-03: 8 threads, one ticket, the holders counted inside."""
    one = resource(**NEVER_OPENS, tickets=1)
    inside, most = [0], [0]
    guard = threading.Lock()

    def work() -> None:
        for _ in range(300):
            try:
                session = hold(one)
            except ResourceBusyError:
                continue
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with guard:
                inside[0] -= 1
            session.end()

    assert together(*[work] * 8) == [None] * 8
    assert most == [1]
    at_rest(one)


def test_calls_are_not_serialised() -> None:
    """Known fault 32: no lock across the call; a call may make another one."""
    one = resource(tickets=16)
    meet = threading.Barrier(8)

    @one
    def call() -> None:
        meet.wait(10)

    assert together(*[call] * 8) == [None] * 8
    at_rest(one)


def test_a_connect_takes_tickets_as_any_call() -> None:
    one = resource(tickets=1)
    held = hold(one, site=CONNECT)
    assert full(one) == "resource"
    held.end()
    at_rest(one)


def test_tickets_of_connections_are_apart() -> None:
    one = resource(identifier="sql:story", tickets=1, tenant_connections=2)
    with work_for("a"):
        first, second = one.checkout(DIRECT), one.checkout(DIRECT)
        with pytest.raises(ResourceBusyError) as caught:
            one.checkout(DIRECT)
        assert caught.value.limit == "connections"
        assert one.in_use == 0
        first.end()
        first.end()
        third = one.checkout(DIRECT)
        with pytest.raises(ResourceBusyError):
            one.checkout(DIRECT)
    with work_for(None):
        one.checkout(DIRECT).end()
    second.end()
    third.end()
    at_rest(one)


def test_a_checkout_that_is_dropped_comes_back() -> None:
    one = resource(identifier="sql:story", tenant_connections=1)
    with work_for("a"):
        for _ in range(5):
            one.checkout(DIRECT)
    at_rest(one)


def test_a_pool_that_is_called_in_the_middle_of_being_filled_keeps_its_limit() -> None:
    """The lock is re-entrant: a signal handler's call between two lines sees, and leaves, a pool within its limit."""

    class Nested(Pool):
        def append(self, ticket: Any) -> None:
            super().append(ticket)
            if len(self.watch) == 1:
                self.fill()

    pool = Nested("a", 2)
    pool.fill()
    assert len(pool.watch) <= 2
    assert len(pool) == len(pool.watch)

"""Many at once: jobs that become due, names that get a handler or never do, the dead. No call may last for long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from counts import often
from hypothesis import given
from hypothesis import strategies as st

from bulkhead.jobs import AsyncRunner, job
from bulkhead.jobs.aside import BATCH, Later
from bulkhead.jobs.dead import Dead
from bulkhead.jobs.records import Entry
from bulkhead.settings import Jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobs.conftest import Clock, Desk

TENANTS = 3 * BATCH


def entry(number: int, tenant: str | None = None, due: float = 0.0) -> Entry:
    one = Entry(str(number), "work", "default", tenant, "{}", 1)
    one.due = due
    return one


def looks(one: Desk) -> int:
    """Look until there is nothing more to be moved. How often?"""
    times = 1
    while not one.backend.look():
        times += 1
    return times


def test_many_jobs_become_due_at_once(desk: Callable[..., Desk], clock: Clock) -> None:
    one = desk()
    number = often(2_000, 20_000)
    for which in range(number):
        one.put(delay=1 + which % 3, tenant=f"t{which % 50}")
    clock.now += 2
    looks(one)
    stats = one.backend.stats()
    assert (stats.waiting, stats.later) == (sum(which % 3 < 2 for which in range(number)), number // 3)
    clock.now += 1
    looks(one)
    assert one.backend.stats().waiting == number


def test_what_becomes_due_at_once_is_moved_in_parts_each_job_looked_at_once(
    desk: Callable[..., Desk], clock: Clock
) -> None:
    """One call for all of it kept an event loop for 16 s with 100,000 jobs of 1,000 tenants."""
    asked: list[str] = []

    def cap(tenant: str) -> int:
        asked.append(tenant)
        return 1

    one = desk(max_concurrent=cap)
    number = often(20, 100) * BATCH
    for which in range(number):
        one.put(delay=1, tenant=f"t{which * 7919 % TENANTS}")
    asked.clear()
    clock.now += 1
    assert one.backend.look() == 0.0  # there is more
    assert one.backend.stats().later == number - BATCH
    assert looks(one) <= number // BATCH
    assert one.backend.stats()[:2] == (number, 0)
    assert len(asked) == number  # all of a part are of different tenants here


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40), st.integers(0, 6))
def test_what_is_due_is_known_in_its_order(kept: list[tuple[int, int]], now: int) -> None:
    later = Later()
    entries = [entry(number, f"t{tenant}", due) for number, (due, tenant) in enumerate(kept)]
    for one in entries:
        later.add(one)
    assert later.due(now) == sorted((one for one in entries if one.due <= now), key=lambda one: one.due)


@pytest.mark.anyio
async def test_a_loop_goes_on_while_many_jobs_become_due(clock: Clock) -> None:
    @job(name="work")
    async def work() -> None:
        await asyncio.Event().wait()

    number, turns = 20 * BATCH, 0
    async with AsyncRunner(workers=1, clock=clock, grace_secs=0) as runner:
        for which in range(number):
            work.options(tenant=f"t{which % TENANTS}").enqueue_in(10)
        clock.now += 20
        async with asyncio.timeout(20):
            while left := runner.stats().later:
                await asyncio.sleep(0)
                turns += left < number
    assert turns >= number // BATCH - 1


def test_names_that_nobody_ever_had_are_given_up_in_parts(desk: Callable[..., Desk], clock: Clock) -> None:
    one = desk(unknown_after_secs=60.0)
    number = 3 * BATCH + 1
    for which in range(number):
        one.put("nobody's", f"t{which}")
    clock.now += 61
    assert one.backend.look() == 0.0
    assert one.backend.stats().dead == BATCH
    looks(one)
    stats = one.backend.stats()
    assert (stats.dead, stats.unknown, one.backend.left("t1")) == (number, {}, 0)


def test_all_that_waits_for_a_handler_goes_before_what_comes_then(desk: Callable[..., Desk]) -> None:
    one = desk()
    waiting = [one.put("late") for _ in range(3 * BATCH)]

    @job(name="late")
    def late() -> None: ...

    waiting.append(one.put("late"))
    assert [kept.id for kept in one.backend._crew.in_line()] == waiting  # type: ignore[attr-defined]


def test_limits_change_for_any_number_of_tenants(desk: Callable[..., Desk]) -> None:
    one = desk(max_concurrent=1)
    for which in range(TENANTS + 1):
        one.put(tenant=f"t{which}")
    one.backend.adopt(Jobs(max_concurrent=7))
    caps = {account.number for account in one.backend._crew.slots.table.values()}
    assert caps == {7}


def test_limits_that_change_while_others_are_being_set_are_those_that_hold(desk: Callable[..., Desk]) -> None:
    one = desk(max_concurrent=1)
    one.put(tenant="acme")

    def slow(tenant: str) -> int:
        one.backend.adopt(Jobs(max_concurrent=9))
        return 7

    one.backend.adopt(Jobs(max_concurrent=slow))
    assert one.backend._crew.slots.table["acme"].number == 9


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 9), st.booleans()), max_size=60))
def test_the_dead_know_who_has_most_of_them(story: list[tuple[str | None, int, bool]]) -> None:
    dead = Dead(maximum=5)
    for number, (tenant, which, kept) in enumerate(story):
        if kept:
            before = {whose: len(dead.of(whose)) for whose in ("a", "b", "c", None)}
            most, mine, full = max(before.values()), before[tenant], len(dead) == 5
            gone = dead.add(entry(100 + number, tenant))
            assert (gone is not None) == full
            if gone is not None and gone.tenant != tenant:
                assert before[gone.tenant] == most
                assert mine < 5 / sum(1 for count in before.values() if count)
        elif which < len(dead):
            assert dead.pop(dead.all()[which].id) is not None
        assert len(dead) == len(dead.all()) <= 5


def test_a_job_that_was_taken_over_twice_is_kept_twice_or_is_one_dead_job(desk: Callable[..., Desk]) -> None:
    """Two with one id, and none that nobody can get at: a drain waited for it without end."""
    one = desk(unknown_after_secs=0.0)
    one.put("nobody's")
    one.backend.close()
    (record,) = one.backend.finish()[1]
    other = desk(unknown_after_secs=60.0)
    for _ in range(2):
        other.backend.restore([record], lambda name, arguments: "{}")
    assert other.backend.stats().unknown == {"nobody's": 2}
    other.clock.now += 61
    looks(other)
    assert other.backend.left("acme") == 0
    assert [kept.id for kept in other.backend.dead("acme")] == [record.id]
    assert other.backend.discard(record.id)
    assert other.backend.dead("acme") == []

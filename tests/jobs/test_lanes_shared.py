"""A tenant in several queues of the same slots: at home in the first, a guest in the others; and what is left of it."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from bulkhead.jobs.lanes import KNOWN, Claim, LaneQueue
from bulkhead.jobs.rounds import FEW, Line
from bulkhead.jobs.slots import Slots


def claimed(queue: LaneQueue, lane: int = 0) -> Claim:
    claim = queue.claim(lane)
    assert claim is not None
    return claim


def pair(lanes: int = 0) -> tuple[LaneQueue, LaneQueue]:
    slots = Slots()
    return LaneQueue(lanes, 2, slots, "one"), LaneQueue(lanes, 2, slots, "two")


def flood(queue: LaneQueue, tenants: int = KNOWN + 2) -> None:
    """So many tenants come and go that those before them are forgotten here."""
    for number in range(tenants):
        queue.finish(claimed(queue, queue.push(f"flood-{number}", number)[0]))


def places(queue: LaneQueue, tenant: str | None) -> list[int]:
    """How often this tenant's line stands on each lane."""
    lines = queue._lines.get(tenant)
    return [sum(each is lines for each in here.lines) for here in queue._rounds]


@pytest.mark.parametrize("opened", ["one", "two", "by hold"])
def test_the_queue_that_opened_an_account_makes_no_difference(opened: str) -> None:
    one, two = pair(4)
    lane, other = one.lanes_of("a")
    if opened == "by hold":
        two.finish(two.hold("a", "ran already", lane, 1))
        first = claimed(one, one.push("a", 0, cap=1)[0])
    else:
        queue = {"one": one, "two": two}[opened]
        queue.push("a", 0, cap=1)
        first = claimed(queue, lane)
    for number in (1, 2):
        assert one.push("a", ("one", number), cap=1) == two.push("a", ("two", number), cap=1) == ()
    assert all(queue.claim(each) is None for queue in (one, two) for each in (lane, other))
    assert places(one, "a") == places(two, "a") == [0, 0, 0, 0]
    assert first.queue.finish(first) == (lane, other)
    assert places(one, "a") == places(two, "a") == [int(each in {lane, other}) for each in range(4)]
    for queue, each, job in ((two, other, 1), (one, lane, 1), (two, lane, 2), (one, other, 2)):
        claim = claimed(queue, each)
        assert claim.job == (queue.name, job)
        assert one.claim(lane) is two.claim(other) is None
        queue.finish(claim)
    assert one.slots.tenants() == []
    assert len({line for queue in (one, two) for line in queue._lines.values()}) == len(one._lines) + len(two._lines)


@pytest.mark.parametrize("where", ["at home", "as a guest"])
def test_what_is_taken_from_one_queue_leaves_the_places_in_the_other(where: str) -> None:
    one, two = pair()
    one.push("a", 0, cap=1)
    running = claimed(one)
    for queue in (one, two):
        queue.push("a", queue.name, cap=1)
        assert queue.claim(0) is None
    emptied, left = (one, two) if where == "at home" else (two, one)
    assert emptied.take("a") == [emptied.name]
    assert one.finish(running) == (0,)
    assert emptied.claim(0) is None
    left.finish(claimed(left))
    assert left.claim(0) is None
    emptied.push("a", "again", cap=1)
    assert claimed(emptied).job == "again"


@pytest.mark.parametrize("home", [0, 1])
def test_a_tenant_that_one_queue_forgot_and_another_knows_comes_again(home: int) -> None:
    """It stood still on a lane of which nobody looked: it stands on each lane once, and is served as any other."""
    queues = pair(8)
    queue, other = queues[home], queues[1 - home]
    queues[0].push("a", "first", cap=1)
    queues[1].push("a", "first", cap=1)
    lane, unseen = queue.lanes_of("a")
    queue.finish(claimed(queue, lane))
    assert places(queue, "a")[unseen] == 1
    flood(queue)
    assert "a" not in queue._lines
    assert queue.slots.waiting("a") == other.waiting("a") == 1
    for number in range(3):
        queue.push("a", number, cap=1)
    assert places(queue, "a") == [int(each in {lane, unseen}) for each in range(8)]
    for number, each in enumerate((unseen, lane, unseen)):
        claim = claimed(queue, each)
        assert (claim.tenant, claim.job) == ("a", number)
        assert queue.claim(lane) is other.claim(lane) is None
        queue.finish(claim)
    other.finish(claimed(other, lane))
    flood(queue)
    flood(other)
    assert "a" not in queue.slots.table


def test_a_tenant_whose_first_queue_is_gone_is_served_in_the_others() -> None:
    slots = Slots()
    gone, queue = LaneQueue(4, 2, slots, "gone"), LaneQueue(4, 2, slots)
    gone.push("a", "first", cap=1)
    lane, other = gone.lanes_of("a")
    claim = claimed(gone, lane)
    gone.take_all()
    del gone
    assert queue.push("a", 1, cap=1) == ()
    assert queue.claim(other) is None
    assert claim.queue.finish(claim) == (lane, other)
    assert claimed(queue, other).job == 1
    new = LaneQueue(4, 2, slots, "gone")
    new.push("a", 2, cap=2)
    assert claimed(new, lane).job == 2


def test_two_queues_know_a_tenant_by_one_account_until_both_forget_it() -> None:
    one, two = pair()
    for queue in (one, two):
        queue.finish(claimed(queue, queue.push("a", "job")[0]))
    account = one.slots.table["a"]
    assert (one._lines["a"] is account, two._lines["a"] is account, account.lines) == (True, False, 2)
    flood(one)
    assert one.slots.table["a"] is account
    assert account.lines == 1
    flood(two)
    assert "a" not in one.slots.table


def lines() -> int:
    return sum(issubclass(type(each), Line) for each in gc.get_objects())  # isinstance would wake lazy ones


def test_lines_are_freed_without_the_collector_of_cycles() -> None:
    """At their cap in both queues, taken, given back, forgotten: only what is remembered is left."""
    gc.collect()
    gc.disable()
    try:
        before = lines()
        one, two = pair(8)
        for number in range(2 * KNOWN):
            tenant = f"tenant-{number}"
            lane, other = one.push(tenant, 0, cap=1)
            two.push(tenant, 0, cap=1)
            claim = claimed(one, lane)
            assert two.claim(other) is None
            one.give_back(claim)
            two.finish(claimed(two, other))
            one.finish(claimed(one, other))
            if number % 3 == 0:
                one.push(tenant, 1, cap=1)
                one.take(tenant)
        remembered = len({line for queue in (one, two) for line in queue._lines.values()} | {*one.slots.table.values()})
        assert remembered <= 2 * KNOWN + 3
        left = lines() - before
        assert left <= remembered + 16 * FEW
        gc.collect()
        assert lines() - before == left
        assert Counter(account.waiting + account.running for account in one.slots.table.values()).keys() == {0}
    finally:
        gc.enable()

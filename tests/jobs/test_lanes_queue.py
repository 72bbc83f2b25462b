"""Stories on one queue: who is served when. Faults of others by their number."""

from __future__ import annotations

from collections import Counter, deque
from itertools import count

import pytest

from bulkhead.jobs.crew import Crew
from bulkhead.jobs.lanes import KNOWN, Claim, LaneQueue
from bulkhead.jobs.rounds import FEW, SHORT
from bulkhead.jobs.slots import Slots


def claimed(queue: LaneQueue, lane: int = 0) -> Claim:
    claim = queue.claim(lane)
    assert claim is not None
    return claim


def order(queue: LaneQueue, times: int, lane: int = 0) -> list[str | None]:
    """Whose jobs a lane runs, one after the other."""
    tenants = []
    for _ in range(times):
        claim = claimed(queue, lane)
        tenants.append(claim.tenant)
        queue.finish(claim)
    return tenants


def test_tenants_are_served_in_turn_and_their_jobs_in_order() -> None:
    queue = LaneQueue()
    for number in range(3):
        for tenant in ("a", "b", None):
            queue.push(tenant, (tenant, number))
    assert [claimed(queue).job for _ in range(9)] == [
        (tenant, number) for number in range(3) for tenant in ("a", "b", None)
    ]
    assert queue.claim(0) is None


def test_100_throttled_jobs_of_one_tenant_do_not_keep_another_waiting() -> None:
    """Known fault 76: B starts at once, and nobody looks again and again at what cannot run."""
    queue = LaneQueue()
    for number in range(100):
        queue.push("a", number, cap=1)
    queue.push("b", "job", cap=1)
    assert claimed(queue).tenant == "a"
    assert claimed(queue).tenant == "b"


def test_a_lane_goes_past_a_tenant_at_its_cap_once() -> None:
    """Known fault 76: looks <= runs + tenants."""
    queue = LaneQueue()
    for tenant in range(1000):
        for number in range(3):
            queue.push(f"tenant-{tenant}", number, cap=1)
    running = [claimed(queue) for _ in range(1000)]
    accounts = [queue.slots.table[f"tenant-{tenant}"] for tenant in range(1000)]
    assert queue.claim(0) is None
    assert all(len(account.passed or ()) == 1 for account in accounts)
    here = queue._rounds[0]
    assert not here.lines
    queue.finish(running[500])
    assert len(here.lines) == 1
    assert claimed(queue).tenant == "tenant-500"


@pytest.mark.parametrize("lanes", [0, 4])
def test_a_new_tenant_is_served_within_one_round(lanes: int) -> None:
    """Known fault 80: A has 10,000 jobs, B comes with one."""
    queue = LaneQueue(lanes)
    for number in range(10_000):
        queue.push("a", number)
    lane = queue.lanes_of("a")[0]
    order(queue, 100, lane)
    newcomer = next(f"b-{number}" for number in range(100) if lane in queue.lanes_of(f"b-{number}"))
    queue.push(newcomer, "job")
    assert newcomer in order(queue, 2, lane)


def test_each_other_tenant_is_served_at_most_once_before_a_new_one() -> None:
    """Known fault 80, with 50 tenants, some of them at their cap, some new themselves, whenever B comes."""
    for when in range(0, 120, 7):
        queue = LaneQueue()
        for tenant in range(50):
            for number in range(20):
                queue.push(f"tenant-{tenant}", number, cap=tenant % 3)
        held = [claimed(queue) for _ in range(10)]
        order(queue, when)
        queue.push("b", "job")
        for claim in held:
            queue.finish(claim)
        before: Counter[str | None] = Counter()
        while (claim := claimed(queue)).tenant != "b":
            before[claim.tenant] += 1
            queue.finish(claim)
            queue.push(f"new-{len(before)}", "job")
        assert max(before.values()) == 1


def test_a_tenant_that_comes_and_goes_gets_no_more_than_one_that_stays() -> None:
    queue = LaneQueue()
    for number in range(1000):
        queue.push("stays", number)
    queue.push("comes", 0)
    served: Counter[str | None] = Counter()
    for _ in range(100):
        claim = claimed(queue)
        served[claim.tenant] += 1
        queue.finish(claim)
        if claim.tenant == "comes":
            queue.push("comes", 0)
    assert served == {"stays": 50, "comes": 50}


def test_a_tenant_that_was_at_its_cap_is_next_when_its_turn_was_passed() -> None:
    queue = LaneQueue()
    for _ in range(3):
        for tenant in ("a", "b", "c"):
            queue.push(tenant, "job", cap=int(tenant == "a"))
    running = claimed(queue)
    assert [running.tenant, *order(queue, 3)] == ["a", "b", "c", "b"]
    assert queue.finish(running) == (0,)
    assert order(queue, 3) == ["a", "c", "b"]


def test_a_cap_is_a_number_for_each_tenant() -> None:
    """Known fault 81: gold 10, free 1."""
    queue = LaneQueue()
    for number in range(20):
        queue.push("gold", number, cap=10)
        queue.push("free", number, cap=1)
    running = Counter(claimed(queue).tenant for _ in range(11))
    assert running == {"gold": 10, "free": 1}
    assert queue.claim(0) is None


def test_a_cap_counts_over_all_queues() -> None:
    """Known fault 83: and the job that is free to run when another queue's ends is named."""
    slots = Slots()
    one, two = LaneQueue(4, 2, slots, "one"), LaneQueue(4, 2, slots, "two")
    lane = one.lanes_of("a")[0]
    assert one.push("a", 1, cap=1) == one.lanes_of("a")
    claim = claimed(one, lane)
    assert two.push("a", 2, cap=1) == ()
    assert two.claim(lane) is None
    assert one.finish(claim) == two.lanes_of("a")
    assert claimed(two, lane).job == 2


def test_jobs_without_a_tenant_have_no_cap() -> None:
    queue = LaneQueue(4, 2)
    for number in range(3):
        assert queue.push(None, number, cap=1) == (0, 1, 2, 3)
    queue.slots.recap(None, 1)
    assert [claimed(queue, lane).job for lane in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("most", [SHORT - 1, SHORT, SHORT + 1, 4 * SHORT])
def test_jobs_stay_in_order_while_a_backlog_grows_and_shrinks_around_the_short_one(most: int) -> None:
    queue = LaneQueue()
    jobs: deque[int] = deque()
    numbers = count()
    for least in (0, 1, SHORT // 2, most - 1, 0):
        while len(jobs) < most:
            jobs.append(next(numbers))
            queue.push("a", jobs[-1])
        assert queue.in_line() == [*jobs]
        while len(jobs) > least:
            claim = claimed(queue)
            assert claim.job == jobs[0]
            if len(jobs) % 3 == 0:  # not run, and then it is
                queue.give_back(claim)
                assert (queue.in_line(), queue.waiting("a"), len(queue)) == ([*jobs], len(jobs), len(jobs))
                claim = claimed(queue)
            assert claim.job == jobs.popleft()
            queue.finish(claim)
    assert queue.claim(0) is None
    for number in range(most):
        queue.push("a", number)
    assert queue.take("a") == [*range(most)]


def test_a_long_backlog_is_no_list_however_it_became_long() -> None:
    """To put a job before a list, or to take its first one, takes as long as the list is."""
    pushed, given_back = LaneQueue(), LaneQueue()
    for number in range(SHORT + 1):
        pushed.push("a", number)
    claims = [given_back.hold("a", number, 0, 0) for number in range(SHORT + 1)]
    for claim in reversed(claims):
        given_back.give_back(claim)
    for queue in (pushed, given_back):
        assert type(queue._lines["a"].more) is deque
        assert [claimed(queue).job for _ in range(SHORT + 1)] == [*range(SHORT + 1)]


def test_memory_does_not_grow_with_ids_chosen_by_clients() -> None:
    queue = LaneQueue(8, 2)
    for number in range(3 * KNOWN):
        tenant = f"tenant-{number}"
        lane = queue.push(tenant, number, cap=1)[0]
        queue.finish(claimed(queue, lane))
    assert queue.slots.tenants() == []
    assert queue.tenants == 0
    assert len(queue.slots.table) == len(queue._lines) == len(queue._kept) <= KNOWN + 1
    assert all(len(each.lines) <= FEW for each in queue._rounds)
    assert len(queue._places) <= 28


def test_after_a_flood_of_ids_little_is_remembered() -> None:
    """Also on lanes of which the worker never looks."""
    queue = LaneQueue(8, 2)
    for number in range(5 * KNOWN):
        queue.push(f"tenant-{number}", number)
    assert (queue.tenants, len(queue)) == (5 * KNOWN, 5 * KNOWN)
    for lane in range(7):
        while claim := queue.claim(lane):
            queue.finish(claim)
    assert (queue.tenants, len(queue)) == (0, 0)
    assert queue.slots.tenants() == []
    assert len(queue.slots.table) == len(queue._lines) == len(queue._kept) <= KNOWN + 1
    for number in range(5 * KNOWN):  # one at a time
        queue.finish(claimed(queue, queue.push(f"other-{number}", number)[0]))
    assert len(queue.slots.table) == len(queue._lines) == len(queue._kept) <= KNOWN + 1
    assert sum(len(each.lines) for each in queue._rounds) <= 2 * 5 * KNOWN


def test_a_lane_that_no_worker_looks_at_does_not_grow_while_another_serves() -> None:
    queue = LaneQueue(8, 2)
    lane, other = queue.lanes_of("acme")
    for number in range(1000):
        queue.push("acme", number)
        queue.push("acme", number)
        queue.finish(claimed(queue, lane))
    assert len(queue._rounds[other].lines) == 1


def test_claims_and_queues_show_no_job() -> None:
    queue = LaneQueue(name="mail")
    queue.push("acme", "secret")
    claim = claimed(queue)
    assert repr(claim) == "<Claim on 'mail', lane 0>"
    queue.finish(claim)
    assert repr(claim) == "<Claim on 'mail', lane 0, ended>"
    assert repr(queue) == "<LaneQueue 'mail': 0 jobs of 0 tenants wait>"


def test_wrong_numbers_are_refused() -> None:
    for lanes, per_tenant in ((-1, 2), (8, 0)):
        with pytest.raises(ValueError, match="lanes must be 0 or more, and lanes_per_tenant 1 or more"):
            LaneQueue(lanes, per_tenant)
        with pytest.raises(ValueError, match="lanes must be 0 or more"):
            Crew(lanes, per_tenant)
    with pytest.raises(ValueError, match="same lanes"):
        LaneQueue(4, 2, LaneQueue(8, 2).slots)
    with pytest.raises(IndexError):
        LaneQueue(4, 2).claim(4)
    crew = Crew(4, 2)
    with pytest.raises(ValueError, match="there is no lane 4: there are 4"):
        crew.join("worker", 4)
    crew.join("worker", 3)
    with pytest.raises(ValueError, match="joined already"):
        crew.join("worker", 3)
    with pytest.raises(KeyError):
        crew.turn("stranger")


def test_more_lanes_per_tenant_than_lanes_are_all_lanes() -> None:
    assert LaneQueue(2, 5).lanes_of("a") == (0, 1)
    assert LaneQueue(0, 2).lanes_of("a") == (0,)

"""A signal handler raises in the middle of a call, at any of its lines: the others are served as before."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from bulkhead.jobs.lanes import Claim, LaneQueue
from bulkhead.jobs.rounds import FEW
from bulkhead.jobs.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def claimed(queue: LaneQueue, lane: int = 0) -> Claim:
    claim = queue.claim(lane)
    assert claim is not None
    return claim


class Interrupted(BaseException):
    pass


def interrupted(after: int, act: Callable[[], object]) -> bool:
    """Run it, and raise before its n-th line in the files of the queue. False: it has no such line."""
    left = after
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("jobs/lanes.py", "jobs/rounds.py", "jobs/slots.py")):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(before)
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        act()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.no_cover
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("cap", [0, 1])
@pytest.mark.parametrize("jobs", [0, 1, 3])
@pytest.mark.parametrize("what", ["push", "claim", "finish", "give_back", "take"])
def test_an_interrupted_call_never_stops_a_lane(what: str, jobs: int, cap: int, lanes: int) -> None:
    for after in count():
        queue = LaneQueue(lanes, 2)
        place = queue.lanes_of("a")
        same = [f"b-{n}" for n in range(200) if queue.lanes_of(f"b-{n}") == place][:2]
        queue.push("a", "first", cap)
        first = claimed(queue, place[0])
        for number in range(jobs):
            queue.push("a", number, cap)
        if cap:
            assert queue.claim(place[-1]) is None
        queue.push(same[0], "other")

        def act(queue: LaneQueue = queue, first: Claim = first, lane: int = place[0]) -> object:
            if what == "push":
                return queue.push("a", "new", cap)
            if what == "claim":
                return queue.claim(lane)
            return queue.take("a") if what == "take" else getattr(queue, what)(first)

        if not interrupted(after, act):
            assert after > 2
            return
        for tenant in ("a", *same):
            for _ in range(2):
                queue.push(tenant, "later", cap)
        seen: Counter[str | None] = Counter()
        for lane in (*place, *place):
            while (claim := queue.claim(lane)) is not None:
                assert seen.total() < 30
                seen[claim.tenant] += 1
                queue.finish(claim)
        assert seen[same[1]] == 2
        # The job of the call may be lost with it, and where there is a cap the slot.
        assert seen[same[0]] >= 2 or queue.slots.running(same[0])
        assert seen["a"] >= 2 or (cap and queue.slots.running("a"))


def cut_short(what: str, home: LaneQueue, here: LaneQueue, cap: int, after: int) -> bool:
    """One call for tenant "a", which has jobs in both queues, and runs one of the first."""
    slots, lane = home.slots, home.lanes_of("a")[0]
    first = None
    if what != "hold":  # that opens the account
        for queue in (home, here):
            queue.push("a", "first", cap)
        first = claimed(home, lane)
        for queue in (home, here):
            queue.push("a", "second", cap)
            if cap:
                assert queue.claim(lane) is None
    if what == "resume":
        slots.pause("a")
        assert home.claim(lane) is None
    calls: dict[str, Callable[[], object]] = {
        "push": lambda: here.push("a", "new", cap),
        "claim": lambda: here.claim(lane),
        "take": lambda: here.take("a"),
        "hold": lambda: here.hold("a", "held", lane, cap),
        "recap": lambda: slots.recap("a", 2),
        "resume": lambda: slots.resume("a"),
    }
    return interrupted(after, calls[what] if first is None or what in calls else lambda: getattr(home, what)(first))


@pytest.mark.no_cover
@pytest.mark.parametrize("cap", [0, 1])
@pytest.mark.parametrize("where", ["at home", "as a guest"])
@pytest.mark.parametrize("what", ["push", "claim", "finish", "give_back", "take", "hold", "recap", "resume"])
def test_an_interrupted_call_stops_no_lane_of_queues_that_share_slots(what: str, where: str, cap: int) -> None:
    for after in count():
        slots = Slots()
        one, two = LaneQueue(4, 2, slots, "one"), LaneQueue(4, 2, slots, "two")
        place = one.lanes_of("a")
        if not cut_short(what, one, one if where == "at home" else two, cap, after):
            assert after > 2
            return
        slots.resume("a")
        for queue in (one, two):
            for _ in range(2):
                queue.push("a", "later", cap)
        slots.recap("a", cap and 4)  # a slot may be lost, and up to two are held
        for queue in (one, two):
            jobs: Counter[object] = Counter()
            for lane in (*place, *place):
                while (claim := queue.claim(lane)) is not None:
                    assert jobs.total() < 30
                    jobs[claim.job] += 1
                    queue.finish(claim)
            assert jobs["later"] == 2
            assert queue.waiting("a") == 0


@pytest.mark.no_cover
def test_an_interrupted_clearing_up_costs_nobody_else_a_place() -> None:
    """There are so many lines on the lane that a push looks for those without jobs: others' lines are in its hands."""
    for after in count():
        queue = LaneQueue(2, 2)
        for number in range(FEW):
            queue.push(f"tenant-{number}", "job")
        for _ in range(FEW // 2):
            queue.finish(claimed(queue, 0))
        if not interrupted(after, lambda queue=queue: queue.push("new", "job")):  # type: ignore[misc]
            assert after > FEW
            return
        for number in range(FEW):
            queue.push(f"tenant-{number}", "later")
        seen: Counter[str | None] = Counter()
        while (claim := queue.claim(1)) is not None:
            seen[claim.tenant] += 1
            queue.finish(claim)
        assert [number for number in range(FEW) if seen[f"tenant-{number}"] != 1 + (number >= FEW // 2)] == []

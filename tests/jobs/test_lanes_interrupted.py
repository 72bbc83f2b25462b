"""A signal handler raises in the middle of a call, at any of its lines: the others are served as before."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from bulkhead.jobs.lanes import Claim, LaneQueue

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

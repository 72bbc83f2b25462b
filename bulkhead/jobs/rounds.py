"""In which order a lane serves its tenants, and where a tenant stands. Pure; the rules of lanes.py hold here as well.

Each lane has its tenants in the order in which they are served, and **only the tenant that was served moves to the
back**. (Moving those that a worker may not serve starves tenants.) On each of its other lanes it is noted that it was
served out of turn there, twice at most, and so often that lane goes past it when its turn comes. So a lane leaves those
alone for a while that get more than their share elsewhere: in simulations of 120 sets of 20 tenants on 8 lanes nobody
got less than 0.99 of its max-min fair share with jobs of equal length and 0.88 with exponential ones; 0.96 and 0.77
where it is noted once only. A new tenant enters at the end: a lane serves each other tenant at most once before it.

With very many tenants it is memory that takes the time, so what a job touches is little: a line, which is as a rule the
tenant's account as well (slots.py), and the first job; no dictionary but the one that finds the line. Marks are few
bits, because a larger number is an object of its own somewhere else.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bulkhead.jobs.slots import Account

FEW: Final = 64  # lines without jobs on a lane; not worth a look
NOTHING: Final = object()
AWAY: Final = 3
"""A line's mark for a lane where it does not stand; other marks say how often that lane goes past it, at most MOST."""
MOST: Final = 2
SHORT: Final = 32
"""Up to so many jobs are a list, which is small; more are a deque, which is fast however many they are."""


class Round:
    """The lines of one lane, in the order in which they are served."""

    __slots__ = ("lane", "lines", "most")

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.lines: deque[Line] = deque()
        self.most = FEW
        """With so many lines it is time to look for those without jobs."""

    def clear_up(self) -> None:
        """Let go of lines without jobs: on a lane that no worker looks at nothing else does.

        No line is in hand only, at any moment: an interrupted call would cost another tenant its place.
        """
        lines = self.lines
        for _ in range(len(lines)):
            line = lines[0]
            if line.first is NOTHING:
                line.marks |= AWAY << line.place.shifts[self.lane]
                lines.popleft()
            else:
                lines.rotate(-1)
        self.most = max(FEW, 2 * len(lines))


class Place:
    """Where a tenant stands: its `lanes`, their `rounds` in one queue. Tenants with the same lanes share it.

    `shifts`: lane -> where the two bits of its mark are in `Line.marks`.
    """

    __slots__ = ("lanes", "rounds", "shifts")

    def __init__(self, lanes: tuple[int, ...], rounds: tuple[Round, ...]) -> None:
        self.lanes = lanes
        self.rounds = rounds
        self.shifts = {lane: 2 * number for number, lane in enumerate(lanes)}


class Line:
    """The waiting jobs of one tenant in one queue: the `first`, then `more`; and its marks, two bits for each lane.

    With jobs it stands on each of its lanes, but for those noted in its account as having gone past it. Without jobs it
    may stay where it stands: it is taken out when a worker comes to it, or is back in its place if it has jobs before.
    `home`: the tenant's account; None where this is it. `kept`: it is among those that its queue remembers.
    """

    __slots__ = ("first", "home", "kept", "marks", "more", "place")

    def __init__(self, home: Account | None, place: Place) -> None:
        self.home = home
        self.place = place
        self.first: object = NOTHING
        self.more: deque[object] | list[object] | None = None
        self.marks = (1 << 2 * len(place.lanes)) - 1
        """AWAY from each."""
        self.kept = False

    def length(self) -> int:
        """How many jobs."""
        return 0 if self.first is NOTHING else 1 + len(self.more or ())

    def jobs(self) -> list[object]:
        """Oldest first."""
        return [] if self.first is NOTHING else [self.first, *(self.more or ())]

    def add(self, job: object) -> None:
        """A job at the end."""
        if self.first is NOTHING:
            self._enter()
            self.first = job
        elif more := self.more:
            more.append(job)
            if len(more) >= SHORT and type(more) is list:
                self.more = deque(more)
        else:
            self.more = [job]

    def put_first(self, job: object) -> None:
        """A job before all others."""
        if self.first is NOTHING:
            self._enter()
        elif more := self.more:
            if len(more) >= SHORT - 1 and type(more) is list:
                more = self.more = deque(more)
            more.insert(0, self.first)
        else:
            self.more = [self.first]
        self.first = job

    def empty(self) -> list[object]:
        """Take all jobs."""
        jobs = self.jobs()
        self.first, self.more = NOTHING, None
        return jobs

    def stand_first(self, passed: Round) -> None:
        """To the head of a round that went past it."""
        passed.lines.appendleft(self)
        self.marks &= ~(AWAY << self.place.shifts[passed.lane])

    def _enter(self) -> None:
        """To the end of each of its lanes where it does not stand."""
        marks = self.marks
        shift = 0
        for each in self.place.rounds:
            if marks >> shift & AWAY == AWAY:
                if len(each.lines) >= each.most:
                    each.clear_up()
                each.lines.append(self)
                marks ^= AWAY << shift
            shift += 2
        self.marks = marks

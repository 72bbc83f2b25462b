"""In which order a lane serves its tenants, and where a tenant stands. Pure; the rules of lanes.py hold here as well.

Each lane has its tenants in the order in which they are served, and **only the tenant that was served moves to the
back**. (Moving those that a worker may not serve starves tenants.) On each of its other lanes it is noted that it was
served out of turn there, twice at most, and so often that lane goes past it when its turn comes. So a lane leaves those
alone for a while that get more than their share elsewhere: in simulations of 120 sets of 20 tenants on 8 lanes nobody
got less than 0.99 of its max-min fair share with jobs of equal length and 0.88 with exponential ones; 0.96 and 0.77
where it is noted once only. A new tenant enters at the end: a lane serves each other tenant at most once before it.

With very many tenants it is memory that takes the time. So what a job touches is little: a line, its account, the first
job; no dictionary but the one that finds the line.
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


class Round:
    """The lines of one lane, in the order in which they are served. `shift`: where its marks are in `Line.marks`."""

    __slots__ = ("lines", "most", "shift")

    def __init__(self, lane: int) -> None:
        self.lines: deque[Line] = deque()
        self.most = FEW
        """With so many lines it is time to look for those without jobs."""
        self.shift = 2 * lane

    def clear_up(self) -> None:
        """Let go of lines without jobs: on a lane that no worker looks at nothing else does."""
        lines, shift = self.lines, self.shift
        for _ in range(len(lines)):
            line = lines.popleft()
            if line.first is NOTHING:
                line.marks |= AWAY << shift
            else:
                lines.append(line)
        self.most = max(FEW, 2 * len(lines))


class Line:
    """The waiting jobs of one tenant in one queue: the `first`, then `more`; and its marks, two bits for each lane.

    With jobs it stands on each of its lanes, but for those noted in its account as having gone past it. Without jobs it
    may stay where it stands: it is taken out when a worker comes to it, or is back in its place if it has jobs before.
    `kept`: it is among those that its queue remembers.
    """

    __slots__ = ("account", "first", "kept", "marks", "more", "rounds")

    def __init__(self, account: Account, rounds: tuple[Round, ...]) -> None:
        self.account = account
        self.rounds = rounds
        self.first: object = NOTHING
        self.more: deque[object] | None = None
        self.marks = 0
        for each in rounds:
            self.marks |= AWAY << each.shift
        self.kept = False

    def waiting(self) -> int:
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
        elif self.more:
            self.more.append(job)
        else:
            self.more = deque((job,))

    def put_first(self, job: object) -> None:
        """A job before all others."""
        if self.first is NOTHING:
            self._enter()
        elif self.more:
            self.more.appendleft(self.first)
        else:
            self.more = deque((self.first,))
        self.first = job

    def empty(self) -> list[object]:
        """Take all jobs."""
        jobs = self.jobs()
        self.first, self.more = NOTHING, None
        return jobs

    def come_back(self, passed: Round) -> None:
        """To the head of a round that went past it."""
        passed.lines.appendleft(self)
        self.marks &= ~(AWAY << passed.shift)

    def _enter(self) -> None:
        """To the end of each of its lanes where it does not stand."""
        marks = self.marks
        for each in self.rounds:
            if marks >> each.shift & AWAY == AWAY:
                if len(each.lines) >= each.most:
                    each.clear_up()
                each.lines.append(self)
                marks ^= AWAY << each.shift
        self.marks = marks

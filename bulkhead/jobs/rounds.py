"""In which order a lane serves its tenants, and where a tenant stands. Pure; the rules of lanes.py hold here as well.

Each lane has its tenants in the order in which they are served, and **only the tenant that was served moves back**,
on all its lanes. (Moving those that a worker may not serve starves tenants.) It moves to the next round; on a
lane where it stood in the next round anyway, since another lane served it out of turn here, to the one after that. So
a lane leaves those alone for a while that get more than their share elsewhere: in simulations of 20 tenants on 8
lanes nobody gets less than 0.97 of its max-min fair share with jobs of equal length, 0.83 where there is the next
round only. A new tenant enters at the end of the next round: a lane serves each other tenant at most once before it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from bulkhead.jobs.slots import Account


class Round:
    """The tenants of one lane, in the order in which they are served: first `now`, then `next`, then `after`."""

    __slots__ = ("after", "next", "now")

    def __init__(self) -> None:
        self.now: Turns = OrderedDict()
        self.next: Turns = OrderedDict()
        self.after: Turns = OrderedDict()

    def begin(self) -> Turns:
        """The next round, if this one is over. Empty: nobody is left on this lane."""
        for _ in range(2):
            self.now, self.next, self.after = self.next, self.after, self.now
            if self.now:
                break
        return self.now


class Line:
    """The waiting jobs of one tenant in one queue, oldest first, and where it stands in the rounds of its lanes.

    `spots` has one entry for each of `rounds`: the part of the round that the tenant is in.
    """

    __slots__ = ("account", "jobs", "rounds", "spots")

    def __init__(self, account: Account, rounds: tuple[Round, ...]) -> None:
        self.account = account
        self.rounds = rounds
        self.jobs: deque[object] = deque()
        self.spots: list[Turns] = []
        for each in rounds:  # to the end of the next round of each lane
            spot = each.next
            spot[account.tenant] = self
            self.spots.append(spot)

    def move_back(self, here: Turns) -> None:
        """It was served from `here`: one round further back on each lane."""
        tenant, spots = self.account.tenant, self.spots
        for index, each in enumerate(self.rounds):
            spot = spots[index]
            if spot is each.after:
                spot[tenant] = self
                spot.move_to_end(tenant)
            else:  # in this order: when interrupted it is in both, not in none
                further = each.next if spot is each.now else each.after
                further[tenant] = self
                spots[index] = further
                spot.pop(tenant, None)
        here.pop(tenant, None)

    def come_back(self, passed: Round) -> None:
        """To the head of a round that went past it."""
        passed.now[self.account.tenant] = self
        passed.now.move_to_end(self.account.tenant, last=False)
        self.spots[self.rounds.index(passed)] = passed.now

    def leave(self) -> None:
        """Out of all rounds."""
        tenant = self.account.tenant
        for spot in self.spots:
            spot.pop(tenant, None)


Turns: TypeAlias = "OrderedDict[str | None, Line]"

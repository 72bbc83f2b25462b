"""Workers on the pure queue in virtual time, and the max-min fair share that their tenants are held to."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import combinations
from typing import TYPE_CHECKING

from bulkhead.jobs.lanes import LaneQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

WORKERS = LANES = 8
PER_TENANT = 2

LENGTHS: Mapping[str, Callable[[random.Random], float]] = {
    "equal": lambda _: 1.0,
    "20 % apart": lambda rnd: rnd.uniform(0.8, 1.2),
    "exponential": lambda rnd: rnd.expovariate(1.0),
}


@dataclass
class Served:
    """What tenants got in a run. Times in job lengths."""

    jobs: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    longest_wait: float = 0.0  # of a tenant that always has jobs, between two of its claims

    def least_share(self, fair: Mapping[str, float]) -> float:
        """The smallest part of its fair share that a tenant got."""
        return min(self.jobs[tenant] / (rate * self.seconds) for tenant, rate in fair.items())


def serve(tenants: Iterable[str], jobs: int, length: Callable[[random.Random], float], *, seed: int = 1) -> Served:
    """Run that many jobs of tenants that always have some waiting, with a worker on each lane."""
    queue, rnd, served = LaneQueue(LANES, PER_TENANT), random.Random(seed), Served()  # noqa: S311  no secret
    last: dict[str, float] = {}
    for tenant in tenants:
        last[tenant] = 0.0
        queue.push(tenant, None)
        queue.push(tenant, None)
    busy = []

    def claimed(lane: int, now: float) -> tuple[float, int, object]:
        claim = queue.claim(lane)
        if claim is None:
            return now + 1.0, lane, None
        tenant = claim.tenant
        assert tenant is not None
        served.longest_wait = max(served.longest_wait, now - last[tenant])
        last[tenant] = now
        queue.push(tenant, None)
        return now + length(rnd), lane, claim

    number = 0
    for lane in range(WORKERS):
        end, _, claim = claimed(lane, 0.0)
        busy.append((end, number, lane, claim))
        number += 1
    heapify(busy)
    while number < jobs:
        served.seconds, _, lane, ended = busy[0]
        if ended is not None:
            served.jobs[ended.tenant] += 1  # type: ignore[attr-defined]
            queue.finish(ended)  # type: ignore[arg-type]
        end, _, claim = claimed(lane, served.seconds)
        heapreplace(busy, (end, number, lane, claim))
        number += 1
    return served


def fair_shares(lanes_of: Mapping[str, tuple[int, ...]], workers: Mapping[int, int]) -> dict[str, float]:
    """The max-min fair share of each tenant, in workers: nobody can get more without a loss of one who has no more.

    Filled up by bottlenecks: of all sets of lanes, the one with the fewest workers for each tenant that has no lane
    outside it settles the share of those; then the same for the rest on the lanes that are left.
    """
    left, shares = {tenant: frozenset(lanes) for tenant, lanes in lanes_of.items()}, dict[str, float]()
    free = dict(workers)
    while left:
        crowd = Counter(left.values())
        share, bottleneck = min(
            (sum(free[lane] for lane in lanes) / inside, lanes)
            for size in range(1, len(free) + 1)
            for lanes in combinations(sorted(free), size)
            if (inside := sum(count for own, count in crowd.items() if own <= set(lanes)))
        )
        for tenant in [tenant for tenant, own in left.items() if own <= set(bottleneck)]:
            shares[tenant] = share
            del left[tenant]
        for lane in bottleneck:
            del free[lane]
        left = {tenant: own - set(bottleneck) for tenant, own in left.items()}
    return shares


def fair_shares_of(tenants: Iterable[str]) -> dict[str, float]:
    """With one worker on each lane."""
    queue = LaneQueue(LANES, PER_TENANT)
    return fair_shares({name: queue.lanes_of(name) for name in tenants}, dict.fromkeys(range(LANES), 1))

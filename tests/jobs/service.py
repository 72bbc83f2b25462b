"""A service in virtual time: requests of tenants to one upstream, and their jobs on a few workers.

Nothing of ours is imitated: each request takes and ends a permit of a real resource, each job goes through the crew.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, TypeAlias, cast

from stories import Clock, hold, resource

from bulkhead import ResourceBusyError
from bulkhead.jobs.crew import Assignment, Crew

if TYPE_CHECKING:
    from bulkhead.jobs.lanes import Claim

WORKERS = LANES = 4
LANES_PER_TENANT = 2
REQUEST_CAP, JOB_CAP = 4, 2
UPSTREAM_SLOTS, UPSTREAM_SECONDS = 8, 0.010
JOB_SECONDS = 0.050
QUIET = ("quiet-a", "quiet-b", "quiet-c")

Act: TypeAlias = Callable[[], None]


def p99(seconds: list[float]) -> float:
    """The smallest that 99 % are not above."""
    return sorted(seconds)[ceil(0.99 * len(seconds)) - 1]


@dataclass
class Upstream:
    """Slots that take a fixed time for each request; others wait in line."""

    free: int = UPSTREAM_SLOTS
    line: deque[Act] = field(default_factory=deque)


class Service:
    """`limits`: with the caps and lanes, or with none of them."""

    def __init__(self, *, limits: bool, seed: int = 1) -> None:
        self.limits = limits
        self.rnd = random.Random(seed)  # noqa: S311  no secret
        self.clock = Clock(0.0)
        self.events: list[tuple[float, int, Act]] = []
        self.number = 0
        self.upstream = Upstream()
        self.resource = resource(self.clock, tenant_tickets=REQUEST_CAP) if limits else None
        self.crew = Crew(LANES if limits else 0, LANES_PER_TENANT)
        self.requests: dict[str, list[float]] = {}
        self.jobs: dict[str, list[float]] = {}
        self.refused: dict[str, int] = {}
        self.most_at_once: dict[str, int] = {}
        for worker in range(WORKERS):
            self.crew.join(worker, worker % LANES if limits else 0)

    def at(self, when: float, act: Act) -> None:
        self.number += 1
        heappush(self.events, (when, self.number, act))

    def arrivals(self, every: float, until: float, act: Act) -> None:
        """A Poisson stream."""
        when = self.rnd.expovariate(1 / every)
        while when < until:
            self.at(when, act)
            when += self.rnd.expovariate(1 / every)

    def request(self, tenant: str) -> None:
        session = None
        if self.resource is not None:
            try:
                session = hold(self.resource, tenant)
            except ResourceBusyError:
                self.refused[tenant] = self.refused.get(tenant, 0) + 1
                return
        began = self.clock.now

        def serve() -> None:
            self.upstream.free -= 1
            self.at(self.clock.now + UPSTREAM_SECONDS, answered)

        def answered() -> None:
            self.upstream.free += 1
            if session is not None:
                session.end()
            self.requests.setdefault(tenant, []).append(self.clock.now - began)
            if self.upstream.line:
                self.upstream.line.popleft()()

        if self.upstream.free:
            serve()
        else:
            self.upstream.line.append(serve)

    def job(self, tenant: str) -> None:
        whose = tenant if self.limits else None  # with limits off there is one line for all
        self.given(self.crew.push("default", whose, (tenant, self.clock.now), JOB_CAP if self.limits else 0))

    def given(self, assignments: list[Assignment]) -> None:
        for worker, claim in assignments:
            self.run(worker, claim)

    def run(self, worker: object, claim: Claim) -> None:
        tenant, pushed = cast("tuple[str, float]", claim.job)
        running = self.crew.slots.running(tenant)
        self.most_at_once[tenant] = max(self.most_at_once.get(tenant, 0), running)

        def ended() -> None:
            self.jobs.setdefault(tenant, []).append(self.clock.now - pushed)
            turn = self.crew.turn(worker)
            if turn.claim is not None:
                self.run(worker, turn.claim)
            self.given(turn.others)

        self.at(self.clock.now + JOB_SECONDS, ended)

    def run_for(self, seconds: float) -> None:
        while self.events and self.events[0][0] <= seconds:
            self.clock.now, _, act = heappop(self.events)
            act()

    def quiet_request_p99(self) -> float:
        """Seconds, over the quiet tenants."""
        return p99([one for tenant in QUIET for one in self.requests[tenant]])

    def quiet_job_p99(self) -> float:
        """Seconds from push to end."""
        return p99([one for tenant in QUIET for one in self.jobs[tenant]])

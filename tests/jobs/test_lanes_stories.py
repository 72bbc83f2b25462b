"""Random stories on the pure queues, against the plainest model there is: lists of jobs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bulkhead.jobs.crew import Assignment, Crew
from bulkhead.jobs.lanes import Claim, LaneQueue
from bulkhead.jobs.rounds import SHORT
from bulkhead.jobs.slots import Slots

pytestmark = pytest.mark.timeout(400)

TENANTS = st.sampled_from([*(f"tenant-{number}" for number in range(6)), None])
QUEUES = st.integers(0, 1)
CAPS = st.integers(0, 3)


class QueueStory(RuleBasedStateMachine):
    """Two queues that share their slots.

    Each pushed job is claimed once, in its tenant's order, only on its tenant's lanes; caps are never exceeded; a lane
    is left empty-handed only if none of its tenants has a job that it may run; what says which lanes to wake is right.
    """

    @initialize(lanes=st.integers(0, 5), per_tenant=st.integers(1, 3))
    def begin(self, lanes: int, per_tenant: int) -> None:
        self.lanes = lanes or 1
        self.slots = Slots()
        self.queues = [LaneQueue(lanes, per_tenant, self.slots, name) for name in ("one", "two")]
        self.waiting: list[dict[str | None, list[int]]] = [{}, {}]
        self.claims: list[tuple[Claim, int]] = []
        self.caps: dict[str | None, int] = {}
        self.paused: set[str | None] = set()
        self.number = 0

    def running(self, tenant: str | None) -> int:
        return sum(claim.tenant == tenant for claim, _ in self.claims)

    def room(self, tenant: str | None) -> bool:
        cap = 0 if tenant is None else self.caps.get(tenant, 0)
        return tenant not in self.paused and (not cap or self.running(tenant) < cap)

    def runnable(self, queue: int, lane: int) -> set[str | None]:
        lanes_of = self.queues[queue].lanes_of
        return {
            tenant
            for tenant, jobs in self.waiting[queue].items()
            if jobs and lane in lanes_of(tenant) and self.room(tenant)
        }

    def waits(self, tenant: str | None) -> bool:
        return any(waiting.get(tenant) for waiting in self.waiting)

    def forget_cap(self, tenant: str | None) -> None:
        """A tenant that has nothing is not in there; its cap comes with the next push."""
        if not self.waits(tenant) and not self.running(tenant):
            self.caps.pop(tenant, None)

    @rule(queue=QUEUES, tenant=TENANTS, cap=CAPS)
    def push(self, queue: int, tenant: str | None, cap: int) -> None:
        self.number += 1
        lanes = self.queues[queue].push(tenant, self.number, cap)
        self.caps[tenant] = cap
        self.waiting[queue].setdefault(tenant, []).append(self.number)
        assert lanes == (self.queues[queue].lanes_of(tenant) if self.room(tenant) else ())

    @rule(queue=QUEUES, tenant=TENANTS, cap=CAPS, more=st.integers(SHORT - 2, SHORT + 2))
    def push_many(self, queue: int, tenant: str | None, cap: int, more: int) -> None:
        for _ in range(more):
            self.push(queue, tenant, cap)

    @rule(queue=QUEUES, lane=st.integers(0, 4))
    def claim(self, queue: int, lane: int) -> None:
        lane %= self.lanes
        may = self.runnable(queue, lane)
        claim = self.queues[queue].claim(lane)
        if claim is None:
            assert not may, "work-conserving"
            return
        assert claim.tenant in may
        assert claim.job == self.waiting[queue][claim.tenant].pop(0)
        assert claim.queue is self.queues[queue]
        assert claim.lane == lane
        assert not claim.ended
        self.claims.append((claim, queue))

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 100), how=st.sampled_from(["finish", "give back"]))
    def end(self, which: int, how: str) -> None:
        claim, queue = self.claims[which % len(self.claims)]
        tenant = claim.tenant
        before = self.room(tenant)
        self.claims.remove((claim, queue))
        if how == "finish":
            lanes = self.queues[queue].finish(claim)
            news = not before and self.room(tenant) and self.waits(tenant)
        else:
            lanes = self.queues[queue].give_back(claim)
            assert isinstance(claim.job, int)
            self.waiting[queue].setdefault(tenant, []).insert(0, claim.job)
            news = self.room(tenant)
        assert lanes == (self.queues[queue].lanes_of(tenant) if news else ())
        assert claim.ended
        self.forget_cap(tenant)
        assert self.queues[queue].finish(claim) == ()
        assert self.queues[queue].give_back(claim) == ()

    @rule(tenant=TENANTS, cap=CAPS)
    def recap(self, tenant: str | None, cap: int) -> None:
        before = self.room(tenant)
        known = tenant in self.slots.tenants()
        lanes = self.slots.recap(tenant, cap)
        if known:
            self.caps[tenant] = cap
        news = not before and self.room(tenant) and self.waits(tenant)
        assert lanes == (self.queues[0].lanes_of(tenant) if news else ())

    @rule(tenant=TENANTS)
    def pause(self, tenant: str | None) -> None:
        self.slots.pause(tenant)
        self.paused.add(tenant)
        assert self.slots.paused == self.paused

    @rule(tenant=TENANTS)
    def resume(self, tenant: str | None) -> None:
        before = self.room(tenant)
        lanes = self.slots.resume(tenant)
        self.paused.discard(tenant)
        assert self.slots.paused == self.paused
        news = not before and self.room(tenant) and self.waits(tenant)
        assert lanes == (self.queues[0].lanes_of(tenant) if news else ())

    @rule(queue=QUEUES, tenant=TENANTS)
    def take(self, queue: int, tenant: str | None) -> None:
        assert self.queues[queue].take(tenant) == self.waiting[queue].pop(tenant, [])
        self.forget_cap(tenant)

    @rule(queue=QUEUES)
    def take_all(self, queue: int) -> None:
        left = self.queues[queue].take_all()
        for tenant, jobs in self.waiting[queue].items():
            assert [job for whose, job in left if whose == tenant] == jobs
        assert len(left) == sum(map(len, self.waiting[queue].values()))
        self.waiting[queue].clear()
        for tenant in list(self.caps):
            self.forget_cap(tenant)

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        if not hasattr(self, "queues"):
            return
        active: set[str | None] = {claim.tenant for claim, _ in self.claims}
        for queue, waiting in zip(self.queues, self.waiting, strict=True):
            assert len(queue) == sum(map(len, waiting.values()))
            assert queue.tenants == sum(map(bool, waiting.values()))
            for tenant, jobs in waiting.items():
                assert queue.waiting(tenant) == len(jobs)
                if jobs:
                    active.add(tenant)
        assert set(self.slots.tenants()) == active, "memory holds those that have jobs, and nobody else"
        assert self.slots.total_running() == len(self.claims)
        for tenant in active:
            assert self.slots.running(tenant) == self.running(tenant)
            assert self.slots.waiting(tenant) == sum(len(waiting.get(tenant, ())) for waiting in self.waiting)


class CrewStory(RuleBasedStateMachine):
    """Workers come and go, get jobs, end and drop them: nobody idles beside a job that he may run, and none is lost."""

    @initialize(lanes=st.integers(0, 4), per_tenant=st.integers(1, 3), spare=st.integers(0, 3))
    def begin(self, lanes: int, per_tenant: int, spare: int) -> None:
        self.crew = Crew(lanes, per_tenant)
        self.lanes = lanes or 1
        self.jobs = 0
        self.pushed: set[int] = set()
        self.done: list[int] = []
        self.doing: dict[int, int] = {}
        self.idle: set[int] = set()
        self.away: set[int] = set()
        self.caps: dict[str | None, int] = {}
        self.workers = 0
        for _ in range(self.lanes + spare):
            self.join()

    @rule()
    def join(self) -> None:
        self.workers += 1
        turn = self.crew.join(self.workers, self.workers % self.lanes)
        self.took(self.workers, turn.claim)
        self.given(turn.others)

    def took(self, worker: int, claim: Claim | None) -> None:
        if claim is None:
            self.idle.add(worker)
            return
        assert isinstance(claim.job, int)
        assert claim.lane == worker % self.lanes
        assert claim.job not in self.doing.values()
        assert claim.job not in self.done
        assert worker not in self.doing
        self.doing[worker] = claim.job

    def given(self, assignments: list[Assignment]) -> None:
        for worker, claim in assignments:
            assert isinstance(worker, int)
            assert self.crew.held(worker) is claim
            self.idle.remove(worker)
            self.took(worker, claim)

    @rule(queue=st.sampled_from(["one", "two"]), tenant=TENANTS, cap=CAPS)
    def push(self, queue: str, tenant: str | None, cap: int) -> None:
        self.jobs += 1
        job = self.jobs
        self.pushed.add(job)
        self.caps[tenant] = cap
        self.given(self.crew.push(queue, tenant, job, cap))

    @precondition(lambda self: self.doing)
    @rule(which=st.integers(0, 100), how=st.sampled_from(["turn", "end", "give back", "leave"]))
    def end(self, which: int, how: str) -> None:
        worker = sorted(self.doing)[which % len(self.doing)]
        job = self.doing.pop(worker)
        if how in {"turn", "end"}:
            self.done.append(job)
        if how == "turn":
            turn = self.crew.turn(worker)
            self.took(worker, turn.claim)
            self.given(turn.others)
            return
        self.away.add(worker)
        if how == "end":
            self.given(self.crew.end(worker))
        elif how == "give back":
            self.given(self.crew.give_back(worker))
        else:
            self.away.discard(worker)
            self.given(self.crew.leave(worker))
            with pytest.raises(KeyError):
                self.crew.held(worker)

    @precondition(lambda self: self.away or self.idle)
    @rule(which=st.integers(0, 100))
    def ask_again(self, which: int) -> None:
        everybody = sorted(self.away | self.idle)
        worker = everybody[which % len(everybody)]
        self.away.discard(worker)
        self.idle.discard(worker)
        turn = self.crew.turn(worker)
        self.took(worker, turn.claim)
        self.given(turn.others)

    @rule(tenant=TENANTS, how=st.sampled_from(["pause", "resume", "take", "recap"]), cap=CAPS)
    def change(self, tenant: str | None, how: str, cap: int) -> None:
        if how == "pause":
            self.crew.pause(tenant)
        elif how == "resume":
            self.given(self.crew.resume(tenant))
        elif how == "take":
            self.pushed -= {job for _, job in self.crew.take(tenant) if isinstance(job, int)}
        else:
            self.given(self.crew.recap(tenant, cap))

    @invariant()
    def nobody_idles_beside_a_job(self) -> None:
        if not hasattr(self, "crew"):
            return
        assert self.crew.idle == len(self.idle)
        for worker in self.idle:
            for queue in self.crew._turns:
                claim = queue.claim(worker % self.lanes)
                assert claim is None, "a lone job always finds an awake worker of its lane"

    @invariant()
    def no_job_is_lost_or_twice_there(self) -> None:
        if not hasattr(self, "crew"):
            return
        assert self.crew.running() == len(self.doing)
        assert len(self.done) == len(set(self.done))
        assert self.crew.waiting() + len(self.doing) + len(self.done) == len(self.pushed)

    def teardown(self) -> None:
        if not hasattr(self, "crew"):
            return
        self.crew.stop()
        left = Counter(job for _, _, job in self.crew.take_all())
        assert left + Counter(self.doing.values()) + Counter(self.done) == Counter(dict.fromkeys(self.pushed, 1))


TestQueues: Any = QueueStory.TestCase
TestCrew: Any = CrewStory.TestCase

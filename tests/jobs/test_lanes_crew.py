"""Stories on a crew: which worker gets which job, and when. Faults of others by their number."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

import pytest

from bulkhead.hashing import shuffle_shard
from bulkhead.jobs.crew import Crew

if TYPE_CHECKING:
    from bulkhead.jobs.lanes import Claim


class Run:
    """A crew in virtual time: jobs are their own seconds."""

    def __init__(self, crew: Crew, workers: int) -> None:
        self.crew, self.now, self.number = crew, 0.0, count()
        self.busy: list[tuple[float, int, object]] = []
        self.order: list[str | None] = []
        self.most = 0
        for worker in range(workers):
            self.took(worker, crew.join(worker, worker % (crew.lanes or 1)).claim)

    def took(self, worker: object, claim: Claim | None) -> None:
        if claim is not None:
            assert isinstance(claim.job, float)
            self.order.append(claim.tenant)
            heappush(self.busy, (self.now + claim.job, next(self.number), worker))
            self.most = max(self.most, len(self.busy))

    def push(self, tenant: str | None, seconds: float, cap: int = 0, queue: str = "default") -> None:
        for worker, claim in self.crew.push(queue, tenant, seconds, cap):
            self.took(worker, claim)

    def until_idle(self) -> float:
        while self.busy:
            self.now, _, worker = heappop(self.busy)
            turn = self.crew.turn(worker)
            self.took(worker, turn.claim)
            for other, claim in turn.others:
                self.took(other, claim)
        return self.now


def test_a_cap_of_1_runs_one_job_right_after_the_other() -> None:
    """Known fault 77: 50 jobs of 10 ms take half a second, and never two run."""
    run = Run(Crew(), workers=4)
    for _ in range(50):
        run.push("a", 0.010, cap=1)
    assert run.until_idle() == pytest.approx(0.5)
    assert run.most == 1
    assert len(run.order) == 50


def test_a_cap_costs_its_tenant_no_turns() -> None:
    """One without a cap among nine of cap 1, 8 workers: each gets a tenth."""
    run = Run(Crew(), workers=8)
    for _ in range(400):
        for tenant in range(10):
            run.push(f"tenant-{tenant}", 1.0, cap=int(tenant > 0))
    run.until_idle()
    first = Counter(run.order[:2000])
    assert max(first.values()) - min(first.values()) <= 2


@pytest.mark.parametrize("tenant", ["a", None])
def test_with_lanes_off_a_tenant_alone_uses_every_worker(tenant: str | None) -> None:
    """Known fault 83."""
    run = Run(Crew(), workers=8)
    for _ in range(16):
        run.push(tenant, 1.0)
    assert run.until_idle() == 2.0
    assert run.most == 8


def test_with_lanes_a_tenant_uses_its_own_and_no_tenant_uses_all() -> None:
    crew = Crew(8, 2)
    run = Run(crew, workers=16)
    for _ in range(16):
        run.push("noisy", 1.0)
    assert run.most == 4
    assert {worker % 8 for _, _, worker in run.busy if isinstance(worker, int)} == set(shuffle_shard("noisy", 8, 2))
    for _ in range(16):
        run.push(None, 1.0)
    assert run.most == 16


def test_the_queues_of_a_crew_are_served_in_turn() -> None:
    crew = Crew()
    for number in range(4):
        for queue in ("one", "two", "three"):
            crew.push(queue, "a", number)
    for _ in range(4):
        crew.push("late", "a", 0)
    turn, names = crew.join("worker"), list[str]()
    while turn.claim is not None:
        names.append(turn.claim.queue.name)
        turn = crew.turn("worker")
    assert names == ["one", "two", "three", "late"] * 4
    assert crew.queues() == ["one", "two", "three", "late"]
    assert crew.waiting() == crew.waiting("one") == crew.waiting("unheard") == crew.running() == 0


def test_a_job_finds_the_idle_worker_of_the_other_lane() -> None:
    """Woken and looking for itself, the worker of lane 0 takes U's job, that of lane 2 finds nothing, and T waits."""
    names = {shuffle_shard(f"t-{number}", 3, 2): f"t-{number}" for number in range(100)}
    crew = Crew(3, 2)
    for lane in range(3):
        assert crew.join(lane, lane).claim is None
    given = crew.push("default", names[0, 2], "U") + crew.push("default", names[0, 1], "T")
    assert {claim.job for _, claim in given} == {"U", "T"}
    assert len({worker for worker, _ in given}) == 2


def test_a_job_that_its_own_worker_does_not_take_goes_to_an_idle_one() -> None:
    names = {shuffle_shard(f"t-{number}", 3, 2): f"t-{number}" for number in range(100)}
    t, u = names[0, 1], names[0, 2]
    v = next(name for name in map("v-{}".format, range(100)) if shuffle_shard(name, 3, 2) == (0, 2))
    crew = Crew(3, 2)
    crew.push("default", t, "T1", cap=1)
    assert crew.join(0, 0).claim is not None
    crew.push("default", u, "U1")
    assert crew.join(2, 2).claim is not None
    assert crew.join(1, 1).claim is None
    crew.push("default", v, "V1")
    crew.push("default", t, "T2", cap=1)
    assert crew.idle == 1
    turn = crew.turn(0)
    assert turn.claim is not None
    assert turn.claim.job == "V1"
    assert [(worker, claim.job) for worker, claim in turn.others] == [(1, "T2")]


def test_a_worker_takes_the_next_job_of_its_tenant_itself() -> None:
    """No other thread is disturbed for it."""
    crew = Crew()
    for worker in range(3):
        crew.join(worker)
    ((owner, _),) = crew.push("default", "a", 0, cap=1)
    assert crew.push("default", "a", 1, cap=1) == []
    turn = crew.turn(owner)
    assert turn.claim is not None
    assert turn.claim.job == 1
    assert turn.others == []
    assert crew.held(owner) is turn.claim


def test_what_a_dead_worker_held_is_the_next_job_of_its_tenant() -> None:
    """Known fault 84."""
    crew = Crew()
    crew.join("one")
    crew.push("default", "a", 0, cap=1)
    crew.push("default", "a", 1, cap=1)
    assert crew.leave("one") == []
    turn = crew.join("two")
    assert turn.claim is not None
    assert turn.claim.job == 0


def test_a_job_that_is_given_back_goes_to_an_idle_worker() -> None:
    """Known fault 84."""
    crew = Crew()
    crew.join("one")
    crew.push("default", "a", 0, cap=1)
    crew.join("two")
    ((worker, claim),) = crew.give_back("one")
    assert (worker, claim.job) == ("two", 0)
    assert crew.held("one") is None
    assert crew.running() == 1


def test_a_stopped_crew_gives_nobody_anything_and_says_what_is_left() -> None:
    """Known fault 84: three run, five wait."""
    crew = Crew()
    for number in range(8):
        crew.push("default", "a" if number % 2 else None, number)
    held = [crew.join(worker).claim for worker in range(3)]
    crew.stop()
    assert crew.push("default", "b", 8) == []
    assert crew.turn(0).claim is None
    assert crew.idle == 0
    assert crew.give_back(1) == []
    left = {job for _, _, job in crew.take_all()}
    assert held[0] is not None
    assert held[2] is not None
    assert left == set(range(9)) - {held[0].job, held[2].job}
    assert crew.waiting() == 0
    assert crew.running() == 1


def test_a_raised_cap_frees_as_many_jobs_as_it_allows() -> None:
    crew = Crew()
    for worker in range(8):
        crew.join(worker)
    for number in range(8):
        crew.push("default", "a", number, cap=1)
    assert crew.running() == 1
    assert len(crew.recap("a", 3)) == 2
    assert crew.recap("a", 2) == []
    assert crew.running() == 3
    assert len(crew.push("default", "a", 8)) == 5
    assert crew.idle == 0


def test_a_paused_tenant_stays_paused_without_jobs() -> None:
    crew = Crew()
    crew.join("worker")
    crew.pause("a")
    assert crew.push("default", "a", 0) == []
    assert crew.take("a") == [("default", 0)]
    assert crew.slots.tenants() == []
    assert crew.push("default", "a", 1) == []
    ((_, claim),) = crew.resume("a")
    assert claim.job == 1
    assert crew.slots.paused == frozenset()

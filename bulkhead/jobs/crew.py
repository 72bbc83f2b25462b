"""The workers of a runner, its queues, and who is given which job. Pure: no lock, no clock, no I/O, no user code.

A job that can run is *handed* to an idle worker, in the same locked call that made it runnable. To wake a worker that
then looks for itself would lose jobs for a while, since lane sets overlap: one woken for T, of lanes 0 and 1, finds an
older U, of lanes 0 and 2, that another was woken for; that other finds nothing, and T waits beside an idle worker of
lane 1.

Threads and event loops are the owner's: it delivers each assignment to that worker, which waits for nothing else. What
a worker holds is noted here until it ends, so a hand-over that was interrupted is found again (`held`), and `leave`
gives back what a dead worker had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bulkhead.jobs.lanes import LaneQueue
from bulkhead.jobs.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from bulkhead.jobs.lanes import Claim

    Waiting = tuple[str, str | None, object]  # queue, tenant, job

__all__ = ["Assignment", "Crew", "Turn"]


class Assignment(NamedTuple):
    """A worker that was idle, and the job that it has now."""

    worker: Hashable
    claim: Claim


class Turn(NamedTuple):
    """What a worker does next, None for waiting to be given something; and what idle workers do now."""

    claim: Claim | None
    others: list[Assignment]


class Seat:
    """One worker: its lane, and the claim that it holds."""

    __slots__ = ("claim", "lane")

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.claim: Claim | None = None


class Crew:
    """Workers and queues.

    Invariant, after each call and until `stop`: no idle worker's lane has a job that may be claimed. A worker is idle
    (its last `join` or `turn` gave no claim), holds a claim, or is away (after `end`, `give_back` and `stop`).

    Every lane needs a worker, or the jobs that have no other lane wait: `lanes` is at most the number of workers.
    KeyError: the worker has not joined, or has left. ValueError: it joined before, or a number is out of range.
    """

    __slots__ = ("_idle", "_queues", "_seats", "_stopped", "_turns", "lanes", "lanes_per_tenant", "slots")

    def __init__(self, lanes: int = 0, lanes_per_tenant: int = 2) -> None:
        self.lanes, self.lanes_per_tenant = lanes, lanes_per_tenant
        self.slots = Slots()
        self._queues: dict[str, LaneQueue] = {}
        self._turns: list[LaneQueue] = []
        self._seats: dict[Hashable, Seat] = {}
        self._idle: list[dict[Hashable, Seat]] = [{} for _ in range(lanes or 1)]
        self._stopped = False
        LaneQueue(lanes, lanes_per_tenant, self.slots)  # out of range: now, not at the first job

    @property
    def idle(self) -> int:
        """Workers that wait to be given a job."""
        return sum(map(len, self._idle))

    def waiting(self, queue: str | None = None) -> int:
        """Jobs that wait, of one queue or of all."""
        if queue is None:
            return sum(map(len, self._turns))
        return len(self._queues[queue]) if queue in self._queues else 0

    def running(self) -> int:
        """Claims that have not ended."""
        return self.slots.total_running()

    def queues(self) -> list[str]:
        """Names of the queues that were pushed to."""
        return list(self._queues)

    def held(self, worker: Hashable) -> Claim | None:
        """The claim of this worker, if it has one."""
        return self._seats[worker].claim

    def join(self, worker: Hashable, lane: int = 0) -> Turn:
        """A new worker of this lane asks for the first time."""
        if worker in self._seats:
            raise ValueError("this worker has joined already")
        if not 0 <= lane < len(self._idle):
            raise ValueError(f"there is no lane {lane}: there are {len(self._idle)}")
        self._seats[worker] = Seat(lane)
        return self.turn(worker)

    def turn(self, worker: Hashable) -> Turn:
        """The claim that this worker holds has ended, and it takes its next one, or is idle from now on."""
        seat = self._seats[worker]
        freed = self._finished(seat)
        if self._stopped:
            return Turn(None, [])
        claim = seat.claim = self._next(seat.lane)
        idle = self._idle[seat.lane]
        if claim is None:
            idle[worker] = seat
        elif worker in idle:  # it did not wait for what it was to be given
            del idle[worker]
        return Turn(claim, self._offer(freed))

    def end(self, worker: Hashable) -> list[Assignment]:
        """The claim that this worker holds has ended; it takes no other and is away."""
        seat = self._away(worker)
        return self._offer(self._finished(seat))

    def give_back(self, worker: Hashable) -> list[Assignment]:
        """What this worker holds was not run: the first of its tenant's line again. The worker is away."""
        seat = self._away(worker)
        claim, seat.claim = seat.claim, None
        return [] if claim is None else self._offer(claim.queue.give_back(claim))

    def leave(self, worker: Hashable) -> list[Assignment]:
        """This worker is gone; what it held is given back."""
        given = self.give_back(worker)
        del self._seats[worker]
        return given

    def push(self, queue: str, tenant: str | None, job: object, cap: int = 0) -> list[Assignment]:
        """A job that is due. `cap`: how many of this tenant may run at once from now on, 0 for no limit."""
        return self._offer(self._queue(queue).push(tenant, job, cap))

    def recap(self, tenant: str | None, cap: int) -> list[Assignment]:
        """Change the cap of a tenant that has jobs (0 for no limit); what runs above it ends as it would."""
        return self._offer(self.slots.recap(tenant, cap))

    def pause(self, tenant: str | None) -> None:
        """Let no more jobs of this tenant start (None: of those without one)."""
        self.slots.pause(tenant)

    def resume(self, tenant: str | None) -> list[Assignment]:
        """End a pause."""
        return self._offer(self.slots.resume(tenant))

    def take(self, tenant: str | None) -> list[tuple[str, object]]:
        """Remove what waits of this tenant, and return it as (queue, job)."""
        return [(queue.name, job) for queue in self._turns for job in queue.take(tenant)]

    def take_all(self) -> list[tuple[str, str | None, object]]:
        """Remove everything that waits, and return it as (queue, tenant, job)."""
        return [(queue.name, tenant, job) for queue in self._turns for tenant, job in queue.take_all()]

    def in_line(self) -> list[object]:
        """The jobs that wait, each tenant's oldest first; also after a call that was interrupted."""
        return [job for queue in self._queues.values() for job in queue.in_line()]

    def begin_anew(
        self, lanes: Mapping[Hashable, int], held: Mapping[Hashable, Waiting], waiting: Iterable[Waiting]
    ) -> list[Assignment]:
        """Make everything anew: after a call that was interrupted nothing here need be whole.

        `lanes`: of all workers. `held`: what they run. Caps and pauses stay; a worker that holds nothing is idle.
        """
        before, paused, names = self.slots.table, self.slots.paused, list(self._queues)
        self.slots, self._queues, self._turns = Slots(), {}, []
        self._seats = {worker: Seat(lane) for worker, lane in lanes.items()}
        self._idle = [{} for _ in self._idle]
        for tenant in paused:
            self.slots.pause(tenant)
        for name in names:
            self._queue(name)
        for queue, tenant, job in waiting:
            cap = before[tenant].number if tenant in before else 0
            self._queue(queue).push(tenant, job, cap)
        for worker, (queue, tenant, job) in held.items():
            cap = before[tenant].number if tenant in before else 0
            into = self._queue(queue)
            self._seats[worker].claim = into.hold(tenant, job, self._seats[worker].lane, cap)
        turns = [(worker, self.turn(worker)) for worker in self._seats if worker not in held]
        return [Assignment(worker, turn.claim) for worker, turn in turns if turn.claim is not None]

    def stop(self) -> None:
        """From now on nobody is given anything; what is pushed waits for `take_all`."""
        self._stopped = True
        for idle in self._idle:
            idle.clear()

    def _queue(self, name: str) -> LaneQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = LaneQueue(self.lanes, self.lanes_per_tenant, self.slots, name)
            self._turns.append(queue)
        return queue

    def _away(self, worker: Hashable) -> Seat:
        seat = self._seats[worker]
        self._idle[seat.lane].pop(worker, None)
        return seat

    def _finished(self, seat: Seat) -> tuple[int, ...]:
        claim, seat.claim = seat.claim, None
        return () if claim is None else claim.queue.finish(claim)

    def _next(self, lane: int) -> Claim | None:
        """The next job of a lane. The queues take turns; as in a round, only the one that was served moves back."""
        turns = self._turns
        for place, queue in enumerate(turns):
            claim = queue.claim(lane)
            if claim is not None:
                if len(turns) > 1:
                    del turns[place]
                    turns.append(queue)
                return claim
        return None

    def _offer(self, lanes: tuple[int, ...]) -> list[Assignment]:
        """Hand what one tenant may run now to idle workers of its lanes."""
        given: list[Assignment] = []
        for lane in lanes:
            idle = self._idle[lane]
            while idle:
                claim = self._next(lane)
                if claim is None:  # by the invariant there was nothing but this tenant's
                    return given
                worker, seat = idle.popitem()  # the one that was busy last: its caches are warm
                seat.claim = claim
                given.append(Assignment(worker, claim))
        return given

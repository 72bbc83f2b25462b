"""One queue of jobs, shared fairly by tenants: who is served next on which lane.

Rules of this file. It is pure: no lock, no clock, no I/O, no user code; its owner calls everything under one lock, and
pushes a job when it is due, not before. A lane is served by its workers; a tenant's jobs run on the lanes that
`hashing.shuffle_shard` gives it, with `lanes=0` on the only lane there is, 0. Jobs without a tenant (None) have one
place in the round together, on every lane, and no cap.

A lane serves the tenants of its round (rounds.py) one job each. A tenant at its cap stays where it is until a lane's
turn comes to it; then the lane goes past it, once, and that is noted. When one of its jobs ends, it is back at the head
of the lanes that went past it: its turn was not lost to those without a cap. So nobody looks twice at a tenant that
cannot run: every method costs O(lanes of the tenant), amortised, however many wait.

An exception that a signal handler raises in the middle of a call costs at most that call's job and its slot. It never
stops a lane: what is half done there is a line without jobs, which the next claim that comes upon it clears away, or
one that stands in two places of a lane, until it has no jobs.

Which worker to wake: one worker that is idle on any of the lanes that `push`, `finish`, `give_back` and the changes of
limits return. To wake a worker that looks for itself is not enough, because lane sets overlap: see crew.py, which does
this right. Of tenants without jobs a few thousand are remembered, and one for each job that waits.
"""

from __future__ import annotations

from collections import deque
from math import inf

from bulkhead.hashing import shuffle_shard
from bulkhead.jobs.rounds import AWAY, FEW, MOST, NOTHING, Line, Place, Round
from bulkhead.jobs.slots import NOWHERE, Account, Slots, account_of

__all__ = ["Claim", "LaneQueue"]

KNOWN = 4096  # lines without jobs that are remembered, beyond one for each job that waits


class Claim:
    """The right, and the duty, to run one job: it holds one of the tenant's slots until `finish` or `give_back`."""

    __slots__ = ("account", "ended", "job", "lane", "queue")

    def __init__(self, account: Account, job: object, queue: LaneQueue, lane: int) -> None:
        self.account = account
        self.job = job
        self.queue = queue
        self.lane = lane
        self.ended = False

    @property
    def tenant(self) -> str | None:
        """Whose job it is."""
        return self.account.tenant

    def __repr__(self) -> str:
        return f"<Claim on {self.queue.name!r}, lane {self.lane}{', ended' if self.ended else ''}>"


class LaneQueue:
    """One named queue.

    Invariant: a line with jobs is in the round of each of its lanes, but for those noted in its account as having gone
    past it (slots.py). `lanes` and `lanes_per_tenant`: 0 and up, 1 and up; queues that share
    `slots` have the same ones. ValueError otherwise.
    """

    __slots__ = ("_kept", "_length", "_lines", "_places", "_rounds", "lanes", "lanes_per_tenant", "name", "slots")

    def __init__(
        self, lanes: int = 0, lanes_per_tenant: int = 2, slots: Slots | None = None, name: str = "default"
    ) -> None:
        if lanes < 0 or lanes_per_tenant < 1:
            raise ValueError("lanes must be 0 or more, and lanes_per_tenant 1 or more")
        self.lanes, self.lanes_per_tenant, self.name = lanes, lanes_per_tenant, name
        self.slots = Slots() if slots is None else slots
        if self.slots.shape not in {None, (lanes, lanes_per_tenant)}:
            raise ValueError("queues that share slots must have the same lanes and lanes_per_tenant")
        self.slots.shape = lanes, lanes_per_tenant
        self._rounds: tuple[Round, ...] = tuple(Round(number) for number in range(lanes or 1))
        self._lines: dict[str | None, Line] = {}
        self._length = 0
        self._kept: deque[Line] = deque()
        self._places: dict[tuple[int, ...], Place] = {}

    def __len__(self) -> int:
        """Waiting jobs."""
        return max(self._length, 0)  # a `push` that was interrupted may have missed its job

    @property
    def tenants(self) -> int:
        """How many tenants have waiting jobs; those without a tenant count as one."""
        return sum(1 for line in self._lines.values() if line.first is not NOTHING)

    def waiting(self, tenant: str | None) -> int:
        """How many jobs of this tenant wait here."""
        line = self._lines.get(tenant)
        return 0 if line is None else line.length()

    def lanes_of(self, tenant: str | None) -> tuple[int, ...]:
        """The lanes on which the jobs of this tenant run."""
        line = self._lines.get(tenant)
        return (self._place(tenant) if line is None else line.place).lanes

    def push(self, tenant: str | None, job: object, cap: int = 0) -> tuple[int, ...]:
        """Put a job at the end of its tenant's line, and let `cap` of the tenant run at once from now on (0 = any).

        Returns the lanes of which one worker may take it now, () if the tenant is at its cap or paused.
        """
        line = self._lines.get(tenant) or self._open(tenant, cap)
        account: Account = line.home or line  # type: ignore[assignment]  # account_of(line), without a call
        line.add(job)
        account.waiting += 1
        self._length += 1
        if account.cap != (cap or inf) and tenant is not None:
            self.slots.recap(tenant, cap)
        if account.running >= account.limit:
            return NOWHERE
        if account.passed:  # a `finish` was interrupted
            account.come_back()
        return account.lanes

    def claim(self, lane: int) -> Claim | None:
        """The next job of this lane, or None if no tenant of the lane may run one. IndexError: no such lane."""
        here = self._rounds[lane]
        lines = here.lines
        while lines:
            line = lines[0]
            job, marks, place = line.first, line.marks, line.place
            shift = place.shifts[lane]
            if job is NOTHING:
                line.marks = marks | AWAY << shift
                lines.popleft()
                continue
            if 0 < marks >> shift & AWAY < AWAY:  # it was served out of turn
                line.marks = marks - (1 << shift)
                lines.rotate(-1)
                continue
            account: Account = line.home or line  # type: ignore[assignment]
            if account.running >= account.limit:
                if account.passed is None:
                    account.passed = []
                account.passed.append((line, here))
                line.marks = marks | AWAY << shift
                lines.popleft()
                continue
            for each in place.shifts.values():
                if each != shift and marks >> each & AWAY < MOST:
                    marks += 1 << each
            more = line.more
            if more:
                line.marks = marks & ~(AWAY << shift)
                line.first = more.pop(0) if type(more) is list else more.popleft()  # type: ignore[union-attr]
                lines.rotate(-1)
            else:
                line.marks = marks | AWAY << shift
                line.first, line.more = NOTHING, None
                lines.popleft()
                if not line.kept:
                    self._keep(line)
            account.running += 1
            account.waiting -= 1
            self._length -= 1
            return Claim(account, job, self, lane)
        here.most = FEW
        return None

    def finish(self, claim: Claim) -> tuple[int, ...]:
        """The job has ended, however. The second time this does nothing.

        Returns the lanes of which one worker may take a job now that none could take before: the tenant was at its
        cap, and has jobs waiting, maybe in another queue of these slots.
        """
        if claim.ended:
            return NOWHERE
        claim.ended = True
        account = claim.account
        running = account.running = account.running - 1
        if not account.waiting:
            if not running and not account.lines:
                self.slots.table.pop(account.tenant, None)
            return NOWHERE
        if running >= account.limit:
            return NOWHERE
        if account.passed:
            account.come_back()
        return account.lanes if account.limit <= running + 1 else NOWHERE

    def give_back(self, claim: Claim) -> tuple[int, ...]:
        """The job was not run: it is the first of its tenant's line again. Else as `finish`."""
        if claim.ended:
            return NOWHERE
        account = claim.account
        line = self._lines.get(account.tenant) or self._open(account.tenant, 0)
        line.put_first(claim.job)
        account.waiting += 1
        self._length += 1
        self.finish(claim)
        return account.lanes if account.running < account.limit else NOWHERE

    def hold(self, tenant: str | None, job: object, lane: int, cap: int) -> Claim:
        """A claim for a job that runs already, whatever the cap."""
        account = self.slots.table.get(tenant) or self.slots.open(tenant, self._place(tenant), cap)
        account.running += 1
        return Claim(account, job, self, lane)

    def in_line(self) -> list[object]:
        """The jobs that wait, each tenant's oldest first."""
        return [job for line in self._lines.values() for job in line.jobs()]

    def take(self, tenant: str | None) -> list[object]:
        """Remove the waiting jobs of this tenant and return them, oldest first. What runs goes on."""
        line = self._lines.pop(tenant, None)
        if line is None:
            return []
        account = account_of(line)
        jobs = line.empty()
        if account.passed:
            account.passed = [entry for entry in account.passed if entry[0] is not line]
        account.waiting -= len(jobs)
        self._length -= len(jobs)
        self._let_go(account)
        return jobs

    def take_all(self) -> list[tuple[str | None, object]]:
        """Remove everything that waits and return it as (tenant, job)."""
        return [(tenant, job) for tenant in list(self._lines) for job in self.take(tenant)]

    def _open(self, tenant: str | None, cap: int) -> Line:
        place = self._place(tenant)
        account = self.slots.table.get(tenant) or self.slots.open(tenant, place, cap)
        account.lines += 1
        at_home = account.place.rounds[0] is place.rounds[0]
        line = self._lines[tenant] = account if at_home else Line(account, place)
        return line

    def _keep(self, line: Line) -> None:
        """Remember a line that has no jobs left: to make one takes longer than all the rest."""
        line.kept = True
        self._kept.append(line)
        if len(self._kept) <= KNOWN + self._length:
            return
        for _ in range(2):
            line = self._kept.popleft()
            line.kept = False
            account = account_of(line)
            if line.first is NOTHING and self._lines.get(account.tenant) is line:
                del self._lines[account.tenant]
                self._let_go(account)

    def _let_go(self, account: Account) -> None:
        """One line less refers to it."""
        account.lines -= 1
        if not (account.lines or account.waiting or account.running):
            self.slots.table.pop(account.tenant, None)

    def _place(self, tenant: str | None) -> Place:
        if tenant is None or not self.lanes:
            lanes = tuple(range(len(self._rounds)))
        else:
            lanes = shuffle_shard(tenant, self.lanes, self.lanes_per_tenant)
        place = self._places.get(lanes)
        if place is None:
            if len(self._places) >= KNOWN:
                self._places.clear()
            place = self._places[lanes] = Place(lanes, tuple([self._rounds[lane] for lane in lanes]))
        return place

    def __repr__(self) -> str:
        return f"<LaneQueue {self.name!r}: {self._length} jobs of {self.tenants} tenants wait>"

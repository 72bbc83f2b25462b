"""What the memory backend keeps, under one lock, and the steps that its parts share.

The parts are memory.py (jobs come, workers, what has no event of its own), people.py (limits change, people ask),
ending.py (the end) and mending.py (after an interruption); `MemoryBackend` is all of them. Rules for a change: a job
that is not dead is in `_jobs` and in exactly one place (a line of the crew, later, unknown, a seat), and changes it in
one locked call, `with self._lock, self._step:`. What an exception cuts short there `_repair` puts right. No user code
runs under the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from bulkhead.jobs.aside import Later, Unknown
from bulkhead.jobs.backlog import Backlog
from bulkhead.jobs.crew import Assignment, Crew
from bulkhead.jobs.dead import Dead
from bulkhead.jobs.handlers import registry
from bulkhead.jobs.numbers import Numbers
from bulkhead.jobs.options import Caps
from bulkhead.jobs.records import Entry, Run
from bulkhead.log_lines import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.settings.parts import Jobs

EVERYBODY: Final = cast("Any", object())
"""In place of a tenant: all of them, and jobs without one."""


class Seat:
    """One worker of a runner."""

    __slots__ = ("number", "run")

    def __init__(self, number: int) -> None:
        self.number = number
        self.run: Run | None = None
        """What it is to run, or runs."""

    def wake(self) -> None:
        """There is something in `run`, or the runner stops. In any thread, the backend's lock held; must not raise."""
        raise NotImplementedError


class Step:
    """A change of several steps. `torn`: one did not reach its end."""

    __slots__ = ("_again", "torn")

    def __init__(self) -> None:
        self.torn = self._again = False

    def __enter__(self) -> None:
        self._again = self.torn  # a signal handler's, inside another one: then that is not known to be whole
        self.torn = True

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._again:
            self.torn = False


class Kept:
    """The jobs of one runner, and its workers."""

    def __init__(
        self,
        options: Jobs,
        clock: Callable[[], float],
        chance: Callable[[], float],
        alarm: Callable[[], object],
    ) -> None:
        self.clock, self._chance = clock, chance
        self._alarm = alarm
        """Called when `look` is to be called earlier than it said. As `Seat.wake`."""
        self.options, self.caps = options, Caps(options)
        self.numbers = Numbers()
        self.fresh()

    def fresh(self) -> None:
        """No job, no worker. Also in a forked child, where no worker of the parent is."""
        self._lock = threading.RLock()  # a signal handler may ask for numbers, or enqueue
        self._step = Step()
        self._jobs: dict[Entry, None] = {}
        self._crew = Crew(self.options.lanes, self.options.lanes_per_tenant)
        self._seats: dict[Seat, None] = {}
        self._backlog = Backlog()
        self._inbox: deque[Entry] = deque()
        self._later, self._unknown = Later(), Unknown()
        self._dead = Dead()
        self._draining: set[Any] = set()
        self._watches: list[tuple[Any, Callable[[], object]]] = []
        self._closed = self._over = False
        self._ended_since_close = 0
        self.numbers.forget()

    # ---- lock held, in a step

    def _set_aside(self, entry: Entry) -> None:
        """It goes into its line by `_become_due`, which asks for its tenant's cap of then."""
        if entry.name not in registry.jobs:
            self._unknown.add(entry)
        elif self._later.add(entry):
            self._alarm()

    def _deliver(self, assignments: list[Assignment]) -> None:
        for one in assignments:
            seat = cast("Seat", one.worker)
            self._begin(seat, one.claim.job)
            seat.wake()

    def _begin(self, seat: Seat, job: object) -> None:
        entry, now = cast("Entry", job), self.clock()
        seat.run = Run(entry, registry.jobs[entry.name], now)  # first: what is cut short here has not been tried
        self._backlog.remove(entry.tenant)
        entry.attempt += 1
        self.numbers.began(entry.queue, max(0.0, now - entry.due))

    def _bury(self, entry: Entry) -> None:
        gone = self._dead.add(entry)
        self._jobs.pop(entry, None)
        if gone is not None:
            number = self.numbers.forgotten.add()
            if not number & (number - 1):
                say("dead_jobs_forgotten", f"{self._dead.maximum} are kept at most", count=number)

    def _runs(self) -> list[Run]:
        return [seat.run for seat in self._seats if seat.run is not None]

    def _left(self, tenant: Any) -> int:
        if tenant is EVERYBODY:
            return self._backlog.total + sum(seat.run is not None for seat in self._seats)
        return self._backlog.of(tenant) + self._crew.slots.running(tenant)

    def _wake_watches(self, tenant: Any) -> None:
        for whose, empty in self._watches or ():
            if (whose is EVERYBODY or tenant is EVERYBODY or whose == tenant) and not self._left(whose):
                empty()

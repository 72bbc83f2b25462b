"""What people and settings ask of the jobs that are kept: other limits, pause, drain, numbers, dead jobs."""

from __future__ import annotations

import dataclasses
import heapq
from typing import TYPE_CHECKING, Any

from bulkhead.jobs.aside import BATCH
from bulkhead.jobs.kept import EVERYBODY
from bulkhead.jobs.lining import Lining
from bulkhead.jobs.options import Caps
from bulkhead.jobs.records import Stats, record

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.jobs.records import JobRecord
    from bulkhead.settings.parts import Jobs


class People(Lining):
    """Operators' calls. Any thread."""

    def adopt(self, options: Jobs) -> None:
        """Other limits, from now on. Workers and lanes stay."""
        caps = Caps(options)
        with self._lock, self._step:
            mine = self.options
            self.options = dataclasses.replace(
                options, workers=mine.workers, lanes=mine.lanes, lanes_per_tenant=mine.lanes_per_tenant
            )
            self.caps = caps
            tenants = self._crew.slots.tenants()
        for start in range(0, len(tenants), BATCH):  # in parts: nobody gets a job meanwhile
            numbers = [(tenant, caps.of(tenant)) for tenant in tenants[start : start + BATCH]]
            with self._lock, self._step:
                if caps is not self.caps:  # changed again
                    return
                self._recap(numbers)

    def _recap(self, numbers: list[tuple[str | None, int]]) -> None:
        for tenant, cap in numbers:
            self._deliver(self._crew.recap(tenant, cap))

    def pause(self, tenant: str | None) -> None:
        """Let none of its jobs begin."""
        with self._lock, self._step:
            self._crew.pause(tenant)

    def resume(self, tenant: Any) -> None:
        """Undo `pause` and `drain`."""
        with self._lock, self._step:
            self._draining.discard(tenant)
            if tenant is not EVERYBODY:
                self._deliver(self._crew.resume(tenant))

    def drain(self, tenant: Any, empty: Callable[[], object]) -> Callable[[], object]:
        """Take none of its jobs from outside; `empty()` whenever it has none left. Returns how to stop watching."""
        watch = (tenant, empty)
        with self._lock:
            self._draining.add(tenant)
            self._watches.append(watch)
            if self._over or not self._left(tenant):
                empty()
        return lambda: self._unwatch(watch)

    def _unwatch(self, watch: tuple[Any, Callable[[], object]]) -> None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def left(self, tenant: Any) -> int:
        """Its jobs that wait or run."""
        with self._lock:
            return self._left(tenant)

    def stats(self) -> Stats:
        """Numbers of now."""
        with self._lock:
            return self._stats()

    def _stats(self) -> Stats:
        runs = self._runs()
        return Stats(
            self._crew.waiting(),
            len(self._later),
            len(runs),
            sum(run.reported for run in runs),
            len(self._dead),
            self._unknown.numbers(),
            self.numbers.by_outcome(),
            self._crew.idle,
        )

    def queues(self) -> list[tuple[str, int, int]]:
        """(queue, waiting in line, running) of each queue that ever had a job."""
        with self._lock:
            return self._queues()

    def _queues(self) -> list[tuple[str, int, int]]:
        names = dict.fromkeys([*self._crew.queues(), *self.numbers.running])
        return [(name, self._crew.waiting(name), self.numbers.running.get(name, 0)) for name in names]

    def most(self, number: int) -> list[tuple[str | None, int, int]]:
        """(tenant, waiting, running) of the tenants with most jobs waiting; `running` is of a moment later."""
        with self._lock:
            waiting = self._backlog.numbers()
        # Without the lock: there may be as many tenants as jobs, and no worker gets a job meanwhile.
        most = heapq.nlargest(number, waiting.items(), key=lambda item: item[1])
        with self._lock:
            return self._with_running(most)

    def _with_running(self, most: list[tuple[str | None, int]]) -> list[tuple[str | None, int, int]]:
        return [(tenant, count, self._crew.slots.running(tenant)) for tenant, count in most]

    def dead(self, tenant: Any) -> list[JobRecord]:
        """Those that failed for good."""
        with self._lock:
            entries = self._dead.all() if tenant is EVERYBODY else self._dead.of(tenant)
        return [record(entry) for entry in entries]

    def retry(self, identity: str) -> bool:
        """A dead job begins anew."""
        with self._lock, self._step:
            again = not self._closed and self._revive(identity)
        if again:
            self._all_due()
        return again

    def _revive(self, identity: str) -> bool:
        entry = self._dead.get(identity)
        if entry is None:
            return False
        self._jobs[entry] = None  # first: it must not be nowhere
        self._dead.pop(identity)
        entry.attempt, entry.due = 0, self.clock()
        entry.since = entry.due
        self._backlog.add(entry.tenant)
        self._set_aside(entry)
        return True

    def discard(self, identity: str) -> bool:
        """A dead job is forgotten."""
        with self._lock, self._step:
            return self._dead.pop(identity) is not None

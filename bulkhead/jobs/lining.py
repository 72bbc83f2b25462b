"""What has no event of its own: jobs that become due, names that get a handler, what takes too long. Into the lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bulkhead.jobs.aside import BATCH
from bulkhead.jobs.handlers import registry
from bulkhead.jobs.mending import Mending
from bulkhead.log_lines import say

if TYPE_CHECKING:
    from bulkhead.jobs.records import Run

LOOK_AGAIN = 1.0  # seconds between two looks


class Lining(Mending):
    """The way into a line, for jobs that were not pushed there at once."""

    def look(self) -> float:
        """Move what is due into its line, warn of what takes too long. Seconds until it is to be called again.

        0: there is more. What became due all at once is moved in parts, so that nobody waits long for this.
        """
        with self._lock:
            self._mend()
        with self._lock, self._step:
            self._empty_inbox()
        now = self.clock()
        self._become_due(now)
        with self._lock, self._step:
            overdue = self._overdue(now)
            more = self._bury_unknown(now)
            unknown = self._unknown.to_be_said(now)
            wait = 0.0 if more else self._later.wait(now, LOOK_AGAIN)
        for run in overdue:
            say("job_over_timeout", "it goes on in its thread", job=run.entry.name, seconds=run.job.timeout)
        for name, number in unknown.items():
            say("job_unknown", "no handler has this name; they wait", job=name, count=number)
        return max(0.0, wait)

    def _all_due(self) -> None:
        """Move what is due now, all of it."""
        now = self.clock()
        while self._become_due(now):
            pass

    def _become_due(self, now: float) -> bool:
        """Move the first of what is due. Was there any?"""
        with self._lock:
            tenants = self._tenants_due(now)
        if not tenants:
            return False
        caps = self.caps
        numbers = {tenant: caps.of(tenant) for tenant in tenants}  # the user's code: without the lock
        with self._lock, self._step:
            if caps is self.caps:
                self._push_due(now, numbers)
        return True

    def _tenants_due(self, now: float) -> set[str | None]:
        return {entry.tenant for entry in self._later.due(now)}

    def _push_due(self, now: float, caps: dict[str | None, int]) -> None:
        for _ in range(BATCH):
            entry = self._later.first(now, caps)
            if entry is None:
                return
            entry.cap = caps[entry.tenant]
            self._later.remove_first()
            self._deliver(self._crew.push(entry.queue, entry.tenant, entry, entry.cap))

    def _empty_inbox(self) -> None:
        while self._inbox:
            entry = self._inbox[0]
            if entry not in self._jobs:  # else it was interrupted here
                entry.since = self.clock()
                entry.due += entry.since
                self._jobs[entry] = None
                self._backlog.add(entry.tenant)
                self._set_aside(entry)
            self._inbox.popleft()

    def _overdue(self, now: float) -> list[Run]:
        """Those over their timeout that nobody has heard of."""
        found: list[Run] = []
        for seat in self._seats:
            run = seat.run
            if run is not None and run.job.timeout is not None and not run.job.is_async and not run.reported:
                run.reported = now - run.began > run.job.timeout
                if run.reported:
                    found.append(run)
        return found

    def _bury_unknown(self, now: float) -> bool:
        """Those that waited too long for a handler. Was there any?"""
        expired = self._unknown.expired(now - self.options.unknown_after_secs)
        for entry in expired:
            entry.error = "no handler had its name"
            self._unknown.remove(entry)
            self._backlog.remove(entry.tenant)
            self._bury(entry)
            self.numbers.ended(entry.queue, "dead", ran=False)
            self._wake_watches(entry.tenant)
        return bool(expired)

    def look_again(self) -> None:
        """A handler was added: what waited for it goes into its line, all of it before what comes now."""
        while self._place_known():
            pass
        self._all_due()

    def _place_known(self) -> bool:
        with self._lock, self._step:
            return self._set_known_aside()

    def _set_known_aside(self) -> bool:
        known = self._unknown.known(registry.jobs)
        for entry in known:
            self._unknown.remove(entry)
            self._set_aside(entry)
        return bool(known)

    def _mend(self) -> None:
        """What an exception cut short, and a worker that was not woken by it."""
        self._whole()
        for seat in self._seats:
            if seat.run is None:
                if self._crew.held(seat) is not None:
                    self._step.torn = True
            elif not seat.run.started:
                seat.wake()
        self._whole()

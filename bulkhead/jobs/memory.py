"""The memory backend: the jobs of one runner, and all decisions about them. Threads and event loops wait and call.

One lock around pure parts: the crew (whose turn it is, who is given what), the backlog, what is not due, what is dead.
A clock is an argument. A worker is a `Seat`: what it is given is put into its `run`, then it is woken. The rules for a
change are in kept.py, which also says what is where.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bulkhead.jobs import measuring, retries
from bulkhead.jobs.backlog import PER_TENANT
from bulkhead.jobs.crew import Assignment
from bulkhead.jobs.ending import Ending
from bulkhead.jobs.errors import BacklogFull, NotTaking
from bulkhead.jobs.handlers import registry
from bulkhead.jobs.kept import EVERYBODY, Seat
from bulkhead.jobs.people import People
from bulkhead.jobs.records import Entry, in_words
from bulkhead.log_lines import say
from bulkhead.tenancy import tenant_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bulkhead.jobs.handlers import Call
    from bulkhead.jobs.records import JobRecord, Outcome, Run
    from bulkhead.settings.parts import Jobs

__all__ = ["EVERYBODY", "MemoryBackend", "Seat"]


class MemoryBackend(People, Ending):
    """Jobs in the memory of this process. Everything may be called by any thread."""

    def __init__(
        self,
        options: Jobs,
        clock: Callable[[], float],
        chance: Callable[[], float],
        alarm: Callable[[], object],
    ) -> None:
        super().__init__(options, clock, chance, alarm)
        registry.follow(self)
        measuring.add(self)

    # ---- jobs come

    def take(self, call: Call, *, inside: bool) -> str:
        """Keep a job. `inside`: a job of this runner enqueues it, which goes on while others are not taken."""
        entry = Entry(uuid.uuid4().hex, call.name, call.queue, call.tenant, call.arguments, call.max_attempts)
        if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001  as threading.Condition asks
            # A signal handler or finalizer that came in the middle of something: `look` keeps it, within a second.
            entry.since, entry.due = 0.0, call.delay
            self._inbox.append(entry)
            return entry.id
        while True:
            caps = self.caps
            entry.cap = caps.of(call.tenant)  # the user's code: without the lock
            with self._lock, self._step:
                if caps is not self.caps:  # changed meanwhile
                    continue
                entry.since = self.clock()
                entry.due = entry.since + call.delay
                why = self._refusal(entry.tenant, inside=inside)
                if why is None:
                    self._keep(entry)
            if why is not None:
                raise self._refused(entry, why)
            return entry.id

    def restore(self, records: Iterable[JobRecord], as_json: Callable[[str, dict[str, Any]], str]) -> None:
        """Keep jobs that another runner returned, with their ids and attempts, whatever waits here already."""
        entries = [(_entry(one, as_json), one.delay) for one in records]  # all of them, or an error and none
        with self._lock, self._step:
            stops = self._closed
            if not stops:
                self._restore(entries)
        if stops:
            raise NotTaking("jobs", None, "the runner stops")
        self._all_due()

    def _restore(self, entries: list[tuple[Entry, float]]) -> None:
        now = self.clock()
        for entry, delay in entries:
            entry.since, entry.due = now, now + delay
            self._jobs[entry] = None
            self._backlog.add(entry.tenant)
            self._set_aside(entry)

    def _refusal(self, tenant: str | None, *, inside: bool) -> str | tuple[str, int] | None:
        if self._over or (self._closed and not inside):
            return "the runner stops"
        if not inside and not self._draining.isdisjoint((tenant, EVERYBODY)):
            return "it is drained"
        return self._backlog.full(tenant, self.options.max_backlog_per_tenant, self.options.max_backlog)

    def _refused(self, entry: Entry, why: str | tuple[str, int]) -> Exception:
        identifier = f"jobs:{entry.queue}"
        if isinstance(why, str):
            return NotTaking(identifier, entry.tenant, why)
        number = self.numbers.refuse(why[0], tenant=why[0] == PER_TENANT)
        if not number & (number - 1):  # only the 1st, 2nd, 4th, 8th …: rate-limited without reading a clock
            say("rejected", identifier=identifier, reason=why[0], count=number)
        return BacklogFull(identifier, entry.tenant, *why)

    def _keep(self, entry: Entry) -> None:
        """It waits from now on. Lock held, in a step, as in all that begins with an underscore below."""
        self._jobs[entry] = None
        self._backlog.add(entry.tenant)
        if entry.due > self.clock() or entry.name not in registry.jobs:
            self._set_aside(entry)
        else:
            self._deliver(self._crew.push(entry.queue, entry.tenant, entry, entry.cap))

    # ---- workers

    def join(self, seat: Seat) -> None:
        """A new worker: it is given jobs from now on."""
        with self._lock, self._step:
            self._seats[seat] = None
            turn = self._crew.join(seat, seat.number % self.options.lanes if self.options.lanes else 0)
            if turn.claim is not None:
                self._deliver([Assignment(seat, turn.claim)])
            self._deliver(turn.others)

    def start(self, seat: Seat, run: Run, cancel: Callable[[], object] | None) -> bool:
        """The worker begins with it; `cancel` ends it from outside, None = nothing can. False: it is not to be run."""
        with self._lock:
            if seat.run is not run or run.started:
                return False
            run.started, run.cancel = True, cancel
            return True

    def settle(self, seat: Seat, run: Run, error: BaseException | None) -> Run | None:
        """An attempt ended. What the worker does next, as in `seat.run`; None: it is woken when there is something."""
        chance, words = (0.0, None) if error is None else (self._chance(), in_words(error))
        told: Outcome | None = None
        with self._lock:
            self._whole()
            with self._step:
                if seat.run is run and seat in self._seats:  # else: told twice, or this is a forked child
                    told = self._settle(seat, run, words, chance)
                    self._next(seat)
                    self._wake_watches(run.entry.tenant)
            following = seat.run
        if error is not None and told not in {None, "returned"}:
            self._log(run.entry, told, error)
        return following

    def _settle(self, seat: Seat, run: Run, words: str | None, chance: float) -> Outcome:
        """Where the job goes. Where this is cut short it has not ended, or stands nowhere, and waits again."""
        entry = run.entry
        told: Outcome
        if run.given_up and words is not None:
            told = "returned"
            seat.run = None
            entry.attempt -= 1
            self._backlog.add(entry.tenant)
            self._deliver(self._crew.give_back(seat))
        elif words is None:
            told = "success"
            self._jobs.pop(entry, None)
        elif entry.attempt >= entry.max_attempts or self._over:
            told = "dead"
            entry.error = words
            self._bury(entry)
        else:
            told = "retry"
            entry.error, entry.due = words, self.clock() + retries.pause(entry.attempt, chance)
            seat.run = None
            self._backlog.add(entry.tenant)
            self._set_aside(entry)
        seat.run = None
        self.numbers.ended(entry.queue, told)
        if self._closed and told != "returned":
            self._ended_since_close += 1
        return told

    def _log(self, entry: Entry, told: Outcome | None, error: BaseException) -> None:
        with suppress(Exception):  # a filter or handler of the user's: no reason to lose a worker
            self.numbers.log_failure(entry, told or "retry", error)

    def _next(self, seat: Seat) -> None:
        if self._closed:
            self._deliver(self._crew.end(seat))
            return
        turn = self._crew.turn(seat)
        if turn.claim is not None:
            self._begin(seat, turn.claim.job)
        self._deliver(turn.others)


def _entry(one: JobRecord, as_json: Callable[[str, dict[str, Any]], str]) -> Entry:
    tenant = None if one.tenant is None else tenant_text(one.tenant)
    entry = Entry(one.id, one.name, one.queue, tenant, as_json(one.name, dict(one.arguments)), one.max_attempts)
    entry.attempt, entry.error = one.attempt, one.last_error
    return entry

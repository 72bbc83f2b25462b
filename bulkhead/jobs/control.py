"""What both kinds of runners have in common: options, settings, and what people ask of one. No thread, no loop."""

from __future__ import annotations

import os
import threading
import time
from random import random
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from bulkhead import events, settings
from bulkhead.errors import ConfigurationError
from bulkhead.jobs.arguments import as_json
from bulkhead.jobs.handlers import takers
from bulkhead.jobs.memory import EVERYBODY, MemoryBackend
from bulkhead.jobs.options import checked, in_force, seconds
from bulkhead.jobs.records import Report, job_records
from bulkhead.log_lines import say
from bulkhead.tenancy import tenant_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Unpack
    from uuid import UUID

    from bulkhead.jobs.handlers import Call
    from bulkhead.jobs.options import RunnerOptions
    from bulkhead.jobs.records import JobRecord, Stats
    from bulkhead.settings.parts import Jobs

    Tenant = str | int | UUID | None

runners: WeakSet[Control] = WeakSet()


class Control:
    """One runner's jobs and limits. `report` is what the last `stop` said."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random,
        **options: Unpack[RunnerOptions],
    ) -> None:
        self._given = checked(type(self).__name__, options)
        self._forget()
        wanted = in_force(self._given)
        self._backend = MemoryBackend(self._lowered(wanted), clock, chance, self._alarm)
        self._process = os.getpid()
        self._state = "new"
        self._ending = threading.RLock()
        self.report: Report | None = None
        runners.add(self)
        settings.on_change(self._follow)

    def _lowered(self, options: Jobs) -> Jobs:
        """A lane without a worker would never be served."""
        if options.lanes <= options.workers:
            return options
        say(
            "settings_warning",
            f"{options.lanes} lanes need as many workers; there are {options.workers}, so that many lanes are made",
            setting="jobs.lanes",
        )
        self._given = self._given | {"lanes": options.workers}
        return in_force(self._given)

    def _follow(self, now: settings.Settings) -> None:  # noqa: ARG002  as `on_change` calls it
        self._backend.adopt(in_force(self._given))

    def _alarm(self) -> None:
        """Look again at what is due, soon. Any thread, under the lock of the backend."""
        raise NotImplementedError

    def _forget(self) -> None:
        """No worker, and nothing that one has left: at first, and in a forked child."""
        raise NotImplementedError

    def fresh(self) -> None:
        """In a forked child: no job, no worker, not started."""
        self._forget()
        self._backend.fresh()
        self._state, self._ending = "new", threading.RLock()

    @property
    def options(self) -> Jobs:
        """What is in force."""
        return self._backend.options

    def take(self, call: Call) -> str:
        """For `Job.enqueue`: keep this job. Its id."""
        identity = self._backend.take(call, inside=takers.inside.get() is self)
        events.next_call()  # metrics of many workers are written from here on
        return identity

    def pause(self, tenant: Tenant) -> None:
        """Let no more jobs of this tenant begin, until `resume`; what runs goes on. None: the jobs without a tenant."""
        self._backend.pause(whose(tenant))

    def resume(self, tenant: Tenant = EVERYBODY) -> None:
        """Undo `pause(tenant)` and `drain(tenant)`; without a tenant, `drain()`."""
        self._backend.resume(whose(tenant))

    def stats(self) -> Stats:
        """Numbers of now: jobs waiting, running and dead, attempts by outcome, names without a handler."""
        return self._backend.stats()

    def top_tenants(self, number: int = 10) -> list[tuple[str | None, int, int]]:
        """(tenant, waiting, running) of those with most jobs waiting, at most `number` of them."""
        return self._backend.most(number)

    def dead(self, tenant: Tenant = EVERYBODY) -> list[JobRecord]:
        """Jobs that failed for good, of one tenant or of all; at most 10,000 are kept."""
        return self._backend.dead(whose(tenant))

    def retry(self, identity: str) -> bool:
        """Let a dead job begin anew, with all its attempts. False: there is none with this id, or the runner stops."""
        return self._backend.retry(identity)

    def discard(self, identity: str) -> bool:
        """Forget a dead job. False: there is none with this id."""
        return self._backend.discard(identity)

    def restore(self, records: Iterable[JobRecord | Mapping[str, Any]]) -> None:
        """Take over jobs that `stop()` of another runner returned, with their ids, tenants and attempts.

        Also as JSON has them: mappings with the fields of a JobRecord. No limit of the backlog refuses them.
        ConfigurationError for what is no record; then none is taken. NotTaking: this runner stops.
        """
        self._backend.restore(job_records(records), as_json)

    def __repr__(self) -> str:
        now, workers = self.stats(), self.options.workers
        what = f"{workers} worker{'' if workers == 1 else 's'}, {now.waiting} waiting, {now.running} running"
        return f"<{type(self).__name__} {self._state}, {what}>"

    def _grace(self, given: float | None) -> float:
        """How long `stop` waits."""
        wanted = seconds(f"{type(self).__name__}.stop: grace_secs", given, "the option")
        return self.options.grace_secs if wanted is None else wanted

    def _patience(self, given: float | None) -> float | None:
        """How long `drain` waits."""
        return seconds(f"{type(self).__name__}.drain: timeout", given, "no limit")

    def _begin(self) -> None:
        if self._state != "new":
            raise ConfigurationError(f"this runner was {self._state} before; make another one")
        self._state = "started"

    def _end(self) -> Report:
        """Everything has ended that could be ended."""
        takers.remove(self)
        with self._ending:  # two may stop it at once
            report = Report(*self._backend.finish())
            self.report = whole = merged(self.report, report)
            self._backend.handed_over()
        self._state = "stopped"
        if report.running:
            names = ", ".join(sorted({one.name for one in report.running}))
            say("jobs_still_running", f"in threads, which cannot be ended: {names}", count=len(report.running))
        return whole


def merged(first: Report | None, second: Report) -> Report:
    """What was returned once stays returned, once."""
    if first is None:
        return second
    known = {one.id for one in first.returned}
    more = [one for one in second.returned if one.id not in known]
    return Report(second.finished, [*first.returned, *more], second.running)


def whose(tenant: Any) -> Any:
    """The tenant as it is kept; EVERYBODY stays."""
    return tenant if tenant is None or tenant is EVERYBODY else tenant_text(tenant)


def _after_fork() -> None:
    for one in list(runners):
        one.fresh()


os.register_at_fork(after_in_child=_after_fork)

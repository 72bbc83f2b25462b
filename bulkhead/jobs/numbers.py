"""What a runner counts, and what it says in the log of jobs that fail. No tenant is ever in either."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bulkhead.counting import Tallies, Tally
from bulkhead.jobs.records import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bulkhead.jobs.records import Entry, Outcome

log = logging.getLogger("bulkhead")


class Numbers:
    """Counted under the lock of the backend, but for refusals, which count by themselves."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Everything from 0. Also in a forked child."""
        self.outcomes: dict[tuple[str, Outcome], int] = {}
        """(queue, outcome) -> attempts."""
        self.waited: dict[str, tuple[int, float]] = {}
        """Queue -> jobs begun, and the seconds that they waited beyond the moment they were due."""
        self.running: dict[str, int] = {}
        self.refused = Tallies()
        self.refused_tenants = Tally()
        self.forgotten = Tally()
        self._failures = Tallies()

    def began(self, queue: str, waited: float) -> None:
        """An attempt begins."""
        count, seconds = self.waited.get(queue, (0, 0.0))
        self.waited[queue] = (count + 1, seconds + waited)
        self.running[queue] = self.running.get(queue, 0) + 1

    def ended(self, queue: str, outcome: Outcome, *, ran: bool = True) -> None:
        """An attempt ended; `ran` = there was one."""
        key = (queue, outcome)
        self.outcomes[key] = self.outcomes.get(key, 0) + 1
        if ran:
            self.running[queue] -= 1

    def run_now(self, queues: Iterable[str]) -> None:
        """These attempts run, one for each name; no others."""
        self.running = dict.fromkeys(self.running, 0)
        for queue in queues:
            self.running[queue] = self.running.get(queue, 0) + 1

    def refuse(self, limit: str, *, tenant: bool) -> int:
        """A job was not taken. How many were not, by this limit, so far."""
        if tenant:
            self.refused_tenants.add()
        return self.refused[limit].add()

    def add(self, other: Numbers) -> None:
        """Add what another one counted; not what runs."""
        for key, number in other.outcomes.copy().items():
            self.outcomes[key] = self.outcomes.get(key, 0) + number
        for queue, (count, seconds) in other.waited.copy().items():
            before, sum_before = self.waited.get(queue, (0, 0.0))
            self.waited[queue] = (before + count, sum_before + seconds)
        for limit, number in other.refused.numbers().items():
            self.refused[limit].value += number
        self.refused_tenants.value += other.refused_tenants.value

    def by_outcome(self) -> dict[str, int]:
        """Attempts by outcome, all queues together."""
        return {
            one: sum(number for (_, outcome), number in self.outcomes.items() if outcome == one) for one in OUTCOMES
        }

    def log_failure(self, entry: Entry, outcome: Outcome, error: BaseException) -> None:
        """With the traceback; the 1st, 2nd, 4th, 8th … of each job name and outcome."""
        number = self._failures[f"{entry.name}\0{outcome}"].add()
        if number & (number - 1):
            return
        level = logging.ERROR if outcome == "dead" else logging.WARNING
        told = {"job": entry.name, "queue": entry.queue, "attempt": entry.attempt, "count": number}
        event = "job_dead" if outcome == "dead" else "job_failed"
        log.log(
            level,
            "[BULKHEAD] %s job=%s queue=%s attempt=%d count=%d",
            event,
            *told.values(),
            exc_info=(type(error), error, error.__traceback__),
            extra={"bulkhead_event": event} | {f"bulkhead_{name}": value for name, value in told.items()},
        )

"""What becomes of a step that an exception out of a signal handler, or sent by another thread, cut short.

All that is kept is made anew from what cannot be half done: which jobs there are (`_jobs`), what each seat runs, and
the order in which the others stand wherever they stand. A job that stands nowhere was on its way from one place to
another, or ended unsuccessfully: it waits again. So it may run once more than it had to, and is never lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from bulkhead.jobs.aside import Later, Unknown
from bulkhead.jobs.backlog import Backlog
from bulkhead.jobs.kept import EVERYBODY, Kept

if TYPE_CHECKING:
    from bulkhead.jobs.kept import Seat
    from bulkhead.jobs.records import Entry


class Mending(Kept):
    """After an interruption."""

    def _repair(self) -> None:
        """Takes as long as there are jobs; only after a step that did not reach its end."""
        self._dead.mend()
        for entry in self._dead.all():
            self._jobs.pop(entry, None)
        running = self._what_runs()
        waits = self._jobs.keys() - running.values()
        rest = dict.fromkeys(entry for entry in cast("list[Entry]", self._crew.in_line()) if entry in waits)
        stored = (*self._later.take_all(), *self._unknown.take_all(), *self._jobs)
        aside = dict.fromkeys(entry for entry in stored if entry in waits and entry not in rest)
        self._backlog = Backlog()
        self._later, self._unknown = Later(), Unknown()
        for entry in (*rest, *aside):
            self._backlog.add(entry.tenant)
        for entry in aside:
            if entry.attempt >= entry.max_attempts and not self._closed:
                entry.error = entry.error or "the end of its last attempt was interrupted"
                self._backlog.remove(entry.tenant)
                self._bury(entry)
            else:
                self._set_aside(entry)
        self.numbers.run_now(entry.queue for entry in running.values())
        lanes = self.options.lanes
        given = self._crew.begin_anew(
            {seat: seat.number % lanes if lanes else 0 for seat in self._seats},
            {seat: (one.queue, one.tenant, one) for seat, one in running.items()},
            [(one.queue, one.tenant, one) for one in rest],
        )
        self._deliver(given)
        self._step.torn = False
        self._wake_watches(EVERYBODY)

    def _what_runs(self) -> dict[Seat, Entry]:
        found: dict[Seat, Entry] = {}
        for seat in self._seats:
            if seat.run is not None and seat.run.entry in self._jobs:
                found[seat] = seat.run.entry
            else:  # nothing, or it had ended
                seat.run = None
        return found

    def _whole(self) -> None:
        """Lock held, outside of any step."""
        if self._step.torn:
            self._repair()

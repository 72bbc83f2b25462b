"""The end of a runner: nothing more begins, what runs is cancelled where it can be, what is left is handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from bulkhead.jobs.lining import Lining
from bulkhead.jobs.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.jobs.records import Entry, JobRecord, Run


class Ending(Lining):
    """Shutdown. Any thread."""

    def close(self) -> None:
        """Give nobody anything from now on."""
        with self._lock, self._step:
            self._closed = True
            self._crew.stop()
            self._wake_all()

    @property
    def closed(self) -> bool:
        """Does it stop, or has it?"""
        return self._closed

    def _wake_all(self) -> None:
        for seat in self._seats:
            seat.wake()

    def give_up(self, own: Run | None) -> None:
        """The grace is over: what can be cancelled is, but for `own`, the job that stops; what has not begun waits."""
        with self._lock:
            self._whole()
        with self._lock, self._step:
            self._take_back()
            runs = self._given_up(own)
        for run in runs:
            cast("Callable[[], object]", run.cancel)()

    def finish(self) -> tuple[int, list[JobRecord], list[JobRecord]]:
        """Nothing is taken from now on: (ended since `close`, what is left, what still runs).

        What is left is kept until `handed_over`: until then an interruption loses nothing, and this can be asked again.
        """
        with self._lock:
            self._over = True
            self._whole()
        with self._lock, self._step:
            left = self._what_is_left()
            running = self._runs()
            now, ended = self.clock(), self._ended_since_close
        return ended, [record(entry, now) for entry in left], [record(run.entry) for run in running]

    def handed_over(self) -> None:
        """Keep none of it any longer; nobody waits for it."""
        with self._lock, self._step:
            self._forget_waiting()

    def _what_is_left(self) -> list[Entry]:
        """In the order in which they would run, of each tenant."""
        self._take_back()  # nobody came to run it: its loop is gone
        self._empty_inbox()
        in_line = cast("list[Entry]", self._crew.in_line())
        return [*in_line, *self._later.all(), *self._unknown.all()]

    def _given_up(self, own: Run | None) -> list[Run]:
        runs = [run for run in self._runs() if run.cancel is not None and run is not own]
        for run in runs:
            run.given_up = True
        return runs

    def _take_back(self) -> None:
        """What was given to a worker that has not begun with it."""
        for seat in self._seats:
            run = seat.run
            if run is not None and not run.started:
                seat.run = None
                run.entry.attempt -= 1
                self._crew.give_back(seat)
                self.numbers.ended(run.entry.queue, "returned")
                self._backlog.add(run.entry.tenant)

    def _forget_waiting(self) -> None:
        self._jobs = {run.entry: None for run in self._runs()}
        self._crew.take_all()
        self._later.take_all()
        self._unknown.take_all()
        self._backlog.clear()
        for _, empty in self._watches or ():
            empty()  # whatever still runs: nobody is to wait for a runner that is over

"""The runner of threads: each worker is a daemon thread. What to run, and what becomes of it, the backend decides.

A plain handler runs in the worker's thread and cannot be ended from outside. One that is a coroutine function runs in
an event loop of its own that lasts as long as the attempt, so it can be: by its timeout, and by a shutdown.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from bulkhead.counting import Tally
from bulkhead.errors import ConfigurationError
from bulkhead.jobs.attempts import attempt, in_this_thread
from bulkhead.jobs.control import Control, whose
from bulkhead.jobs.errors import JobCancelled
from bulkhead.jobs.handlers import takers
from bulkhead.jobs.memory import EVERYBODY, Seat
from bulkhead.jobs.signals import NUMBERS, handlers
from bulkhead.log_lines import say

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from bulkhead.jobs.handlers import Call
    from bulkhead.jobs.records import Report, Run

CANCEL_SECONDS = 5.0
"""How long what was cancelled may take to end."""


class Thread(Seat):
    """A worker: its thread, and what it waits for."""

    __slots__ = ("_work", "bell", "thread")

    def __init__(self, number: int, work: Callable[[Thread], None]) -> None:
        super().__init__(number)
        self.bell: SimpleQueue[None] = SimpleQueue()
        self._work = work
        self.fresh()

    def fresh(self) -> None:
        """A thread that has not been started."""
        name = f"bulkhead-jobs-{self.number}"
        self.thread = threading.Thread(target=self._work, args=(self,), name=name, daemon=True)

    def wake(self) -> None:
        """Ring; a ring too many is heard and found to mean nothing."""
        self.bell.put(None)


class Runner(Control):
    """Runs jobs in threads of this process: `with Runner(workers=8):`, or `Runner().run()` as a worker process.

    Options are the keys of [jobs] in the settings, over which they win. `clock` (monotonic seconds) and `chance`
    (uniform in 0..1, for pauses between attempts) are for tests. ConfigurationError for options that are not accepted.
    """

    def _forget(self) -> None:
        self._threads: list[Thread] = []
        self._clock: threading.Thread | None = None
        self._key: list[None] = [None]
        # No Event: an exception sent to a thread may leave its lock taken.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._interrupted = Tally()
        self._until, self._hurried = 0.0, False

    def _alarm(self) -> None:
        self._bell.put(None)

    def start(self) -> Self:
        """Start the workers; what this process enqueues is this runner's from now on."""
        self._begin()
        self._threads = [Thread(number, self._work) for number in range(self.options.workers)]
        try:
            for one in self._threads:
                one.thread.start()
                self._backend.join(one)
            self._wind_up()
        except BaseException:  # there may be no more threads
            self.stop(0)
            raise
        takers.add(self)
        return self

    def take(self, call: Call) -> str:
        """For `Job.enqueue`: keep this job. Its id."""
        identity = super().take(call)
        if self._clock is not None and not self._clock.is_alive():
            self._wind_up()
        return identity

    def stop(self, grace_secs: float | None = None) -> Report:
        """Start nothing more, let running jobs go on for this long (None: the option), cancel what can be cancelled.

        The report says how many ended, which jobs are the caller's now (`returned`, for `restore`), and which still
        run because they are in a thread. If this is interrupted (KeyboardInterrupt), the grace is over. Calling it
        again waits for what still runs. ConfigurationError: the seconds are none from 0 to 1e9; then it goes on.
        """
        self._until = time.monotonic() + self._grace(grace_secs)
        if self._hurried:  # asked in this order, as `_hurry` sets them in the other one
            self._until = 0.0
        self._backend.close()
        self._alarm()
        try:
            self._await_workers(self._threads)
        finally:
            try:
                self._backend.give_up(self._own_run())
                self._until = time.monotonic() + CANCEL_SECONDS
                self._await_workers([one for one in self._threads if one.run is not None and one.run.given_up])
            finally:
                report = self._end()
        return report

    def _own_run(self) -> Run | None:
        """The job that this thread runs."""
        return next((one.run for one in self._threads if one.thread is threading.current_thread()), None)

    def _await_workers(self, threads: list[Thread]) -> None:
        """Until they have ended, at most until the moment that stands in `_until`, which a signal may change."""
        for one in threads:
            while one.thread.is_alive() and one.thread is not threading.current_thread():
                left = self._until - time.monotonic()
                if left <= 0:
                    break
                one.thread.join(min(left, 0.2))

    def drain(self, tenant: Any = EVERYBODY, timeout: float | None = None) -> bool:
        """Take no new jobs (of this tenant; without one, of anybody) but those that its jobs enqueue, until `resume`.

        Waits until it has none left, waiting or running, at most `timeout` seconds (0 to 1e9; None: as long as it
        takes). Is that so? ConfigurationError for another timeout; then it changes nothing.
        """
        timeout = self._patience(timeout)
        tenant = whose(tenant)
        empty: SimpleQueue[None] = SimpleQueue()
        unwatch = self._backend.drain(tenant, lambda: empty.put(None))
        try:
            heard(empty, timeout)
        finally:
            unwatch()
        return not self._backend.left(tenant)

    def run(self) -> Report:
        """A worker process: start, wait for SIGTERM or SIGINT, stop. In the main thread, else ConfigurationError.

        A second signal ends the grace. Handlers that were there before are set again at the end.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError("run() waits for signals: in the main thread only; else start() and stop()")
        hear, tell = os.pipe()
        os.set_blocking(tell, False)
        second = threading.Thread(target=self._hurry, args=(hear,), name="bulkhead-jobs-signal", daemon=True)
        # Whichever thread a signal comes to, its number is in the pipe at once. A handler in Python would run when this
        # thread goes on, and what came to another thread does not wake it.
        woken = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        try:
            handlers.replace(lambda number: signal.signal(number, _heard))
            self.start()
            _await_signal(hear)
            second.start()
            return self.stop()
        finally:
            handlers.restore()
            signal.set_wakeup_fd(woken)
            if second.ident is not None:
                os.write(tell, _OVER)  # to close it would not do: a child that a job forked may have it, too
                second.join()
            os.close(tell)
            os.close(hear)

    def _hurry(self, hear: int) -> None:
        if _await_signal(hear) != _OVER:
            self._hurried = True  # it may come before the grace begins
            self._until = 0.0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- the threads

    def _work(self, seat: Thread) -> None:
        """Until the runner stops. What another thread raises in this one ends an attempt, and not the worker."""
        while seat in self._threads:  # else: a forked child's, which came out of a handler
            try:
                self._work_on(seat)
            except BaseException as error:  # noqa: BLE001
                self._say_interrupted(error)
            else:
                return

    def _say_interrupted(self, error: BaseException) -> None:
        number = self._interrupted.add()
        if not number & (number - 1):
            with suppress(Exception):
                say("jobs_worker_interrupted", type(error).__name__, count=number)

    def _work_on(self, seat: Thread) -> None:
        run: Run | None = seat.run
        if run is not None and run.started:  # it was interrupted before it could say how that ended
            run = self._backend.settle(seat, run, JobCancelled("its worker was interrupted"))
        while True:
            if run is None:
                if self._backend.closed:
                    return
                seat.bell.get()
                run = seat.run
                continue
            run = self._backend.settle(seat, run, self._perform(seat, run))
            if self._clock is not None and not self._clock.is_alive():
                self._wind_up()

    def _perform(self, seat: Thread, run: Run) -> BaseException | None:
        if not run.job.is_async:
            if not self._backend.start(seat, run, None):
                return None
            return in_this_thread(run, self)
        try:
            with asyncio.Runner() as loop:
                return loop.run(self._attempt(seat, run), context=Context())
        except BaseException as error:  # noqa: BLE001  what the handler left behind in its loop may fail, too
            return error

    async def _attempt(self, seat: Thread, run: Run) -> BaseException | None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def cancel() -> None:
            try:
                loop.call_soon_threadsafe(task.cancel)  # type: ignore[union-attr]
            except RuntimeError:  # it has just ended, and its loop is closed
                pass

        if not self._backend.start(seat, run, cancel):
            return None
        return await attempt(run, self, None)

    def _wind_up(self) -> None:
        """Start the clock, also anew: an exception that was sent to it outside of everything ended it."""
        try:
            self._key.pop()
        except IndexError:  # another thread does it
            return
        try:
            if (self._clock is None or not self._clock.is_alive()) and not self._backend.closed:
                self._clock = threading.Thread(target=self._look, name="bulkhead-jobs-clock", daemon=True)
                self._clock.start()
        finally:
            self._key.append(None)

    def _look(self) -> None:
        """Once a second, or when something is due, until the runner stops."""
        while not self._backend.closed:
            try:
                self._look_on()
            except BaseException as error:  # noqa: BLE001  it has to go on: what is due depends on it
                say("jobs_look_failed", type(error).__name__)
                time.sleep(0.1)

    def _look_on(self) -> None:
        while not self._backend.closed:
            wait = self._backend.look()
            for one in self._threads:
                if not one.thread.is_alive() and not self._backend.closed:  # it was interrupted outside of everything
                    one.fresh()
                    one.thread.start()
            heard(self._bell, wait)
            while heard(self._bell, 0):
                pass


_OVER = b"\0"  # no number of a signal


def _heard(number: int, frame: FrameType | None) -> None:
    """Nothing more: its number is in the pipe."""


def _await_signal(hear: int) -> bytes:
    """The next number that ends a worker process, or _OVER; others have handlers of their own."""
    wanted = {_OVER, *(bytes([number]) for number in NUMBERS)}
    while (told := os.read(hear, 1)) not in wanted:
        pass
    return told


def heard(bell: SimpleQueue[None], seconds: float | None) -> bool:
    """Wait for it; False: time is over."""
    try:
        bell.get(timeout=seconds)
    except Empty:
        return False
    return True

"""The runner of the running event loop: coroutine functions are tasks in it, plain functions run in threads.

There are no worker tasks: a seat that is given a job starts its task, and the task's end is what takes the next. So a
task that is cancelled, by whom- and whenever, cannot take a worker or a job with it. The clock's task ends with the
loop's other tasks when the loop is torn down without `stop()`: then nothing more begins.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import Context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from bulkhead.errors import ConfigurationError
from bulkhead.jobs.aside import SAY_AGAIN
from bulkhead.jobs.attempts import LONGEST_STEP, attempt, ended, in_this_thread
from bulkhead.jobs.control import Control, whose
from bulkhead.jobs.errors import JobCancelled
from bulkhead.jobs.handlers import takers
from bulkhead.jobs.lining import LOOK_AGAIN
from bulkhead.jobs.memory import EVERYBODY, Seat
from bulkhead.jobs.signals import NUMBERS, handlers
from bulkhead.jobs.threads import CANCEL_SECONDS, heard
from bulkhead.log_lines import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.jobs.records import Report, Run


class Place(Seat):
    """One of the jobs that may run at a time."""

    __slots__ = ("_begin", "_loop")

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop, begin: Callable[[Place], None]) -> None:
        super().__init__(number)
        self._loop, self._begin = loop, begin

    def wake(self) -> None:
        """Look into `run`, in the loop."""
        in_loop(self._loop, self._begin, self)


class AsyncRunner(Control):
    """Runs jobs in the running event loop: `async with AsyncRunner(workers=8):`, in an application's lifespan, say.

    Options are the keys of [jobs] in the settings, over which they win. `clock` (monotonic seconds) and `chance`
    (uniform in 0..1, for pauses between attempts) are for tests. ConfigurationError for options that are not accepted.
    """

    def _forget(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: dict[asyncio.Future[Any], Run] = {}
        self._threads: dict[asyncio.Future[Any], tuple[threading.Thread, Place]] = {}
        self._clock: asyncio.Task[None] | None = None
        self._bell = asyncio.Event()
        self._said: dict[str, float] = {}
        self._over: SimpleQueue[None] = SimpleQueue()
        self._step: tuple[Run, float] | None = None
        """What keeps the loop just now, and since when (perf_counter)."""

    def _alarm(self) -> None:
        if self._loop is not None:
            in_loop(self._loop, self._bell.set)

    async def start(self) -> Self:
        """Begin to run jobs in this loop; what this process enqueues, in any thread, is this runner's from now on."""
        self._begin()
        self._loop = asyncio.get_running_loop()
        try:
            threading.Thread(target=self._watch, args=(self._over,), name="bulkhead-jobs-watch", daemon=True).start()
            for number in range(self.options.workers):
                self._backend.join(Place(number, self._loop, self._look_into))
            self._clock = self._loop.create_task(self._look(), name="bulkhead-jobs-clock", context=Context())
        except BaseException:  # there may be no more threads
            await self.stop(0)
            raise
        takers.add(self)
        return self

    async def stop(self, grace_secs: float | None = None) -> Report:
        """Start nothing more, let running jobs go on for this long (None: the option), then cancel them.

        The report says how many ended, which jobs are the caller's now (`returned`, for `restore`), and which still
        run because they are in a thread. If this is cancelled itself, the grace is over. Calling it again is harmless.
        ConfigurationError: the seconds are none from 0 to 1e9; then it goes on.
        """
        seconds = self._grace(grace_secs)
        self._backend.close()
        self._over.put(None)
        try:
            await self._await_work(seconds)
        finally:
            try:
                self._backend.give_up(self._own_run())
                await self._await_work(CANCEL_SECONDS, given_up=True)
            finally:
                if self._clock is not None:
                    self._clock.cancel()
                report = self._end()
        return report

    def _own_run(self) -> Run | None:
        """The job whose task this is."""
        task = asyncio.current_task()
        return None if task is None else self._work.get(task)

    async def _await_work(self, seconds: float, *, given_up: bool = False) -> None:
        until, own = time.monotonic() + seconds, self._own_run()
        await asyncio.sleep(0)  # what was given out just before begins
        while work := [one for one, run in self._work.items() if run is not own and (run.given_up or not given_up)]:
            left = until - time.monotonic()
            if left <= 0:
                return
            await asyncio.wait(work, timeout=left)
            await asyncio.sleep(0)

    async def drain(self, tenant: Any = EVERYBODY, timeout: float | None = None) -> bool:  # noqa: ASYNC109  as Runner.drain
        """Take no new jobs (of this tenant; without one, of anybody) but those that its jobs enqueue, until `resume`.

        Waits until it has none left, waiting or running, at most `timeout` seconds (0 to 1e9; None: as long as it
        takes). Is that so? ConfigurationError for another timeout; then it changes nothing.
        """
        timeout = self._patience(timeout)
        tenant, loop = whose(tenant), asyncio.get_running_loop()
        empty = asyncio.Event()
        unwatch = self._backend.drain(tenant, lambda: in_loop(loop, empty.set))
        try:
            async with asyncio.timeout(timeout):
                await empty.wait()
        except TimeoutError:
            pass
        finally:
            unwatch()
        return not self._backend.left(tenant)

    async def run(self) -> Report:
        """A worker process: start, wait for SIGTERM or SIGINT, stop. `asyncio.run(AsyncRunner().run())`.

        In the main thread, else ConfigurationError. A second signal ends the grace. Handlers that were there before are
        set again at the end.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError("run() waits for signals: in the main thread only; else start() and stop()")
        loop, told, again = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def note() -> None:
            (again if told.is_set() else told).set()

        try:
            handlers.replace(lambda number: loop.add_signal_handler(number, note))
            await self.start()
            try:
                await told.wait()
            except asyncio.CancelledError:
                again.set()  # no grace
                raise
            finally:
                report = await self._stop_unless(again)
            return report
        finally:
            for number in NUMBERS:
                loop.remove_signal_handler(number)
            handlers.restore()

    async def _stop_unless(self, hurry: asyncio.Event) -> Report:
        """Stop; the grace is over when `hurry` is set, or this is cancelled."""
        loop = asyncio.get_running_loop()
        stopping, second = loop.create_task(self.stop()), loop.create_task(hurry.wait())
        try:
            await asyncio.wait([stopping, second], return_when=asyncio.FIRST_COMPLETED)
        finally:
            second.cancel()
            if not stopping.done():
                stopping.cancel()
                await asyncio.wait([stopping])
        return self.report or await self.stop(0)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # ---- in the loop

    def _look_into(self, place: Place) -> None:
        """Start what this seat is to run, if it does not run yet."""
        run, loop = place.run, self._loop
        if run is None or run.started or loop is None:
            return
        if run.job.is_async:
            task = loop.create_task(
                attempt(run, self, self._steps), name=f"bulkhead-job {run.entry.name}", context=Context()
            )
            if not self._backend.start(place, run, task.cancel):
                task.cancel()
                return
            self._work[task] = run
            task.add_done_callback(lambda task: self._ended(place, run, task, ended(task)))
        elif self._backend.start(place, run, None):
            done: asyncio.Future[BaseException | None] = loop.create_future()
            self._work[done] = run
            name = f"bulkhead-job {run.entry.name}"
            thread = threading.Thread(target=self._in_thread, args=(loop, place, run, done), name=name, daemon=True)
            try:
                thread.start()
                self._threads[done] = thread, place
            except RuntimeError as error:  # there may be no more of them
                self._ended_in_thread(place, run, done, error)

    def _in_thread(
        self, loop: asyncio.AbstractEventLoop, place: Place, run: Run, done: asyncio.Future[BaseException | None]
    ) -> None:
        result = in_this_thread(run, self)
        try:
            loop.call_soon_threadsafe(self._ended_in_thread, place, run, done, result)
        except RuntimeError:  # the loop is closed, the job is not lost by that
            self._backend.settle(place, run, result)

    def _ended_in_thread(
        self, place: Place, run: Run, done: asyncio.Future[BaseException | None], result: BaseException | None
    ) -> None:
        if not done.done():
            done.set_result(None)
        self._ended(place, run, done, result)

    def _ended(self, place: Place, run: Run, work: asyncio.Future[Any], result: BaseException | None) -> None:
        self._work.pop(work, None)
        self._threads.pop(work, None)
        if self._backend.settle(place, run, result) is not None:
            self._look_into(place)

    def _look_for_lost(self) -> None:
        """Threads that an exception, sent by another one, ended before they could say how their job ended."""
        for done, (thread, place) in list(self._threads.items()):
            if not thread.is_alive() and self._loop is not None:  # what it said is heard before this
                error = JobCancelled("its thread was interrupted")
                self._loop.call_soon(self._ended_in_thread, place, self._work[done], done, error)

    def _watch(self, over: SimpleQueue[None]) -> None:
        """In a thread of its own: name a handler that does not even end its step."""
        while not heard(over, LOOK_AGAIN):
            step = self._step
            if step is not None and (seconds := time.perf_counter() - step[1]) > LOOK_AGAIN:
                self._blocked(step[0], seconds)

    def _steps(self, run: Run, began: float, seconds: float | None) -> None:
        if seconds is None:
            self._step = run, began
            return
        self._step = None
        if seconds > LONGEST_STEP:
            self._blocked(run, seconds)

    def _blocked(self, run: Run, seconds: float) -> None:
        """Once a minute for each handler."""
        now, name = time.monotonic(), run.entry.name
        if now - self._said.get(name, now - SAY_AGAIN) >= SAY_AGAIN:
            self._said[name] = now
            say(
                "job_blocks_loop",
                "nothing else could run meanwhile; await what waits, or make the handler a plain function",
                job=name,
                seconds=seconds,
            )

    async def _look(self) -> None:
        """Once a second, or when something is due, until the runner stops."""
        try:
            while not self._backend.closed:
                try:
                    self._look_for_lost()
                    await asyncio.wait_for(self._bell.wait(), self._backend.look())
                except TimeoutError:
                    pass
                except Exception as error:  # noqa: BLE001  it has to go on: what is due depends on it
                    say("jobs_look_failed", type(error).__name__)
                    await asyncio.sleep(1.0)
                self._bell.clear()
        finally:
            self._backend.close()
            self._over.put(None)


def in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Call it soon, from any thread. A loop that is closed calls nothing any more."""
    try:
        if asyncio._get_running_loop() is loop:  # noqa: SLF001  (its documented name, for event loops)
            loop.call_soon(function, *args)
        else:
            loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        pass

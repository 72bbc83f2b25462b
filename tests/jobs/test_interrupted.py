"""An exception out of a signal handler, or one that another thread sends, cuts a call short at any of its lines.

Nothing is lost for ever: each job that was kept runs or is dead in the end, its slot is free again, and all counts
agree. Deterministic for the backend (every line in turn), by chance for threads.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections import Counter
from itertools import count
from linecache import getline
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from counts import often

import bulkhead
from bulkhead.jobs import Runner, job, threads
from bulkhead.jobs.handlers import Call, registry
from bulkhead.jobs.memory import EVERYBODY, MemoryBackend, Seat
from bulkhead.settings import Jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from jobs.conftest import Clock


class Interrupted(BaseException):
    pass


def interrupted(after: int, act: Callable[[], object]) -> bool:
    """Run it, and raise before its n-th line in the package. False: it has no such line."""
    left = after
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if "/bulkhead/jobs/" not in frame.f_code.co_filename or frame.f_code.co_name == "in_words":  # never raises
            return None
        if event == "line" and not getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            left -= 1  # (a `with` line comes again when the block is left: there the interpreter itself raises nothing)
            if left < 0:
                sys.settrace(before)
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        act()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


class Bench(Seat):
    """A worker that does what the test says."""

    def wake(self) -> None: ...


WHAT = ["take", "later", "unknown", "success", "retry", "dead", "look", "due", "known", "again", "join", "recap"]


class Story:
    """A backend with a job in work, others in each place, and one call that is to be cut short."""

    def __init__(self, what: str, cap: int, lanes: int, clock: Clock) -> None:
        self.what, self.clock = what, clock
        self.backend = MemoryBackend(Jobs(workers=2, max_concurrent=cap, lanes=lanes), clock, lambda: 0.5, lambda: None)
        self.ran: list[str] = []
        for number in range(2):
            self.backend.join(Bench(number))
        self.kept = [self.put("a", attempts=1 if what == "dead" else 3) for _ in range(3)]
        self.kept += [self.put(None), self.put("b", delay=5.0)]
        if what == "known":
            self.kept += [self.put("a", name="late"), self.put("b", name="late")]
        self.busy = next(one for one in self.seats if one.run is not None and one.run.entry.tenant == "a")
        run = self.busy.run
        assert run is not None
        self.run = run
        self.backend.start(self.busy, run, None)
        if what == "again":
            run.entry.attempt = 3
            self.backend.settle(self.busy, run, ValueError())
        if what in {"due", "look"}:
            clock.now += 10.0 if what == "due" else 1.0

    @property
    def seats(self) -> list[Seat]:
        return list(self.backend._seats)

    def put(self, tenant: str | None, name: str = "work", delay: float = 0.0, attempts: int = 3) -> str:
        return self.backend.take(Call(name, "default", tenant, "{}", attempts, delay), inside=False)

    def act(self) -> None:
        backend = self.backend
        match self.what:
            case "take":
                self.put("a")
            case "later":
                self.put("a", delay=3.0)
            case "unknown":
                self.put("a", name="nobody")
            case "success":
                backend.settle(self.busy, self.run, None)
            case "retry" | "dead":
                backend.settle(self.busy, self.run, ValueError("no"))
            case "known":
                registry.jobs["late"] = registry.jobs["work"]
                backend.look_again()
            case "again":
                backend.retry(self.run.entry.id)
            case "join":
                backend.join(Bench(1))
            case "recap":
                backend.adopt(Jobs(max_concurrent=2))
            case _:
                backend.look()

    def go_on(self) -> None:
        """As the threads do it: each seat ends what it has begun, and begins what it is given."""
        for seat in self.seats:
            for _ in range(50):
                run = seat.run
                if run is None:
                    break
                if run.started:  # as after an interruption: how it ended nobody knows
                    self.backend.settle(seat, run, None)
                elif self.backend.start(seat, run, None):
                    self.ran.append(run.entry.id)
                    self.backend.settle(seat, run, None)

    def end(self) -> None:
        for name in ("nobody", "late"):
            registry.jobs[name] = registry.jobs["work"]
        self.backend.look_again()
        for _ in range(8):
            self.backend.look()
            self.go_on()
            self.clock.now += 10.0
        del registry.jobs["nobody"], registry.jobs["late"]


@pytest.mark.no_cover
@pytest.mark.parametrize("lanes", [0, 2])
@pytest.mark.parametrize("cap", [0, 1])
@pytest.mark.parametrize("what", WHAT)
def test_an_interrupted_call_loses_no_job_and_no_slot(what: str, cap: int, lanes: int, clock: Clock) -> None:
    @job(name="work")
    def work() -> None: ...

    for after in count(0, often(4, 1)):
        story = Story(what, cap, lanes, clock)
        more = interrupted(after, story.act)
        story.end()
        backend = story.backend
        gone = {*story.ran, *(one.id for one in backend.dead(EVERYBODY)), story.run.entry.id}
        assert not set(story.kept) - gone, after
        assert all(seat.run is None for seat in story.seats)
        assert backend.left(EVERYBODY) == backend.left("a") == backend.left(None) == 0, after
        stats = backend.stats()
        assert (stats.waiting, stats.later, stats.running, stats.unknown) == (0, 0, 0, {}), after
        assert stats.idle == len(story.seats)
        assert not backend._crew.slots.tenants(), after
        assert all(running == 0 == waiting for _, waiting, running in backend.queues()), after
        before = len(story.ran)
        for tenant in ("new-0", "new-1", "new-2", "a"):  # and no slot is gone
            story.put(tenant)
        story.go_on()
        assert len(story.ran) == before + 4, after
        if not more:
            assert after > 3
            return


def at_work(thread: threading.Thread) -> bool:
    """Is it where its own code runs? One that is being started, or ends, holds locks of the interpreter's `threading`."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_filename in (__file__, threads.__file__):
            return True
        frame = frame.f_back
    return False


def send(thread: threading.Thread) -> None:
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))


@pytest.mark.no_cover
def test_exceptions_sent_into_threads_that_enqueue_and_into_workers_lose_nothing_for_ever(
    eventually: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bulkhead"), "disabled", True)  # its handlers' locks are not taken by `with`
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's own would be interrupted, too
    ran: Counter[int] = Counter()

    @job(max_attempts=1000)
    def work(number: int) -> None:
        ran[number] += 1

    kept: set[int] = set()
    numbers, over, random = count(), threading.Event(), Random(7)  # noqa: S311

    def enqueue() -> None:
        while not over.is_set():
            try:
                while not over.is_set():
                    number = next(numbers)
                    try:
                        work.options(tenant=f"t-{number % 5}").enqueue(number)
                    except bulkhead.Rejected:
                        time.sleep(0.001)
                        continue
                    kept.add(number)
            except Interrupted:
                pass

    with Runner(workers=4, max_concurrent=2, lanes=2, max_backlog=500, chance=lambda: 0.0) as runner:
        enqueuers = [threading.Thread(target=enqueue, daemon=True) for _ in range(2)]
        for one in enqueuers:
            one.start()
        sent = 0
        while sent < often(1_000, 20_000):
            workers = [one for one in threading.enumerate() if one.name[:-1] == "bulkhead-jobs-"]
            for target in random.sample([*enqueuers, *workers], 2):
                if at_work(target):
                    send(target)
                    sent += 1
            time.sleep(random.choice((0.0, 0.0002, 0.001)))
        over.set()
        for one in enqueuers:
            one.join(20)
        eventually(lambda: not kept - set(ran) and not runner.stats().running, 30)
        eventually(lambda: runner.stats().idle == 4, 30)
        assert runner.drain(timeout=20)
        stats = runner.stats()
        assert (stats.waiting, stats.later, stats.running, stats.dead, stats.unknown) == (0, 0, 0, 0, {})
        assert runner.top_tenants() == []

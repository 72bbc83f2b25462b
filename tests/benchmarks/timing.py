"""Interleaved timing: every subject of a group gets one short chunk per round, in shuffled order.

Libraries of this field (pyperf, timeit) measure one subject after the other, or in processes of their own; on a busy
machine the speed of the machine changes in between, and a ratio of two numbers is then worth little. Here both were
measured within the same few milliseconds, hundreds of times.

Each subject has a loop of its own (compiled code of its own: the interpreter specialises a loop for what it calls). A
chunk starts with a few calls that are not timed; the garbage collector is off while the clock runs. Single-threaded
chunks are timed by the thread's CPU time, which does not count the moments when another process has the core.
"""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
import time
import timeit
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

CHUNK = 0.001  # seconds of a chunk: short beside a time slice of the scheduler, long beside reading a clock
WARM_UP = 20  # calls of each chunk that are not timed


@dataclass
class Subject:
    """Something to be timed. `run(n)` returns the seconds that n calls took."""

    run: Callable[[int], float]
    chunk: float = CHUNK
    warm_up: int = WARM_UP
    before: Callable[[], object] | None = None  # around each chunk, not timed
    after: Callable[[], object] | None = None
    calls: int = 0  # per chunk; found by `measure`
    times: list[float] = field(default_factory=list)  # ns per call, one entry per round
    besides: float | None = None  # seconds by another clock, where `run` reads one
    times_besides: list[float] = field(default_factory=list)

    def once(self, calls: int) -> float:
        """Seconds of one chunk."""
        if self.before is not None:
            self.before()
        try:
            if self.warm_up:
                self.run(self.warm_up)
            return self.run(calls)
        finally:
            if self.after is not None:
                self.after()

    def calibrate(self) -> None:
        """Find how many calls make a chunk."""
        calls = 1
        while (took := min(self.once(calls) for _ in range(3))) < self.chunk / 2 and calls < 1_000_000:
            calls *= 2
        self.calls = max(1, round(calls * self.chunk / took)) if took else calls


def measure(subjects: Mapping[str, Subject], rounds: int, *, seed: int = 1) -> dict[str, list[float]]:
    """Times per call in ns of each subject, one number per round; the n-th numbers belong to the same round."""
    order, rnd = list(subjects), random.Random(seed)  # noqa: S311  no secret
    for name in order:
        subjects[name].calibrate()
        subjects[name].times.clear()
        subjects[name].times_besides.clear()
    was_on = gc.isenabled()
    for index in range(rounds):
        if index % 20 == 0:
            print(f"\r  round {index} of {rounds} ", end="", file=sys.stderr, flush=True)
        gc.collect()
        gc.disable()
        try:
            rnd.shuffle(order)
            for name in order:
                subject = subjects[name]
                subject.times.append(subject.once(subject.calls) / subject.calls * 1e9)
                if subject.besides is not None:
                    subject.times_besides.append(subject.besides / subject.calls * 1e9)
        finally:
            if was_on:
                gc.enable()
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    return {name: subject.times for name, subject in subjects.items()}


def calls(statement: str, **names: Any) -> Subject:
    """A statement over these names, run again and again."""
    timer = timeit.Timer(statement, timer=time.thread_time, globals=names)
    return Subject(timer.timeit)


_ASYNC_LOOP = """
async def drive(n):
    began = clock()
    for _ in repeat(None, n):
        {statement}
    return clock() - began
"""


def awaits(loop: asyncio.AbstractEventLoop, statement: str, **names: Any) -> Subject:
    """The same for a statement with `await`, all subjects in one event loop."""
    names |= {"clock": time.thread_time, "repeat": itertools.repeat}
    exec(compile(_ASYNC_LOOP.format(statement=statement), "<async loop>", "exec"), names)  # noqa: S102
    drive = names["drive"]
    return Subject(lambda n: loop.run_until_complete(drive(n)))


def in_threads(threads: int, statement: str, chunk: float, **names: Any) -> Subject:
    """Wall-clock time per call when that many threads run the statement at once."""
    timers = [timeit.Timer(statement, globals=names) for _ in range(threads)]
    per_thread = [timer.inner for timer in timers]  # type: ignore[attr-defined]

    def run(n: int) -> float:
        share = max(1, n // threads)
        barrier, spans = threading.Barrier(threads), list[tuple[float, float]]()

        def work(inner: Callable[..., float]) -> None:
            barrier.wait()
            began = time.perf_counter()
            inner(iter(range(share)), time.perf_counter)
            spans.append((began, time.perf_counter()))

        running = [threading.Thread(target=work, args=(inner,)) for inner in per_thread]
        for one in running:
            one.start()
        for one in running:
            one.join()
        return (max(end for _, end in spans) - min(began for began, _ in spans)) * n / (share * threads)

    return Subject(run, chunk=chunk, warm_up=0)


def over(times: Sequence[float], bare: Sequence[float] | None) -> tuple[float, float]:
    """Median and minimum, each less that of the bare call."""
    if bare is None:
        return median(times), min(times)
    return median(one - other for one, other in zip(times, bare, strict=True)), min(times) - min(bare)


def paired(times: Sequence[float], plain: Sequence[float], control: Sequence[float] | None) -> tuple[float, float]:
    """Median of the differences to `plain` round by round, and the half-width of its 95 % bound (order statistics).

    With a control (a second plain client) the differences to both count: what the two differ is subtracted by half
    from either. (Not the differences to their mean: delays only add, so a mean of two is late more often than one.)
    """
    differences = [one - other for one, other in zip(times, plain, strict=True)]
    if control is not None:
        differences += [one - other for one, other in zip(times, control, strict=True)]
    differences.sort()
    half, reach = len(differences) / 2, 0.98 * len(differences) / len(times) ** 0.5
    low, high = differences[max(0, int(half - reach))], differences[min(len(differences) - 1, int(half + reach))]
    return median(differences), (high - low) / 2

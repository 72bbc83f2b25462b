"""An application with a fixed number of worker threads, and an open-loop load on it.

Arrivals follow a schedule made from a seed before the run; they do not wait for answers. A request's time begins at
its scheduled arrival, so waiting for a free worker counts, as it does for a user.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WORKERS = 16
PATIENCE = 5.0  # seconds after the last arrival that stragglers get
LOOK = 0.1  # seconds between two calls of `watch`
UNANSWERED = "not answered"


@dataclass(frozen=True)
class Arrival:
    """One request: when (seconds from the start), whose, and of which kind."""

    at: float
    tenant: str
    kind: str


@dataclass(frozen=True)
class Answer:
    """What became of a request. `took`: seconds from its arrival; inf if it was not answered when the run ended."""

    arrival: Arrival
    how: str
    took: float

    @property
    def ended(self) -> float:
        """Seconds from the start of the run to the answer."""
        return self.arrival.at + self.took


@dataclass
class Run:
    """One run so far: what was answered, and what is `waiting` (by number of the request)."""

    seconds: float
    answers: list[Answer] = field(default_factory=list)
    waiting: dict[int, Arrival] = field(default_factory=dict)
    began: float = 0.0

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began


def arrivals(per_second: float, seconds: float, tenants: Iterable[str], kind: str, seed: int) -> list[Arrival]:
    """Poisson arrivals, spread evenly over the tenants."""
    source, names, at, found = random.Random(seed), list(tenants), 0.0, []  # noqa: S311  a load, not a secret
    while (at := at + source.expovariate(per_second)) < seconds:
        found.append(Arrival(at, source.choice(names), kind))
    return found


def play(
    schedule: list[Arrival],
    seconds: float,
    handle: Callable[[Arrival], str],
    moments: dict[float, Callable[[], None]],
    watch: Callable[[Run], None],
) -> Run:
    """Send the schedule to `handle` on WORKERS threads; call each of `moments` (seconds -> function) when it comes.

    `handle` returns in a word what became of the request. `watch(run)` is called about ten times a second. Whatever
    interrupts it, no worker is at work when it ends, so time-outs of the drivers bound how long that takes.
    """
    run, stop = Run(seconds, began=time.monotonic()), threading.Event()

    def serve(number: int, arrival: Arrival) -> None:
        if stop.is_set():
            return
        how = handle(arrival)
        run.answers.append(Answer(arrival, how, run.now - arrival.at))
        del run.waiting[number]

    due, coming = sorted(moments.items()), sorted(enumerate(schedule), key=lambda one: one[1].at)
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="worker")
    looked = -LOOK
    try:
        while (now := run.now) < seconds or coming or (run.waiting and now < seconds + PATIENCE):
            while due and due[0][0] <= now:
                due.pop(0)[1]()
            while coming and coming[0][1].at <= now:
                number, arrival = coming.pop(0)
                run.waiting[number] = arrival
                pool.submit(serve, number, arrival)
            if now - looked >= LOOK:
                looked = now
                watch(run)
            time.sleep(0.002)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    run.answers += [Answer(arrival, UNANSWERED, inf) for arrival in run.waiting.values()]
    run.waiting.clear()
    watch(run)
    return run


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies; nan without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")

"""Numbers of all runners of this process for monitoring, by queue. Names of queues stand in code, tenants nowhere.

A runner that is gone leaves its counters behind: they must not go back.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from bulkhead import measures
from bulkhead.jobs.numbers import Numbers
from bulkhead.measures import Measure, Number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bulkhead.jobs.memory import MemoryBackend

WAITING = Measure("bulkhead_jobs_waiting", "Jobs that are due and wait", ("queue",), "gauge")
RUNNING = Measure("bulkhead_jobs_running", "Jobs that run", ("queue",), "gauge")
LATER = Measure("bulkhead_jobs_later", "Jobs that are delayed or between two attempts", (), "gauge")
UNKNOWN = Measure("bulkhead_jobs_unknown", "Jobs whose name no handler has", (), "gauge")
DEAD = Measure("bulkhead_jobs_dead", "Jobs that failed for good and are kept", (), "gauge")
FINISHED = Measure("bulkhead_jobs_finished", "Attempts that ended, by outcome", ("queue", "outcome"), "counter")
REFUSED = Measure("bulkhead_jobs_refused", "Jobs that were not taken, by limit", ("reason",), "counter")
WAITED = Measure("bulkhead_jobs_wait_seconds", "From the moment a job is due until it begins", ("queue",), "summary")


class _Runners:
    """Those that live, and what the others left."""

    def __init__(self) -> None:
        self.fresh()

    def fresh(self) -> None:
        """Count from 0. Also in a forked child; runners that live there count anew themselves."""
        self._lock = threading.Lock()
        self._gone = Numbers()
        self._departed: deque[Numbers] = deque()
        living = list(getattr(self, "_living", ()))
        self._living: weakref.WeakSet[MemoryBackend] = weakref.WeakSet()
        for one in living:
            self.add(one)

    def add(self, backend: MemoryBackend) -> None:
        """Count this one, too."""
        with self._lock:
            self._living.add(backend)
        weakref.finalize(backend, self._departed.append, backend.numbers).atexit = False

    def living(self) -> list[MemoryBackend]:
        """Those that live."""
        with self._lock:
            return list(self._living)

    def gone(self) -> Numbers:
        """What those left that are no more; asked for while `living` is held, none is missed or counted twice."""
        with self._lock:
            self._fold()
        return self._gone

    def _fold(self) -> None:
        while self._departed:
            self._gone.add(self._departed.popleft())


_runners = _Runners()
add = _runners.add


def read() -> Iterator[Number]:
    """All numbers of now."""
    living = _runners.living()
    counted = Numbers()
    counted.add(_runners.gone())
    queues: dict[str, list[int]] = {}
    totals = [0, 0, 0]
    for one in living:
        counted.add(one.numbers)
        for queue, waiting, running in one.queues():
            place = queues.setdefault(queue, [0, 0])
            place[0] += waiting
            place[1] += running
        stats = one.stats()
        for index, number in enumerate((stats.later, sum(stats.unknown.values()), stats.dead)):
            totals[index] += number
    for queue, (waiting, running) in queues.items():
        yield Number(WAITING, (queue,), waiting)
        yield Number(RUNNING, (queue,), running)
    for measure, number in zip((LATER, UNKNOWN, DEAD), totals, strict=True):
        yield Number(measure, (), number)
    for (queue, outcome), attempts in counted.outcomes.items():
        yield Number(FINISHED, (queue, outcome), attempts)
    for queue, (times, seconds) in counted.waited.items():
        yield Number(WAITED, (queue,), seconds, times)
    for reason, refusals in counted.refused.numbers().items():
        yield Number(REFUSED, (reason,), refusals)


def refused() -> int:
    """Jobs that were refused at the limit of one tenant."""
    living = _runners.living()
    return _runners.gone().refused_tenants.value + sum(one.numbers.refused_tenants.value for one in living)


measures.add(read)
measures.add_rejections("job", refused)
os.register_at_fork(after_in_child=_runners.fresh)

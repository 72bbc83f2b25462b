"""Several processes: each mirrors its numbers into ordinary metrics, whose files Prometheus' client adds up.

Custom collectors and Enums do not work there. A daemon thread writes at most once a second; it is started by the first
guarded call of a process, and by nothing else: a server's master that only loads the application (gunicorn --preload)
never has it. Whoever forks ends the thread first, whose last act is to write, so no lock of Prometheus' client is
taken at that moment; parent and child each start anew at their next guarded call. It writes once more at exit. What it
cannot write in a moment then (thousands of resources for the first time) waits until the next writing.

Labels cannot be removed from these files: a resource that is gone keeps its counters and has 0 in its gauges. Counters
are only ever raised by what was added since the last time, so they never go back.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from prometheus_client import Counter, Gauge, values

from bulkhead import events
from bulkhead.errors import ConfigurationError
from bulkhead.metrics.others import Mirrored
from bulkhead.metrics.reading import (
    CALLS,
    IN_USE,
    LIMIT,
    REJECTIONS,
    STATE,
    TENANT_REJECTIONS,
    WAITS,
    Gauges,
    Names,
    Totals,
    caps,
)
from bulkhead.registry import registry as resources

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger("bulkhead")

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
INTERVAL = 1.0  # seconds between two times of writing
SHARE = 0.05  # of a core at most, however many resources there are
LAST_WORDS = 0.25  # seconds that the thread goes on to write when it is to end
PATIENCE = 2.0  # seconds that a fork or an exit waits for the thread; only a disk that hangs takes so long
NOTHING = 1e-9


class _Enough(Exception):
    """The thread is to end."""


class BulkheadMirror:
    """The ordinary metrics of this process, and what was written to them."""

    watching: events.Subscription | None = None
    """With call_seconds: what feeds the histogram; cancel it to stop watching calls."""

    def __init__(self) -> None:
        self._calls = Counter(CALLS.name, CALLS.help, CALLS.labels, registry=None)
        self._refused = Counter(REJECTIONS.name, REJECTIONS.help, REJECTIONS.labels, registry=None)
        self._of_tenants = Counter(
            TENANT_REJECTIONS.name, TENANT_REJECTIONS.help, TENANT_REJECTIONS.labels, registry=None
        )
        self._in_use = Gauge(IN_USE.name, IN_USE.help, IN_USE.labels, registry=None, multiprocess_mode="livesum")
        self._limit = Gauge(LIMIT.name, LIMIT.help, LIMIT.labels, registry=None, multiprocess_mode="livesum")
        self._state = Gauge(STATE.name, STATE.help, STATE.labels, registry=None, multiprocess_mode="livesum")
        # The two series of a summary, which can only observe one by one. In mode "sum" what the dead waited stays.
        self._waited = {
            which: Gauge(f"{WAITS.name}_{suffix}", WAITS.help, WAITS.labels, registry=None, multiprocess_mode="sum")
            for which, suffix in (("count", "count"), ("seconds", "sum"))
        }
        self._others = Mirrored(self._show_too)
        self._names = Names()
        self._registries: WeakSet[CollectorRegistry] = WeakSet()
        self.fresh()

    def fresh(self) -> None:
        """Nothing is written yet. Also in a forked child, where nothing of the parent counts."""
        self._lock = threading.RLock()  # of beginnings and ends; a signal handler may fork at any moment
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._until = inf  # when a thread that is to end stops writing, by time.monotonic()
        self._forks = 0  # under way; several threads may fork at once
        self._failed = self._by_thread = False
        self._at_exit = 0  # the process that writes at its exit
        self._seen: dict[str, Totals] = {}  # identifier -> what was written, less what it took along when it went
        self._shown: dict[str, Gauges] = {}
        self._others.forget()

    def add_to(self, registry: CollectorRegistry) -> None:
        """Show the metrics of this process there too, and begin at the first guarded call."""
        if registry not in self._registries:
            self._registries.add(registry)
            for metric in self._metrics():
                registry.register(metric)
        self.await_calls()

    def _metrics(self) -> list[Counter | Gauge]:
        return [
            self._calls, self._refused, self._of_tenants, self._in_use, self._limit, self._state,
            *self._waited.values(), *self._others.metrics.values(),
        ]  # fmt: skip

    def _show_too(self, metric: Counter | Gauge) -> None:
        for registry in self._registries:
            registry.register(metric)

    # ---- when to write

    def await_calls(self) -> None:
        """Start the thread at the first guarded call, if there is none."""
        with self._lock:
            if self._thread is None:
                events.at_next_call(self._begin)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is not None or self._forks:
                return
            self._until = inf
            end = threading.Event()
            thread = threading.Thread(target=self._run, args=(end,), name="bulkhead-metrics", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends, or there may be no more threads: `close` writes
                log.warning("[BULKHEAD] no thread could be started that writes metrics; they are written at exit only")
            else:
                self._thread, self._end = thread, end
        self._write_at_exit()

    def _run(self, end: threading.Event) -> None:
        pause = 0.0
        while True:
            ended = end.wait(pause)
            began = time.thread_time()
            self._try_to_write(by_thread=True)
            if ended:
                return
            pause = max(INTERVAL, (time.thread_time() - began) / SHARE)

    def _write_at_exit(self) -> None:
        if self._at_exit == os.getpid():
            return
        self._at_exit = os.getpid()
        atexit.register(self.close)
        # A forked child of multiprocessing ends without the functions of atexit.
        util: Any = sys.modules.get("multiprocessing.util")
        process: Any = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, self.close, exitpriority=0)

    def _stop(self) -> bool:
        """End the thread; its last act is to write. False: it hangs."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._until = time.monotonic() + LAST_WORDS
            self._end.set()
        if thread is None:
            return True
        thread.join(PATIENCE)
        return not thread.is_alive()

    def close(self) -> None:
        """At the end of a worker: write once more, and show nothing in the gauges.

        Called at exit. For servers whose workers end by `os._exit` (Celery): call it in their last hook.
        """
        if self._at_exit != os.getpid():
            return  # a forked child without a guarded call
        if self._stop():
            self._try_to_write(last=True)

    # ---- around a fork

    def before_fork(self) -> None:
        """No thread, and no lock of Prometheus' client, may be in the middle of something."""
        with self._lock:
            self._forks += 1
        self._stop()

    def after_in_parent(self) -> None:
        """A parent goes on at its next guarded call."""
        with self._lock:
            self._forks = max(0, self._forks - 1)  # a mirror that was made between the two has counted none
            forks = self._forks
        if not forks:
            self.await_calls()

    def after_in_child(self) -> None:
        """A child begins at its first guarded call."""
        self.fresh()
        self.await_calls()

    # ---- what to write

    def write(self) -> None:
        """Write the numbers of now. The thread does; in between for tests and for hooks of servers."""
        with self._writing:
            self._write()

    def _try_to_write(self, *, last: bool = False, by_thread: bool = False) -> None:
        try:
            with self._writing:
                self._write(last=last, by_thread=by_thread)
            self._failed = False
        except _Enough:
            pass
        except Exception:
            if not self._failed:  # said once; it goes on as soon as the folder can be written again
                self._failed = True
                log.exception("[BULKHEAD] metrics could not be written to %s", os.environ.get(FOLDER))

    def _write(self, *, last: bool = False, by_thread: bool = False) -> None:
        """First what took its leave: then whatever goes meanwhile is found here the next time, and counted once.

        `by_thread`: ends by _Enough when the thread is to end; the next writing does what is left.
        """
        self._by_thread = by_thread
        for identifier, totals in resources.take_departed().items():
            seen = self._seen.setdefault(identifier, {})
            for what, value in totals.items():
                seen[what] = seen.get(what, 0) - value
        registered = resources.resources()
        everything = {identifier: one.totals() for identifier, one in registered.items()} | caps()
        for identifier, totals in everything.items():
            self._count(identifier, totals)
        for identifier in [one for one in self._seen if one not in everything]:
            self._count(identifier, {})
            if all(value <= NOTHING for value in self._seen[identifier].values()):
                del self._seen[identifier]
        shown: dict[str, Gauges] = {}
        for identifier, one in () if last else registered.items():
            self._go_on()
            shown.setdefault(self._names.of(identifier), Gauges()).add(one)
        self._of_tenants.labels("db")
        self._others.write(last=last)
        self._show(shown)

    def _go_on(self) -> None:
        if self._by_thread and time.monotonic() >= self._until:
            raise _Enough

    def _count(self, identifier: str, totals: Totals) -> None:
        self._go_on()
        seen = self._seen.setdefault(identifier, {})
        for what in [*totals, *(one for one in seen if one not in totals)]:
            now = totals.get(what, 0)
            more = now - seen.get(what, 0)
            if more > NOTHING or what not in seen:  # a counter that is seen at 0 first has a rate from the beginning
                self._raise(self._names.of(identifier), *what, max(0, more))
                seen[what] = now

    def _raise(self, name: str, what: str, which: str, more: float) -> None:
        if what == "calls":
            self._calls.labels(name, which).inc(more)
        elif what == "rejections":
            self._refused.labels(name, which).inc(more)
        elif what == "tenant_rejections":
            self._of_tenants.labels(which).inc(more)
        elif what == "waits":
            self._waited[which].labels(name).inc(more)

    def _show(self, shown: dict[str, Gauges]) -> None:
        nothing = Gauges()
        for name in {**self._shown, **shown}:
            self._go_on()
            now, before = shown.get(name, nothing), self._shown.get(name)
            if before is None or now.in_use != before.in_use:
                self._in_use.labels(name).set(now.in_use)
            if now.limit if before is None else now.limit != before.limit:
                self._limit.labels(name).set(now.limit)
            for state, number in now.states.items():
                if before is None or number != before.states[state]:
                    self._state.labels(name, state).set(number)
        self._shown = {name: shown.get(name, nothing) for name in {**self._shown, **shown}}


def several_processes() -> bool:
    """Did Prometheus' client choose the multi-process mode? It does when it is imported; later changes come too late.

    ConfigurationError: the folder is not there, or cannot be written.
    """
    chosen = bool(getattr(values.ValueClass, "_multiprocess", False))
    folder = os.environ.get(FOLDER) or os.environ.get(FOLDER.lower())
    if folder and not chosen:
        log.warning(
            "[BULKHEAD] %s was set after prometheus_client was imported: metrics are those of one process", FOLDER
        )
    if chosen and not (folder and Path(folder).is_dir() and os.access(folder, os.W_OK)):
        raise ConfigurationError(
            f"{FOLDER}={folder!r} is no folder that can be written; make it, empty, before the server starts"
        )
    return chosen


_mirrors: list[BulkheadMirror] = []


def the_mirror() -> BulkheadMirror:
    """The one of this process: two would write to the same places."""
    if not _mirrors:
        mirror = BulkheadMirror()
        _mirrors.append(mirror)
        os.register_at_fork(
            before=mirror.before_fork,
            after_in_parent=mirror.after_in_parent,
            after_in_child=mirror.after_in_child,
        )
    return _mirrors[0]

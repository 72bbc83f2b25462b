"""Groups of rows: calls that succeed, one thread, an event loop, several threads."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from guarded import BOTH, CIRCUIT, SITE, by_begin, inlined, inlined_async, inlined_async_with_start, made
from peers import (
    CIRCUITBREAKER,
    FREE_THREADED,
    LOCK,
    PYBREAKER,
    SEMAPHORE,
    Client,
    broken_circuit,
    budget,
    limited,
    locked,
    py_broken,
    work,
    work_async,
)
from prometheus_client import CollectorRegistry
from table import Line, cost_line, ratio_line
from timing import Subject, awaits, calls, in_threads, measure

import bulkhead
import bulkhead.metrics
from bulkhead.adapter import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.events import Subscription

TO_LOCK, TO_LOCK_IN_THREADS = budget(0.7, 1.5), budget(0.85, 1.5)
NO_LONGER = 1.03  # 8 threads that block: no longer than unguarded; sleeping itself varies by this much
BARE = "bare call"


def _call(function: Callable[..., Any], client: Client | None = None) -> Subject:
    return calls("function(client, 1)", function=function, client=client or Client())


def _of(**options: Any) -> Subject:
    return _call(inlined(), Client(made(**options)))


def _decorated(function: Callable[..., Any] = work, **options: Any) -> Callable[..., Any]:
    return made(**options)(function)


def plain(rounds: int) -> list[Line]:
    """One thread, nothing in the way."""
    subscription: list[Subscription] = []

    def subscribe() -> None:
        subscription.append(bulkhead.subscribe(lambda event: None))

    subjects = {
        BARE: _call(work),
        LOCK: _call(locked(work)),
        CIRCUITBREAKER: _call(broken_circuit(work)),
        PYBREAKER: _call(py_broken(work)),
        "tenant, resource, circuit: inlined": _of(**BOTH),
        "tenant, resource, circuit: guard()": _call(guard(work, SITE), Client(made(**BOTH))),
        "tenant, resource, circuit: begin()": _call(by_begin(), Client(made(**BOTH))),
        "unconfigured: inlined": _call(inlined()),
        "unconfigured: guard()": _call(guard(work, SITE)),
        "circuit only": _of(**CIRCUIT),
        "decorator, with nesting mark": _call(_decorated(**BOTH)),
        "start time (call_timeout)": _of(call_timeout=30.0, **BOTH),
        "tenant_circuit": _of(tenant_circuit=True, **BOTH),
        "able to wait (timeout)": _of(timeout=1.0, **BOTH),
        "in a row": _of(error_threshold_timeout_enabled=False, **BOTH),
        "error_tenants=2": _of(error_tenants=2, **BOTH),
        "shadow": _of(mode="shadow", **BOTH),
        "off": _of(mode="off", **BOTH),
    }
    watched = _of(**BOTH)
    watched.before, watched.after = subscribe, lambda: subscription.pop().cancel()
    subjects["one subscriber"] = watched
    results = measure(subjects, rounds)
    lines = [Line(BARE, f"{min(results[BARE]):,.0f} ns minimum")]
    lines += [cost_line(peer, results) for peer in (LOCK, CIRCUITBREAKER, PYBREAKER)]
    budgets = ((LOCK, TO_LOCK), (CIRCUITBREAKER, budget(0.25)), (PYBREAKER, budget(0.10)))
    for form in ("inlined", "guard()"):
        lines += [ratio_line(f"tenant, resource, circuit: {form}", results, peer, most) for peer, most in budgets]
    lines.append(ratio_line("decorator, with nesting mark", results, CIRCUITBREAKER, budget(0.7)))
    compared = {line.row for line in lines}
    lines += [ratio_line(row, results, LOCK) for row in subjects if row not in compared]
    return lines


def counted(rounds: int) -> list[Line]:
    """With a collector registered. In a group of its own: once counted, always counted."""
    bulkhead.metrics.register(CollectorRegistry())
    subjects = {
        BARE: _call(work),
        LOCK: _call(locked(work)),
        "outcome counters: inlined": _of(**BOTH),
        "outcome counters: decorator": _call(_decorated(**BOTH)),
    }
    results = measure(subjects, rounds)
    return [ratio_line(row, results, LOCK) for row in list(subjects)[2:]]


def in_loop(rounds: int) -> list[Line]:
    """Coroutines in one event loop."""
    loop = asyncio.new_event_loop()

    def call(function: Callable[..., Any], client: Client | None = None) -> Subject:
        return awaits(loop, "await function(client, 1)", function=function, client=client or Client())

    subjects = {
        BARE: call(work_async),
        SEMAPHORE: call(limited(work_async)),
        CIRCUITBREAKER: call(broken_circuit(work_async)),
        "tenant, resource, circuit: inlined": call(inlined_async(), Client(made(**BOTH))),
        "start time, for cancellations: inlined": call(inlined_async_with_start(), Client(made(**BOTH))),
        "start time, for cancellations: guard()": call(guard(work_async, SITE), Client(made(**BOTH))),
        "circuit only": call(inlined_async(), Client(made(**CIRCUIT))),
        "decorator, with nesting mark": call(_decorated(work_async, **BOTH)),
        "able to wait (timeout)": call(inlined_async(), Client(made(timeout=1.0, **BOTH))),
        "start time (call_timeout)": call(inlined_async(), Client(made(call_timeout=30.0, **BOTH))),
    }
    try:
        results = measure(subjects, rounds)
    finally:
        loop.close()
    lines = [cost_line(peer, results) for peer in (SEMAPHORE, CIRCUITBREAKER)]
    lines.append(ratio_line("tenant, resource, circuit: inlined", results, SEMAPHORE, budget(0.3)))
    lines.append(ratio_line("decorator, with nesting mark", results, CIRCUITBREAKER, budget(0.9)))
    compared = {BARE, *(line.row for line in lines)}
    lines += [ratio_line(row, results, SEMAPHORE) for row in subjects if row not in compared]
    return lines


def in_threads_(rounds: int) -> list[Line]:
    """Eight threads on one guard."""

    def call(function: Callable[..., Any], client: Client | None = None) -> Subject:
        return in_threads(8, "function(client, 1)", 0.04, function=function, client=client or Client())

    subjects = {
        BARE: call(work),
        LOCK: call(locked(work)),
        PYBREAKER: call(py_broken(work)),
        "8 threads: inlined": call(inlined(), Client(made(**BOTH))),
        "8 threads: guard()": call(guard(work, SITE), Client(made(**BOTH))),
    }
    results = measure(subjects, rounds)
    # Without the GIL, threads that call the same function wait for its reference count: that is in every row.
    bare = None if FREE_THREADED else BARE
    lines = [cost_line(peer, results, bare=bare) for peer in (LOCK, PYBREAKER)]
    lines += [ratio_line(row, results, LOCK, TO_LOCK_IN_THREADS, bare=bare) for row in list(subjects)[3:]]
    return lines


def blocking(rounds: int) -> list[Line]:
    """Eight threads whose calls block for a millisecond."""

    def sleep(self: Client, value: int) -> None:
        time.sleep(0.001)

    def call(function: Callable[..., Any], client: Client | None = None) -> Subject:
        subject = in_threads(8, "function(client, 1)", 0.02, function=function, client=client or Client())
        subject.calls = 160
        subject.calibrate = lambda: None  # type: ignore[method-assign]
        return subject

    unguarded = "8 threads x 1 ms: unguarded"
    subjects = {
        unguarded: call(sleep),
        "8 threads x 1 ms: guarded": call(inlined(sleep), Client(made(**BOTH))),
        "8 threads x 1 ms: pybreaker": call(py_broken(sleep)),
    }
    results = measure(subjects, rounds)
    return [
        cost_line(unguarded, results, bare=None),
        ratio_line("8 threads x 1 ms: guarded", results, unguarded, NO_LONGER, bare=None),
        ratio_line("8 threads x 1 ms: pybreaker", results, unguarded, bare=None),
    ]

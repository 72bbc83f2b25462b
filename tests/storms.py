"""Exceptions between any two instructions: a signal handler raises, often twice in a row, at random moments.

For stories in an interpreter of their own (timers and handlers belong to the process), which put this folder into
`sys.path`. Here is only what does it; what must hold afterwards is the story's to say.
"""

from __future__ import annotations

import faulthandler
import gc
import random
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 40.0  # of a story; a slow machine gets fewer exceptions in its time
HANG = 110.0  # seconds until all threads say where they are, and the interpreter exits
ENOUGH = 20  # a story must have got one part in so many of what was wanted


class Signal(BaseException):
    """What the handler raises."""


HIT = (Signal, SystemError)
"""CPython makes a SystemError of a Signal that is raised while a C function has raised something itself."""

_armed, _again = [0], [0.0]


def storm(
    body: Callable[[random.Random], object],
    wanted: int,
    *,
    low: float = 0.00003,
    spread: float = 0.0001,
    calls: int = 400,
) -> None:
    """Call body(rng) until `wanted` exceptions hit it.

    `low`, `spread`: seconds until the next one, and at random how many more; `calls`: of the body under one timer.
    """
    _begin(_raise)
    hits, rng = [0], random.Random(7)  # noqa: S311  no secret
    end = time.monotonic() + SECONDS

    def count(error: BaseException) -> None:
        if isinstance(error, SystemError) and not isinstance(error.__cause__, Signal):
            raise error
        hits[0] += 1

    def once() -> None:
        _again[0] = rng.choice((0, 2e-6, 1e-5, 2e-5))
        _armed[0] = 2
        signal.setitimer(signal.ITIMER_REAL, low + rng.random() * spread)
        for _ in range(calls):
            body(rng)

    def loop() -> None:
        while hits[0] < wanted and time.monotonic() < end:
            try:
                once()
            except HIT as error:
                count(error)
        _end()

    def again() -> None:
        while True:
            try:
                loop()
                break
            except HIT as error:  # in the `while` of `loop`
                count(error)

    while True:
        try:
            again()
            break
        except HIT as error:  # the second of two, in that of `again`
            count(error)
    assert hits[0] >= wanted / ENOUGH, hits
    gc.collect()


def interrupt(nested: Callable[[random.Random], object], body: Callable[[random.Random], object], wanted: int) -> None:
    """Call body(rng) until a signal handler, at random moments, has called nested(rng) `wanted` times."""
    calls, rng, rng_of_handler = [0], random.Random(9), random.Random(3)  # noqa: S311  no secret

    def handler(*_: Any) -> None:
        calls[0] += 1
        nested(rng_of_handler)
        if _armed[0]:
            signal.setitimer(signal.ITIMER_REAL, 0.00003 + rng_of_handler.random() * 0.0001)

    _begin(handler)
    end = time.monotonic() + SECONDS
    _armed[0] = 1
    signal.setitimer(signal.ITIMER_REAL, 0.0001)
    while calls[0] < wanted and time.monotonic() < end:
        body(rng)
    _end()
    assert calls[0] > wanted / ENOUGH, calls
    gc.collect()


def _begin(handler: Callable[..., None]) -> None:
    # Faulthandler starts a thread. CPython may forget a signal that another thread than the main one was given.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    faulthandler.dump_traceback_later(HANG, exit=True)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    signal.signal(signal.SIGALRM, handler)


def _end() -> None:
    _armed[0] = 0
    signal.setitimer(signal.ITIMER_REAL, 0)


def _raise(*_: Any) -> None:
    if _armed[0] > 0:
        _armed[0] = _armed[0] - 1 if _again[0] else 0
        if _armed[0]:
            signal.setitimer(signal.ITIMER_REAL, _again[0])
        raise Signal

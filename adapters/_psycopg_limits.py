"""Time limits that psycopg does not have: a statement or connect that lasts too long is ended at the client.

psycopg 3.3 has limits for statements, which are used where they are. Before, and for connects, this holds: psycopg
drives generators and wakes them every 0.1 s even where nothing arrives (READY_NONE), so a generator around the
driver's own one can look at the clock. psycopg 3.1 does not wake synchronous ones: there the generator waits for the
socket by itself before it hands over. Importing this module patches nothing.
"""

from __future__ import annotations

import select
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as e
from psycopg.waiting import Wait

from adapters._psycopg_errors import PsycopgCallTimeoutError

if TYPE_CHECKING:
    from collections.abc import Generator

_VERSION = tuple(map(int, psycopg.__version__.split(".")[:2]))
SLEEPS = _VERSION < (3, 2)  # wakes synchronous calls for data only
NATIVE = _VERSION >= (3, 3)  # `wait` takes a time limit, and raises this:
TimeIsOver: type[e.OperationalError] = getattr(e, "_WaitTimeout", type("Never", (e.OperationalError,), {}))
CLOSINGS = 3  # a generator with `finally: yield from …` may need more than one


class Deadline:
    """When a call has to be over, and the error if it is not."""

    __slots__ = ("identifier", "seconds", "until")

    def __init__(self, seconds: float, identifier: str) -> None:
        self.seconds, self.identifier = seconds, identifier
        self.until = monotonic() + seconds

    def shorter(self, interval: float | None) -> float:
        """An interval of wake-ups in which this is not missed."""
        return self.seconds if interval is None else min(interval, self.seconds)

    @property
    def passed(self) -> bool:
        """Is it over?"""
        return monotonic() >= self.until

    def error(self) -> PsycopgCallTimeoutError:
        """A fresh error that says so."""
        return PsycopgCallTimeoutError(
            f"{self.identifier!r} gave no answer within {self.seconds:g} s; its connection was ended"
        )


def limited(gen: Any, deadline: Deadline, pgconn: Any = None) -> Generator[Any, Any, Any]:
    """`gen` until the deadline; then its connection is closed and PsycopgCallTimeoutError raised."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            wanted = gen.send(ready)
            if deadline.passed:
                break
    except StopIteration as stop:
        return stop.value
    finish(gen, pgconn)
    raise deadline.error()


def limited_asleep(gen: Any, deadline: Deadline, pgconn: Any) -> Generator[Any, Any, Any]:
    """The same for a driver that wakes nobody: the socket is ready before the driver asks."""
    try:
        wanted = next(gen)
        while _ready(pgconn.socket, wanted, deadline):
            ready = yield wanted
            wanted = gen.send(ready)
    except StopIteration as stop:
        return stop.value
    finish(gen, pgconn)
    raise deadline.error()


def _ready(descriptor: int, wanted: Any, deadline: Deadline) -> bool:
    poll = select.poll()
    events = (select.POLLIN if wanted & Wait.R else 0) | (select.POLLOUT if wanted & Wait.W else 0)
    poll.register(descriptor, events)
    return bool(poll.poll(max(0.0, deadline.until - monotonic()) * 1000))


def finish(gen: Any, pgconn: Any) -> None:
    """Close the connection, and the generator in whatever it is doing."""
    if pgconn is not None:
        pgconn.finish()
    for _ in range(CLOSINGS):
        with suppress(Exception):
            gen.close()
            return

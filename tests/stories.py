"""Words for tests that tell a story about one resource: a clock moved by hand, calls that succeed, fail, or go on.

Not a double of anything: every call here takes a real permit and ends it.
"""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from bulkhead import ResourceBusyError
from bulkhead.adapter import Resource, Session, Site
from bulkhead.option_set import Options
from bulkhead.outcomes import DIRECT, Errors, Outcome, every_exception
from bulkhead.tenancy import tenant as work_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.tickets.pool import Pool

E = TypeVar("E", bound=BaseException)
CONNECT = Site("call", "connection", DIRECT.errors, every_exception)
NEVER_OPENS: dict[str, Any] = {"error_threshold": 1_000_000, "error_timeout": 10.0, "success_threshold": 2}


class Boom(Exception):
    """What a resource in trouble raises."""


class Clock:
    """Seconds; moved by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def circuit(threshold: int = 2, timeout: float = 10.0, successes: int = 1, **more: Any) -> dict[str, Any]:
    """The three options that belong together, and others."""
    return {"error_threshold": threshold, "error_timeout": timeout, "success_threshold": successes, **more}


def resource(clock: Clock | None = None, identifier: str = "call:story", **options: Any) -> Resource:
    """A resource of its own, not registered."""
    return Resource(identifier, Options(**options), clock or Clock())


def hold(one: Resource, tenant: str | None = None, site: Site = DIRECT) -> Session:
    """A call that has begun and goes on."""
    with work_for(tenant):
        return Session(one.enter(site) if site.connects else one.begin(site), site, one.clock())


async def ahold(one: Resource, tenant: str | None = None) -> Session:
    """A call of a coroutine that has begun and goes on."""
    with work_for(tenant):
        return Session(await one.abegin(DIRECT), DIRECT, one.clock())


def succeed(one: Resource, tenant: str | None = None, site: Site = DIRECT) -> None:
    """A call that succeeds."""
    hold(one, tenant, site).end()


def fail(one: Resource, tenant: str | None = None, error: BaseException | None = None, site: Site = DIRECT) -> None:
    """A call that raises (a Boom, if nothing else is given)."""
    session = hold(one, tenant, site)
    with work_for(tenant):
        session.fail(Boom("boom") if error is None else error)


def refused(kind: type[E], one: Resource, tenant: str | None = None, site: Site = DIRECT) -> E:
    """A call that must be refused like this; returns the refusal."""
    with pytest.raises(kind) as caught:
        hold(one, tenant, site).end()
    return caught.value


def full(one: Resource, tenant: str | None = None) -> str:
    """The limit that refuses a call now."""
    return refused(ResourceBusyError, one, tenant).limit


def pools(one: Resource) -> list[Pool]:
    """Every pool of the resource."""
    found = [*one.tenants.everything(), *one.connections.everything()]
    return found if one.shared is None else [*found, one.shared]


def at_rest(one: Resource, *, collect: bool = True) -> None:
    """Assert that nothing is in flight, nothing is lost, nobody waits, and no cap can be exceeded."""
    if collect:
        gc.collect()
    for pool in pools(one):
        with one.lock:
            pool.fill()
        assert pool.in_use == 0, pool
        assert not pool.lost, pool
        assert len(pool) == len({id(ticket) for ticket in pool}) == len(pool.watch), pool
        assert len(pool.watch) <= pool.limit, pool
    with one.lock:
        one.queue._forget_gone()
    assert not one.queue.lines


def together(*calls: Callable[[], object], seconds: float = 20.0) -> list[Any]:
    """Run each in a thread of its own, begun at once; what each returned, or the exception it raised."""
    results: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(index: int, call: Callable[[], object]) -> None:
        start.wait(seconds)
        try:
            results[index] = call()
        except BaseException as error:  # noqa: BLE001  handed to the test
            results[index] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return results


def begin(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


__all__ = [
    "CONNECT",
    "DIRECT",
    "NEVER_OPENS",
    "Boom",
    "Clock",
    "Errors",
    "Outcome",
    "ahold",
    "at_rest",
    "begin",
    "circuit",
    "fail",
    "full",
    "hold",
    "pools",
    "refused",
    "resource",
    "succeed",
    "together",
    "work_for",
]

"""What comes between a waiter and its ticket: the circuit, another limit, a cancellation. No wake-up is lost."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from counts import CANCELLATIONS
from polling import auntil, until
from stories import (
    DIRECT,
    NEVER_OPENS,
    Boom,
    ahold,
    at_rest,
    begin,
    circuit,
    hold,
    refused,
    resource,
    succeed,
    work_for,
)

from bulkhead import CircuitOpenError, ResourceBusyError
from bulkhead.tickets.waiting import Queue, Waiter

if TYPE_CHECKING:
    from bulkhead.adapter import Resource

pytestmark = pytest.mark.anyio


async def test_cancelled_in_the_moment_it_was_granted_the_ticket_is_passed_on() -> None:
    """Known faults 38 and 46."""
    one = resource(tickets=1, timeout=10.0, max_waiting=10)
    held = await ahold(one)
    first, second = asyncio.create_task(ahold(one)), asyncio.create_task(ahold(one))
    await auntil(lambda: len(one.queue) == 2)
    held.end()
    first.cancel()
    session = await asyncio.wait_for(second, 5)
    with pytest.raises(asyncio.CancelledError):
        await first
    waiting, next_one = asyncio.create_task(ahold(one)), asyncio.create_task(ahold(one))
    await auntil(lambda: len(one.queue) == 2)
    waiting.cancel()
    await asyncio.sleep(0)
    session.end()
    (await asyncio.wait_for(next_one, 5)).end()
    at_rest(one)
    assert not one.failures.value


def test_a_waiter_whose_loop_is_closed_is_passed_by() -> None:
    one = resource(tickets=1, timeout=10.0)
    held = hold(one)

    async def wait_and_leave() -> None:
        one_waits = asyncio.ensure_future(ahold(one))
        await auntil(lambda: len(one.queue) == 1)
        one_waits.get_loop()  # it is left behind, pending

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    loop.run_until_complete(wait_and_leave())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    held.end()
    gc.collect()
    succeed(one)
    at_rest(one)


def test_a_ticket_that_comes_back_wakes_one_waiter_only() -> None:
    one = resource(tickets=1, timeout=20.0, max_waiting=100)
    held = hold(one)
    wakes: list[int] = []

    class Counting(Queue):
        __slots__ = ()

        def _hand_out(self, woken: list[Waiter]) -> None:
            super()._hand_out(woken)
            wakes.append(len(woken))

    threads = []
    for _ in range(20):
        threads.append(begin(lambda: hold(one).end()))
        until(lambda: len(one.queue) == len(threads))
    one.queue.__class__ = Counting
    held.end()
    for thread in threads:
        thread.join(10)
    assert sum(wakes) == 20
    assert max(wakes) == 1
    at_rest(one)


def test_opening_refuses_all_who_wait() -> None:
    one = resource(tickets=1, timeout=20.0, max_waiting=10, **circuit(1, 50))
    held = hold(one)
    results: list[Any] = []

    def call() -> None:
        try:
            hold(one).end()
        except CircuitOpenError as error:
            results.append(error)

    threads = [begin(call) for _ in range(3)]
    until(lambda: len(one.queue) == 3)
    held.fail(Boom("down"))
    for thread in threads:
        thread.join(5)
    assert len(results) == 3
    assert {type(error.__cause__) for error in results} == {Boom}
    at_rest(one)


def test_opening_by_hand_refuses_all_who_wait_at_once() -> None:
    one = resource(tickets=1, timeout=20.0, max_waiting=10)
    held = hold(one)
    threads = [begin(lambda: refused(CircuitOpenError, one)) for _ in range(3)]
    until(lambda: len(one.queue) == 3)
    one.open("maintenance")
    assert not one.queue.lines, "not when they look again by themselves"
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    held.end()
    at_rest(one)


def test_those_who_wait_are_refused_when_the_calls_that_hang_open_the_circuit() -> None:
    """Nobody ends and nobody new asks: every thread of a small server hangs or waits."""
    one = resource(time.monotonic, tickets=1, timeout=30.0, max_waiting=10, call_timeout=0.1, **circuit(1, 50))  # type: ignore[arg-type]
    held = hold(one)
    results: list[Any] = []

    def call() -> None:
        try:
            hold(one).end()
        except CircuitOpenError as error:
            results.append(error)

    threads = [begin(call) for _ in range(3)]
    for thread in threads:
        thread.join(10)
    assert [type(error.__cause__) for error in results] == [TimeoutError] * 3
    held.end()
    assert one.failures.value == 1
    at_rest(one)


async def test_coroutines_that_wait_are_refused_when_the_calls_that_hang_open_the_circuit() -> None:
    one = resource(time.monotonic, tickets=1, timeout=30.0, call_timeout=0.1, **circuit(1, 50))  # type: ignore[arg-type]
    held = hold(one)
    async with asyncio.timeout(10):
        with pytest.raises(CircuitOpenError):
            await ahold(one)
    held.end()
    at_rest(one)


def test_a_waiter_that_gets_its_ticket_is_asked_about_the_circuit_again() -> None:
    """Refused in the queue's own words: opened by hand, nothing came back."""
    one = resource(tickets=1, timeout=20.0)
    held = hold(one)
    results: list[Any] = []
    thread = begin(lambda: results.append(refused(CircuitOpenError, one)))
    until(lambda: len(one.queue) == 1)
    one.open("maintenance")
    thread.join(5)
    assert results[0].retry_after is None
    held.end()
    at_rest(one)


def test_a_larger_limit_wakes_those_who_wait() -> None:
    one = resource(tickets=1, timeout=10.0)
    held = hold(one)
    thread = begin(lambda: hold(one).end())
    until(lambda: len(one.queue) == 1)
    one.update(tickets=2)
    thread.join(3)
    assert not thread.is_alive()
    held.end()
    at_rest(one)


def test_a_larger_limit_is_handed_out_at_once() -> None:
    one = resource(tickets=1, timeout=20.0, max_waiting=10)
    held = hold(one)
    go_on = threading.Event()

    def call() -> None:
        session = hold(one)
        go_on.wait(10)
        session.end()

    threads = [begin(call) for _ in range(3)]
    until(lambda: len(one.queue) == 3)
    one.update(tickets=3)
    assert len(one.queue) == 1, "not when they look again by themselves"
    go_on.set()
    for thread in threads:
        thread.join(10)
    held.end()
    at_rest(one)


def test_a_ticket_that_is_lost_rings_no_bell_and_is_found_all_the_same() -> None:
    one = resource(tickets=1, timeout=10.0)
    held = [hold(one)]
    thread = begin(lambda: hold(one).end())
    until(lambda: len(one.queue) == 1)
    held.clear()
    thread.join(5)
    assert not thread.is_alive()
    at_rest(one)


def test_a_waiter_that_died_in_line_does_not_slow_the_others_for_ever() -> None:
    """Known fault 4 of our own, the other way round: a dead place must not stay, or no call is fast again."""
    one = resource(tickets=1, tenant_tickets=1, timeout=1.0)
    gone = Waiter("ghost", DIRECT, lambda: None)
    held = hold(one, "a")
    one.queue._join(gone)
    assert one.queue.lines
    del gone
    held.end()
    for _ in range(3):
        succeed(one, "b")
    assert not one.queue.lines
    assert "b" in one.fast


async def test_a_storm_of_cancellations_loses_nothing() -> None:
    """Known faults 1, 38 and 46."""
    one = resource(**NEVER_OPENS, tickets=3, tenant_tickets=2, timeout=0.02, max_waiting=50, maximum_tenants=3)
    rng, inside, most = random.Random(5), [0], [0]  # noqa: S311

    @one
    async def call(seconds: float) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        try:
            await asyncio.sleep(seconds)
        finally:
            inside[0] -= 1

    async def one_call() -> None:
        with work_for(f"t{rng.randrange(6)}"), contextlib.suppress(ResourceBusyError):
            await call(rng.choice((0, 0.001, 0.004)))

    for _ in range(CANCELLATIONS // 20):
        tasks = [asyncio.create_task(one_call()) for _ in range(20)]
        for task in tasks:
            if rng.random() < 0.6:
                asyncio.get_running_loop().call_later(rng.random() * 0.005, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert inside[0] == 0
    assert most[0] <= 3
    at_rest(one)
    assert not one.failures.value


async def test_a_storm_of_cancelled_probes_closes_in_the_end() -> None:
    """Known faults 1 and 7."""
    one = resource(**circuit(1, 0.01, 2, half_open_max_probes=2), tickets=3)
    one.clock = time.monotonic

    @one
    async def call(seconds: float) -> None:
        await asyncio.sleep(seconds)

    with pytest.raises(Boom):
        await _failing(one)
    for _ in range(CANCELLATIONS // 10):
        with pytest.raises((TimeoutError, CircuitOpenError)):
            await asyncio.wait_for(call(5), 0.001)

    async def is_closed() -> bool:
        with contextlib.suppress(CircuitOpenError):  # a probe that takes longer than error_timeout opens it again
            await call(0)
        return one.state == "closed"

    await auntil(is_closed)
    at_rest(one)


async def _failing(one: Resource) -> None:
    async with one.permit():
        raise Boom


async def test_a_task_that_never_was_awaited_again_gives_everything_back() -> None:
    one = resource(tickets=1, timeout=5.0)

    async def caller() -> None:
        async with one.permit():
            await asyncio.sleep(60)

    task = asyncio.create_task(caller(), context=contextvars.copy_context())
    await asyncio.sleep(0)
    assert one.in_use == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    at_rest(one)

"""Waiting for tickets: FIFO per tenant, tenants in turn, threads and event loops in one queue."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import time
from typing import Any

import pytest
from polling import auntil, until
from stories import (
    NEVER_OPENS,
    ahold,
    at_rest,
    begin,
    full,
    hold,
    resource,
    succeed,
    together,
)

from bulkhead import ResourceBusyError

pytestmark = pytest.mark.anyio


def test_nobody_waits_by_default() -> None:
    """Known fault 47: a second ticket of a holder that has all fails at once instead of hanging."""
    one = resource(tickets=2)
    held = [hold(one), hold(one)]
    assert full(one) == "resource"
    assert one.waited == [0, 0.0]
    del held


def test_threads_are_served_in_turn_by_tenant() -> None:
    one = resource(tickets=1, tenant_tickets=1, timeout=20.0, max_waiting=10)
    held = hold(one, "holder")
    order: list[tuple[str, int]] = []

    def call(tenant: str, number: int) -> None:
        session = hold(one, tenant)
        order.append((tenant, number))
        session.end()

    threads = []
    for tenant, number in [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]:
        threads.append(begin(functools.partial(call, tenant, number)))
        until(lambda: len(one.queue) == len(threads))
    held.end()
    for thread in threads:
        thread.join(10)
    assert order == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)]
    at_rest(one)
    succeed(one, "a")
    succeed(one, "a")
    assert "a" in one.fast, "when nobody waits calls are fast again"


def test_a_wait_that_is_over_is_a_refusal_and_leaves_nothing_behind() -> None:
    """BH-16, BH-17."""
    one = resource(tickets=1, timeout=0.1)
    held = hold(one)
    began = time.monotonic()
    assert full(one) == "resource"
    assert 0.09 < time.monotonic() - began < 5
    assert not one.queue.lines
    assert one.waited[0] == 1
    assert one.waited[1] >= 0.09
    held.end()
    succeed(one)
    at_rest(one)


async def test_a_coroutine_waits_without_blocking_its_loop() -> None:
    one = resource(tickets=1, timeout=10.0)
    held = await ahold(one)
    waiting = asyncio.create_task(ahold(one))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(one.queue) == 1
    held.end()
    (await asyncio.wait_for(waiting, 5)).end()
    at_rest(one)


async def test_a_coroutine_s_wait_ends_in_time() -> None:
    one = resource(tickets=1, timeout=0.1)
    held = await ahold(one)
    began = time.monotonic()
    with pytest.raises(ResourceBusyError):
        await ahold(one)
    assert 0.09 < time.monotonic() - began < 5
    held.end()
    at_rest(one)


async def test_a_plain_call_in_the_thread_of_a_running_loop_never_waits() -> None:
    one = resource(tickets=1, timeout=30.0)
    held = hold(one)
    began = time.monotonic()
    assert full(one) == "resource"
    assert time.monotonic() - began < 5
    held.end()


async def test_a_call_that_cannot_wait_is_not_refused_because_others_do() -> None:
    """Tenant a waits for its own ticket: that is no reason to refuse tenant b, whose ticket is free."""
    one = resource(tickets=10, tenant_tickets=1, timeout=10.0)
    held = await ahold(one, "a")
    waiting = asyncio.create_task(ahold(one, "a"))
    await auntil(lambda: len(one.queue) == 1)
    succeed(one, "b")
    assert full(one, "a") == "tenant"
    held.end()
    (await asyncio.wait_for(waiting, 5)).end()
    at_rest(one)


async def test_waiting_is_switched_off_while_somebody_waits() -> None:
    one = resource(tickets=1, timeout=10.0)
    held = await ahold(one)
    waiting = asyncio.create_task(ahold(one))
    await auntil(lambda: len(one.queue) == 1)
    one.update(timeout=0.0)
    assert full(one) == "resource"
    one.update(tickets=2)
    (await asyncio.wait_for(waiting, 5)).end()
    held.end()
    at_rest(one)


def test_max_waiting_is_per_pool_and_the_pool_s_own_limit_by_default() -> None:
    one = resource(tickets=10, tenant_tickets=1, timeout=30.0)
    held = [hold(one, "a"), hold(one, "b")]
    waiting = [begin(lambda: hold(one, "a").end())]
    until(lambda: one.queue.length("a") == 1)
    began = time.monotonic()
    assert full(one, "a") == "tenant"
    assert time.monotonic() - began < 5
    waiting.append(begin(lambda: hold(one, "b").end()))
    until(lambda: one.queue.length("b") == 1)
    for session in held:
        session.end()
    for thread in waiting:
        thread.join(5)
    at_rest(one)


def test_without_limits_of_tenants_max_waiting_is_that_of_the_resource() -> None:
    one = resource(tickets=1, timeout=30.0, max_waiting=2)
    held = hold(one, "a")
    waiting = []
    for number in range(2):
        waiting.append(begin(functools.partial(succeed, one, f"t{number}")))
        until(lambda: len(one.queue) == len(waiting))
    began = time.monotonic()
    assert full(one, "t9") == "resource"
    assert time.monotonic() - began < 5
    held.end()
    for thread in waiting:
        thread.join(5)
    at_rest(one)


async def test_three_hundred_waiting_tenants_are_not_looked_at_for_each_ticket() -> None:
    """Known fault 11 of our own: fewer than 3 attempts per waiter."""
    one = resource(tenant_tickets=1, tickets=1000, timeout=60.0)
    held = [await ahold(one, f"t{number}") for number in range(300)]
    waiting = [asyncio.create_task(ahold(one, f"t{number}")) for number in range(300)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(one.queue.lines) == 300
    assert not one.queue._ready
    attempts = [0]
    kind = type(one)

    class Counting(kind):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def attempt(self, tenant: Any, site: Any) -> Any:
            attempts[0] += 1
            return super().attempt(tenant, site)

    one.__class__ = Counting
    for session in held:
        session.end()
    sessions = await asyncio.gather(*waiting)
    assert attempts[0] <= 900
    for session in sessions:
        session.end()
    at_rest(one)
    assert not one.queue._ready


def test_loops_and_threads_share_one_queue() -> None:
    """Known fault 34: the same guard from two loops in two threads and from plain threads."""
    one = resource(**NEVER_OPENS, tickets=2, tenant_tickets=1, timeout=30.0, max_waiting=100)
    inside, most, done = [0], [0], []
    guard = threading.Lock()

    def enter() -> None:
        with guard:
            inside[0] += 1
            most[0] = max(most[0], inside[0])

    def leave() -> None:
        with guard:
            inside[0] -= 1

    def plain(seed: int) -> None:
        for _ in range(20):
            session = hold(one, f"t{seed % 3}")
            enter()
            time.sleep(random.random() * 0.001)  # noqa: S311
            leave()
            session.end()
            done.append(1)

    async def work(seed: int) -> None:
        for _ in range(5):
            session = await ahold(one, f"t{seed % 3}")
            enter()
            await asyncio.sleep(random.random() * 0.001)  # noqa: S311
            leave()
            session.end()
            done.append(1)

    async def main() -> None:
        await asyncio.gather(*[work(seed) for seed in range(6)])

    results = together(
        *[lambda seed=seed: plain(seed) for seed in range(3)], *[lambda: asyncio.run(main())] * 2, seconds=50
    )
    assert results == [None] * 5
    assert most[0] <= 2
    assert len(done) == 3 * 20 + 2 * 30
    at_rest(one)

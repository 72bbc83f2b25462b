"""A nested call of one identifier is part of the outer one; tasks and threads are calls of their own; bypass."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from stories import Boom, at_rest, circuit, fail, full, hold, resource, together, work_for

import bulkhead
from bulkhead import CircuitOpenError, ConfigurationError, Resource, ResourceBusyError, bypass, subscribe, unregister
from bulkhead.adapter import guard
from bulkhead.events import Bypassed
from bulkhead.nesting import current, inside, mark, unmark
from bulkhead.outcomes import DIRECT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.anyio


def test_a_nested_call_takes_no_second_ticket_and_reports_no_second_outcome() -> None:
    """Known fault 47, and 32: a guarded call may call itself."""
    one, other = resource(**circuit(2), tickets=1), resource(identifier="call:other", tickets=1)

    @one
    def inner(bad: bool = False) -> int:  # noqa: FBT001, FBT002
        if bad:
            raise Boom
        return one.in_use

    @other
    def middle(bad: bool = False) -> int:  # noqa: FBT001, FBT002
        return inner(bad)

    @one
    def outer(bad: bool = False) -> int:  # noqa: FBT001, FBT002
        return middle(bad)

    assert outer() == 1
    with one.permit(), one.permit():
        assert outer() == 1
        assert one.in_use == 1
    with pytest.raises(Boom):
        outer(bad=True)
    assert one.failures.value == 1
    assert inner() == 1
    at_rest(one)
    at_rest(other)
    assert not inside("call:story")


def test_a_call_that_has_ended_makes_no_later_resource_look_for_it() -> None:
    """To look takes longer than the call: it is for resources that can be nested in."""
    with resource().permit():
        assert resource(identifier="call:within").marked
    assert not resource(identifier="call:afterwards").marked


async def test_tasks_and_threads_started_inside_are_calls_of_their_own() -> None:
    """Known fault 12 of our own: or 10 children would be in flight under one ticket."""
    one = resource(tickets=1)

    @one
    async def child() -> int:
        await asyncio.sleep(0)
        return one.in_use

    @one
    def plain_child() -> int:
        return one.in_use

    @one
    async def parent() -> None:
        assert await child() == 1
        assert plain_child() == 1
        results = await asyncio.gather(
            *[child() for _ in range(3)], asyncio.to_thread(plain_child), return_exceptions=True
        )
        assert [type(result) for result in results] == [ResourceBusyError] * 4

    await parent()
    at_rest(one)


async def test_a_task_that_outlives_the_outer_call_is_guarded() -> None:
    one = resource(tickets=1)
    got: dict[str, Any] = {}

    @one
    async def inner() -> int:
        return one.in_use

    @one
    async def outer() -> None:
        assert await inner() == 1

        async def child() -> None:
            await asyncio.sleep(0.01)
            got["later"] = await inner()

        got["task"] = asyncio.create_task(child())

    await outer()
    at_rest(one)
    await got["task"]
    assert got["later"] == 1
    held = hold(one)
    with pytest.raises(ResourceBusyError):
        await inner()
    held.end()
    at_rest(one)


def test_two_threads_on_one_guard_are_two_calls() -> None:
    one = resource(tickets=2)
    meet = threading.Barrier(2)
    used: list[int] = []

    @one
    def both() -> None:
        meet.wait(5)
        used.append(one.in_use)
        meet.wait(5)

    together(both, both)
    assert used == [2, 2]


def test_after_many_calls_from_many_threads_nobody_is_inside() -> None:
    """Known fault 35: a flag on the object would stay set and switch the circuit off."""
    one = resource(**circuit(1_000_000))

    @one
    def once(fails: int) -> None:
        if fails:
            raise Boom

    def work() -> None:
        for step in range(200):
            with contextlib.suppress(Boom):
                once(step % 2)
        assert not inside("call:story")

    assert together(*[work] * 8) == [None] * 8
    one.open()
    with pytest.raises(CircuitOpenError):
        once(0)


def test_what_runs_between_two_items_of_a_generator_is_a_call_of_its_own() -> None:
    one = resource(tickets=1)

    @one
    def items() -> Iterator[int]:
        with one.permit():
            yield one.in_use
            yield one.in_use

    for used in items():
        assert used == 1
        assert not inside("call:story")
        assert full(one) == "resource"
    at_rest(one)


async def test_the_same_of_an_async_generator() -> None:
    one = resource(tickets=1)

    @one
    async def items() -> AsyncIterator[int]:
        yield one.in_use
        yield one.in_use

    async for used in items():
        assert used == 1
        assert full(one) == "resource"
    at_rest(one)


def test_a_generator_within_a_call_of_the_same_identifier_takes_nothing() -> None:
    one = resource(tickets=1)

    @one
    def items() -> Iterator[int]:
        yield one.in_use
        yield one.in_use

    with one.permit():
        assert list(items()) == [1, 1]
    at_rest(one)


async def test_an_async_generator_within_a_call_takes_nothing() -> None:
    one = resource(tickets=1)

    @one
    async def items() -> AsyncIterator[int]:
        yield one.in_use
        yield one.in_use

    async with one.permit():
        assert [used async for used in items()] == [1, 1]
    at_rest(one)


def test_marks_end_in_any_order() -> None:
    first = mark("a:1")
    second = mark("b:2")
    unmark(first)
    assert not inside("a:1")
    assert inside("b:2")
    unmark(second)
    assert not inside("b:2")
    third = mark("a:1")
    fourth = mark("b:2")
    unmark(fourth)
    assert inside("a:1")
    unmark(third)
    assert not inside("a:1")


def test_a_mark_in_a_copy_of_the_context_counts_there_for_nothing() -> None:
    outer = mark("a:1")
    assert not contextvars.copy_context().run(inside, "a:1")
    unmark(outer)


def test_a_mark_that_was_left_behind_counts_for_nothing() -> None:
    """An exception between two instructions, and this thread would be unguarded for ever."""

    def interrupted() -> None:
        mark("call:story")

    interrupted()
    assert not inside("call:story")
    current.set(["call:story", None])  # before its token was kept
    assert not inside("call:story")
    one = resource(tickets=1)
    with one.permit():
        assert one.in_use == 1
        assert inside("call:story")
    at_rest(one)


def test_a_mark_left_behind_does_not_come_back_as_the_outer_one() -> None:
    def interrupted() -> None:
        mark("call:story")

    interrupted()
    other = mark("call:other")
    assert not inside("call:story")
    unmark(other)
    assert not inside("call:story")


def test_bypass_takes_nothing_asks_nothing_and_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    one = resource(**circuit(1), tickets=1)

    @one
    def call() -> int:
        return one.in_use

    fail(one)
    seen: list[object] = []
    with subscribe(seen.append, Bypassed), caplog.at_level(logging.WARNING, "bulkhead"), work_for("a"):
        with bypass("call:story"):
            assert call() == 0
            with one.permit():
                assert one.in_use == 0
            with pytest.raises(Boom), one.permit():
                raise Boom
        assert [event.tenant for event in seen] == ["a"]  # type: ignore[attr-defined]
    assert caplog.text.count("is bypassed here") == 1
    with pytest.raises(CircuitOpenError):
        call()
    assert one.failures.value == 1


@pytest.mark.parametrize("wrong", ["story", "", "call:", None, 5])
def test_what_is_no_identifier_cannot_be_bypassed(wrong: Any) -> None:
    """A name without its kind would bypass nothing, and say nothing."""
    with pytest.raises(ConfigurationError, match=r"'redis:inventory', not .*bulkhead.resources\(\)"):
        bypass(wrong)


async def test_bypass_is_for_this_task_only() -> None:
    one = resource(tickets=1)
    one.open()

    @one
    async def call() -> None: ...

    async with bypass("call:story"):
        await call()
        with pytest.raises(CircuitOpenError):
            await asyncio.create_task(call())
    with pytest.raises(CircuitOpenError):
        await call()


def test_bypass_of_one_identifier_is_no_bypass_of_another() -> None:
    one = resource(tickets=1)
    one.open()
    with bypass("call:else"), pytest.raises(CircuitOpenError), one.permit():
        pass


class Client:
    """A client of a driver, whose calls look for a mark only if its resource says that there can be one."""

    def __init__(self, guarding: Resource) -> None:
        self.bulkhead = guarding.guarded_by("driver")

    def _call(self) -> int:
        return self.bulkhead.in_use

    call = guard(_call, DIRECT)


def test_a_client_is_inside_a_permit_of_its_resource() -> None:
    one = resource(tickets=1)
    client = Client(one)
    assert client.call() == 1
    for _ in range(2):
        with one.permit():
            assert client.call() == 1
    assert client.call() == 1
    at_rest(one)


@pytest.fixture
def registered() -> Iterator[Callable[[], Resource]]:
    """Get or create a registered resource with one ticket."""
    yield partial(bulkhead.resource, "nested", tickets=1)
    unregister("call:nested")


def test_a_client_is_inside_a_permit_of_the_resource_that_replaced_its_own(registered: Callable[[], Resource]) -> None:
    client = Client(registered())
    unregister("call:nested")
    with registered().permit():
        assert client.call() == 0
    client.call()


def test_a_client_is_inside_a_permit_that_its_resource_was_replaced_under(registered: Callable[[], Resource]) -> None:
    old = registered()
    client = Client(old)
    with old.permit():
        unregister("call:nested")
        new = registered()
        held = hold(new)
        assert client.call() == 1  # of the old one, which has the permit
        assert Client(new).call() == 1
        held.end()


def test_a_bypass_holds_for_what_another_thread_registers_meanwhile(registered: Callable[[], Resource]) -> None:
    with bypass("call:nested"):
        with ThreadPoolExecutor(1) as threads:
            one = threads.submit(registered).result()
        client = Client(one)
        held = hold(one)
        assert client.call() == 1
    with pytest.raises(ResourceBusyError):
        client.call()
    held.end()


def test_a_bypass_holds_for_what_is_registered_already(registered: Callable[[], Resource]) -> None:
    client = Client(registered())
    held = hold(registered())
    with bypass("call:nested"):
        assert client.call() == 1
    with pytest.raises(ResourceBusyError):
        client.call()
    held.end()

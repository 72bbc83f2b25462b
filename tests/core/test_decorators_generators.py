"""Guarded generators of both kinds: the ticket is theirs from the first item until they end, however they end."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from polling import auntil
from stories import Boom, at_rest, circuit, resource

from bulkhead import ResourceBusyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

pytestmark = pytest.mark.anyio


def test_a_generator_is_guarded_while_it_runs() -> None:
    """Known fault 42."""
    one = resource(**circuit(1), tickets=1)

    @one
    def numbers(n: int) -> Generator[Any, Any, str]:
        for number in range(n):
            try:
                yield number
            except KeyError:
                yield "caught"
        return "end"

    running = numbers(3)
    assert one.in_use == 0, "made, not run"
    assert next(running) == 0
    assert one.in_use == 1
    with pytest.raises(ResourceBusyError):
        next(numbers(1))
    assert running.throw(KeyError()) == "caught"
    running.close()
    at_rest(one)
    assert one.state == "closed"
    abandoned = numbers(3)
    next(abandoned)
    del abandoned
    at_rest(one)

    def outer() -> Generator[Any, Any, None]:
        assert (yield from numbers(2)) == "end"

    assert list(outer()) == [0, 1]
    at_rest(one)


def test_send_and_throw_reach_the_generator() -> None:
    one = resource(tickets=1)
    seen: list[object] = []

    @one
    def echo() -> Generator[int, object, None]:
        for number in range(3):
            try:
                seen.append((yield number))
            except Boom as error:
                seen.append(error)

    running = echo()
    assert next(running) == 0
    assert running.send("a") == 1
    error = Boom()
    assert running.throw(error) == 2
    with pytest.raises(StopIteration):
        next(running)
    assert seen == ["a", error, None]
    at_rest(one)


def test_an_error_in_the_body_of_a_generator_counts() -> None:
    """Known fault 42, exactly: at the second item."""
    one = resource(**circuit(1), tickets=1)

    @one
    def broken() -> Iterator[int]:
        yield 1
        raise Boom

    with pytest.raises(Boom):
        list(broken())
    assert one.state == "open"
    at_rest(one)


async def test_an_async_generator_is_guarded_while_it_runs() -> None:
    """Known fault 44: left early, closed, collected: the ticket is back and there is no verdict."""
    one = resource(**circuit(1), tickets=1)

    @one
    async def numbers(n: int = 3) -> AsyncIterator[Any]:
        for number in range(n):
            try:
                yield number
            except KeyError:
                yield "caught"

    running: Any = numbers()
    assert one.in_use == 0
    assert await running.__anext__() == 0
    assert one.in_use == 1
    assert await running.athrow(KeyError()) == "caught"
    await running.aclose()
    at_rest(one)
    async for _ in numbers():
        break
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)
    at_rest(one)
    assert [number async for number in numbers()] == [0, 1, 2]
    assert one.state == "closed"
    at_rest(one)


async def test_an_error_in_the_body_of_an_async_generator_counts() -> None:
    one = resource(**circuit(1), tickets=1)

    @one
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise Boom

    with pytest.raises(Boom):
        async for _ in broken():
            pass
    assert one.state == "open"
    at_rest(one)


async def test_an_async_generator_cancelled_between_items_gives_its_ticket_back() -> None:
    one = resource(**circuit(1), tickets=1)

    @one
    async def slow() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(60)
        yield 2

    async def consume() -> None:
        async for _ in slow():
            pass

    task = asyncio.create_task(consume())
    await auntil(lambda: one.in_use == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    at_rest(one)
    assert one.state == "closed"


def test_errors_thrown_into_a_generator_leave_no_garbage() -> None:
    one = resource(tickets=1)

    @one
    def swallow() -> Generator[int, None, None]:
        while True:
            try:
                yield 1
            except Boom:
                pass

    def drive() -> None:
        running = swallow()
        next(running)
        for _ in range(3):
            running.throw(Boom())
        running.close()

    drive()
    gc.collect()
    gc.disable()
    try:
        drive()
        assert gc.collect() == 0
    finally:
        gc.enable()
    at_rest(one)

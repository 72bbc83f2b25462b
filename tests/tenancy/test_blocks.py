"""Whose work it is inside a block, after it, and in other tasks and threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkhead.errors import ConfigurationError
from bulkhead.tenancy import current_tenant, reset_tenant, set_tenant, tenant

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from types import FrameType


def test_a_block_sets_the_tenant_and_restores_the_one_before() -> None:
    assert current_tenant() is None
    with tenant("acme"):
        assert current_tenant() == "acme"
        with tenant("other"):
            assert current_tenant() == "other"
        assert current_tenant() == "acme"
        with tenant(None):
            assert current_tenant() is None
        assert current_tenant() == "acme"
    assert current_tenant() is None


def test_an_exception_passes_and_the_tenant_is_restored() -> None:
    with pytest.raises(KeyboardInterrupt), tenant("acme"):
        raise KeyboardInterrupt
    assert current_tenant() is None


def test_one_object_can_be_entered_again_and_nested() -> None:
    acme, other = tenant("acme"), tenant("other")
    for _ in range(2):
        with acme, other, acme:
            assert current_tenant() == "acme"
        assert current_tenant() is None
    with acme:
        with acme:
            pass
        assert current_tenant() == "acme"
    assert current_tenant() is None


def test_async_with_does_the_same() -> None:
    async def main() -> None:
        async with tenant("acme") as entered:
            assert entered == current_tenant() == "acme"
            async with tenant("other"):
                await asyncio.sleep(0)
                assert current_tenant() == "other"
            assert current_tenant() == "acme"
        assert current_tenant() is None

    asyncio.run(main())


def test_tasks_of_one_loop_do_not_see_each_others_tenant() -> None:
    """Known fault 60."""

    async def work(whose: str) -> list[str | None]:
        seen: list[str | None] = []
        with tenant(whose):
            for _ in range(5):
                await asyncio.sleep(0)
                seen.append(current_tenant())
        return [*seen, current_tenant()]

    async def main() -> None:
        one, two = await asyncio.gather(work("a"), work("b"))
        assert one == ["a"] * 5 + [None]
        assert two == ["b"] * 5 + [None]

    asyncio.run(main())


def test_a_task_started_inside_works_for_the_tenant_and_its_own_blocks_are_its_own() -> None:
    async def main() -> None:
        acme = tenant("acme")

        async def child() -> str | None:
            with acme, tenant("child"):
                await asyncio.sleep(0.01)
            return current_tenant()

        with acme:
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
            assert current_tenant() == "acme"
        assert current_tenant() is None
        assert await task == "acme"

    asyncio.run(main())


def test_one_object_serves_many_threads_at_a_time() -> None:
    acme = tenant("acme")
    wrong: list[str | None] = []

    def work() -> None:
        for _ in range(300):
            with acme:
                if current_tenant() != "acme":
                    wrong.append(current_tenant())
            if current_tenant() is not None:
                wrong.append(current_tenant())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def rows() -> Generator[int, None, None]:
    with tenant("generator"):
        yield 1


def test_a_generator_that_ends_inside_a_later_block_does_not_touch_that_block() -> None:
    one = rows()
    next(one)
    with tenant("later"):
        one.close()
        assert current_tenant() == "later"
    assert current_tenant() is None


def test_a_generator_that_ends_inside_two_later_blocks_does_not_touch_those() -> None:
    with tenant("acme"):
        one = rows()
        next(one)
        with tenant("later"):
            with tenant("last"):
                one.close()
                assert current_tenant() == "last"
            assert current_tenant() == "later"
        assert current_tenant() == "acme"
    assert current_tenant() is None


def test_a_generator_that_outlives_the_block_around_does_not_keep_its_tenant_set() -> None:
    with tenant("acme"):
        one = rows()
        next(one)
    assert current_tenant() is None
    one.close()
    assert current_tenant() is None


def test_an_async_generator_closed_by_another_task_changes_nothing_there() -> None:
    async def rows() -> AsyncGenerator[int, None]:
        async with tenant("generator"):
            yield 1

    async def main() -> None:
        one = rows()

        async def start() -> None:
            await anext(one)

        await asyncio.create_task(start())
        with tenant("later"):
            await one.aclose()
            assert current_tenant() == "later"
        assert current_tenant() is None

    asyncio.run(main())


def test_a_token_resets_once_and_only_where_it_was_made() -> None:
    token = set_tenant("acme")
    assert current_tenant() == "acme"
    with pytest.raises(ConfigurationError, match="made in another task, thread"):
        contextvars.copy_context().run(reset_tenant, token)
    reset_tenant(token)
    assert current_tenant() is None
    with pytest.raises(ConfigurationError, match="already used"):
        reset_tenant(token)
    with pytest.raises(ConfigurationError, match="the token that set_tenant returned"):
        reset_tenant("acme")  # type: ignore[arg-type]
    foreign = contextvars.ContextVar[str | None]("foreign").set("x")
    with pytest.raises(ConfigurationError):
        reset_tenant(foreign)


def test_an_asynchronous_exception_at_any_instruction_leaves_no_tenant_behind() -> None:
    """The block around restores the tenant, wherever between two instructions an inner one was cut short."""

    class Interrupted(BaseException):
        pass

    def work() -> None:
        with tenant("inner"):
            pass

    def strike(at: int) -> bool:
        """Run with an exception at the at-th instruction of our own code; whether it came to that."""
        count = 0

        def trace(frame: FrameType, event: str, _: object) -> object:
            nonlocal count
            if frame.f_code.co_filename.endswith("tenancy.py"):
                frame.f_trace_opcodes = True
                if event == "opcode":
                    count += 1
                    if count == at:
                        raise Interrupted
            return trace

        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # 3.12 looks for it before anything is traced
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            work()
        finally:
            sys.settrace(before)
        return False

    struck = 0
    for at in range(1, 400):
        with tenant("outer"), contextlib.suppress(Interrupted):
            if strike(at) is False:
                struck = at
                break
        assert current_tenant() is None, f"after an exception at instruction {at}"
    assert 50 < struck < 400


STEPS = st.lists(st.tuples(st.sampled_from(["enter", "leave"]), st.sampled_from(["a", "b", None])), max_size=30)


@given(STEPS)
def test_any_nesting_restores_each_tenant(steps: list[tuple[str, str | None]]) -> None:
    with contextlib.ExitStack() as outer:
        model: list[str | None] = [None]
        blocks: list[contextlib.ExitStack] = []
        for what, whose in steps:
            if what == "enter":
                block = outer.enter_context(contextlib.ExitStack())
                block.enter_context(tenant(whose))
                blocks.append(block)
                model.append(whose)
            elif blocks:
                blocks.pop().close()
                model.pop()
            assert current_tenant() == model[-1]
    assert current_tenant() is None

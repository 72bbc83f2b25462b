"""Work that runs elsewhere: carried along with its tenant, or detached from it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import multiprocessing
import threading
import weakref
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from bulkhead.errors import ConfigurationError
from bulkhead.tenancy import CarryingExecutor, carry, current_tenant, detached, tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator

request = contextvars.ContextVar("request", default="none")


def whose(*_: object) -> str | None:
    return current_tenant()


async def awhose() -> str | None:
    await asyncio.sleep(0)
    return current_tenant()


def in_a_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(10)


def test_a_thread_has_no_tenant_unless_it_is_carried() -> None:
    """Known fault 61."""
    with tenant("acme"):
        assert in_a_thread(whose) is None
        assert in_a_thread(carry(whose)) == "acme"


def test_run_in_executor_has_no_tenant_unless_it_is_carried() -> None:
    """Known fault 61."""

    async def main() -> list[str | None]:
        loop = asyncio.get_running_loop()
        with tenant("acme"):
            return [await loop.run_in_executor(None, whose), await loop.run_in_executor(None, carry(whose))]

    assert asyncio.run(main()) == [None, "acme"]


def test_the_whole_context_is_carried_and_what_the_work_sets_stays_there() -> None:
    def work() -> tuple[str, str | None]:
        found = request.get(), current_tenant()
        request.set("changed")
        return found

    token = request.set("r-1")
    with tenant("acme"):
        carried = carry(work)
    assert [carried(), carried()] == [("r-1", "acme")] * 2
    assert (request.get(), current_tenant()) == ("r-1", None)
    request.reset(token)


def test_one_carried_function_runs_in_many_threads_at_once_and_within_itself() -> None:
    barrier = threading.Barrier(8)

    def work(deeper: bool = True) -> str | None:  # noqa: FBT001, FBT002 (one call within another)
        barrier.wait(10)
        return carried(False) if deeper else current_tenant()

    with tenant("acme"):
        carried = carry(work)
    with ThreadPoolExecutor(8) as pool:
        assert [one.result(10) for one in [pool.submit(carried) for _ in range(8)]] == ["acme"] * 8


def test_a_coroutine_function_is_carried_into_whatever_task_awaits_it() -> None:
    async def main() -> None:
        with tenant("acme"):
            carried = carry(awhose)
        assert inspect.iscoroutinefunction(carried)
        with tenant("other"):
            direct, *tasks = await asyncio.gather(carried(), *(asyncio.create_task(carried()) for _ in range(3)))
            assert [direct, *tasks] == ["acme"] * 4
            assert await carried() == "acme"
            assert current_tenant() == "other"

    asyncio.run(main())


class Caller:
    def __call__(self) -> str | None:
        return current_tenant()


class AsyncCaller:
    async def __call__(self) -> str | None:
        return current_tenant()

    async def method(self) -> str | None:
        return current_tenant()


@pytest.mark.parametrize(
    "function",
    [
        awhose,
        functools.partial(awhose),
        functools.partial(functools.partial(awhose)),
        AsyncCaller(),
        AsyncCaller().method,
        lambda *_: awhose(),
    ],
)
def test_partials_methods_and_callable_objects_are_seen_for_what_they_are(
    function: Callable[[], Awaitable[str | None]],
) -> None:
    async def main() -> None:
        with tenant("acme"):
            carried = carry(function)
        assert await carried() == "acme"
        with tenant("acme"):
            assert await detached(function)() is None
            assert current_tenant() == "acme"

    asyncio.run(main())


def test_plain_partials_and_callable_objects_are_carried() -> None:
    with tenant("acme"):
        carried = [carry(one) for one in (functools.partial(whose, 1), Caller(), Caller)]
    assert carried[0]() == carried[1]() == "acme"
    assert isinstance(carried[2](), Caller)


def test_a_carried_function_keeps_its_name_and_signature() -> None:
    def work(one: int, *, two: str = "x") -> str:
        """What it does."""
        return two * one

    carried = carry(work)
    assert (carried.__name__, carried.__doc__) == ("work", "What it does.")
    assert inspect.signature(carried) == inspect.signature(work)
    assert carried(2, two="ab") == "abab"
    with pytest.raises(TypeError):
        carried()  # type: ignore[call-arg]


def test_carried_outside_any_tenant_runs_for_nobody() -> None:
    carried, acarried = carry(whose), carry(awhose)
    with tenant("acme"):
        assert carried() is None
        assert asyncio.run(acarried()) is None


def steps() -> Generator[Any, Any, str]:
    """Yields what it was sent together with the tenant; survives a ValueError; returns at "end"."""
    sent: Any = "started"
    while sent != "end":
        try:
            sent = yield sent, current_tenant()
        except ValueError as error:
            sent = f"caught {error}"
    return "done"


def test_a_carried_generator_runs_each_step_for_its_tenant_and_passes_everything_through() -> None:
    with tenant("acme"):
        carried = carry(steps)
    assert inspect.isgeneratorfunction(carried)
    with tenant("other"):
        one = carried()
        assert next(one) == ("started", "acme")
        assert current_tenant() == "other"
        assert one.send("a") == ("a", "acme")
        assert one.throw(ValueError("b")) == ("caught b", "acme")
        with pytest.raises(StopIteration) as end:
            one.send("end")
        assert end.value.value == "done"
        assert current_tenant() == "other"
        two = carried()
        next(two)
        with pytest.raises(KeyError):
            two.throw(KeyError("x"))


def test_closing_a_carried_generator_closes_it_inside_its_context() -> None:
    closed: list[str | None] = []

    def work() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            closed.append(current_tenant())

    with tenant("acme"):
        one = carry(work)()
    next(one)
    one.close()
    assert closed == ["acme"]
    with tenant("acme"):
        two = detached(work)()
        next(two)
        del two
        gc.collect()
        assert current_tenant() == "acme"
    assert closed == ["acme", None]


async def asteps() -> AsyncIterator[Any]:
    sent: Any = "started"
    try:
        while sent != "end":
            await asyncio.sleep(0)
            try:
                sent = yield sent, current_tenant()
            except ValueError as error:
                sent = f"caught {error}"
    finally:
        await asyncio.sleep(0)
        request.set(str(current_tenant()))


def test_a_carried_async_generator_runs_each_step_for_its_tenant() -> None:
    async def main() -> None:
        with tenant("acme"):
            carried: Any = carry(asteps)
        assert inspect.isasyncgenfunction(carried)
        with tenant("other"):
            one = carried()
            assert await anext(one) == ("started", "acme")
            assert current_tenant() == "other"
            assert await one.asend("a") == ("a", "acme")
            assert await one.athrow(ValueError("b")) == ("caught b", "acme")
            with pytest.raises(StopAsyncIteration):
                await one.asend("end")
            two = carried()
            await anext(two)
            await two.aclose()
            assert request.get() == "acme"
            assert current_tenant() == "other"

    asyncio.run(main())


def test_detached_work_belongs_to_nobody_and_starts_with_an_empty_context() -> None:
    def work() -> tuple[str | None, str]:
        return current_tenant(), request.get()

    token = request.set("r-1")
    with tenant("acme"):
        free = detached(work)
        assert free() == (None, "none")
        assert current_tenant() == "acme"
        assert asyncio.run(detached(awhose)()) is None
        assert next(detached(steps)()) == ("started", None)
    request.reset(token)


def test_neither_keeps_an_error_or_its_frames_alive() -> None:
    """A kept traceback would hold tickets of the frames in it."""

    class Big:
        pass

    held: list[weakref.ref[Big]] = []

    def work() -> Generator[int, None, None]:
        big = Big()
        held.append(weakref.ref(big))
        try:
            yield 1
        except ValueError:
            raise LookupError from None

    gc.disable()
    try:
        one = carry(work)()
        next(one)
        with pytest.raises(LookupError) as caught:
            one.throw(ValueError())
        del one, caught
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("wrong", [None, 3, "f", "whose"])
def test_what_cannot_be_called_cannot_be_carried(wrong: Any) -> None:
    for function in (carry, detached):
        with pytest.raises(ConfigurationError, match="a function is needed"):
            function(wrong)


# CarryingExecutor


def test_an_executor_of_its_own_works_for_the_tenant_that_submitted() -> None:
    with CarryingExecutor(max_workers=2, thread_name_prefix="ours") as pool:
        with tenant("acme"):
            one: Future[str | None] = pool.submit(whose)
        with tenant("other"):
            mapped = pool.map(whose, [1, 2])
        two = pool.submit(whose)
    assert (one.result(), list(mapped), two.result()) == ("acme", ["other", "other"], None)


def test_a_wrapped_thread_pool_is_used_and_shut_down() -> None:
    inner = ThreadPoolExecutor(1, thread_name_prefix="inner")
    with CarryingExecutor(inner) as pool, tenant("acme"):
        assert pool.submit(lambda: (current_tenant(), threading.current_thread().name)).result(10) == (
            "acme",
            "inner_0",
        )
    with pytest.raises(RuntimeError):
        inner.submit(whose)
    with pytest.raises(RuntimeError):
        pool.submit(whose)


def test_a_process_pool_gets_the_tenant() -> None:
    inner = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with CarryingExecutor(inner) as pool, tenant("acme"):
        assert pool.submit(current_tenant).result(60) == "acme"


def test_it_can_be_the_default_executor_of_a_loop() -> None:
    async def main() -> str | None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(CarryingExecutor(max_workers=1))
        with tenant("acme"):
            return await loop.run_in_executor(None, whose)

    assert asyncio.run(main()) == "acme"


def test_shutdown_can_cancel_what_waits() -> None:
    release = threading.Event()
    pool = CarryingExecutor(ThreadPoolExecutor(1))
    running, waiting = pool.submit(release.wait, 10), pool.submit(whose)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    release.set()
    assert running.result(10)


def test_errors_and_arguments_pass_through() -> None:
    with CarryingExecutor(max_workers=1) as pool:
        assert pool.submit(divmod, 7, 2).result(10) == (3, 1)
        assert pool.submit(int, "ff", base=16).result(10) == 255
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result(10)


def test_what_is_no_executor_is_refused() -> None:
    for wrong in (8, "pool", CarryingExecutor):
        with pytest.raises(ConfigurationError, match=r"wraps a concurrent\.futures\.Executor"):
            CarryingExecutor(wrong)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as inner, pytest.raises(ConfigurationError, match="its own threads"):
        CarryingExecutor(inner, max_workers=3)

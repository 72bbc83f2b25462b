"""One attempt: the handler is called, for its job's tenant, in a context of its own. Its result says how it ended.

The same for threads and event loops, so that a handler finds the same around it: an empty context (what another job or
the code that enqueued set in context variables is not there), the tenant, and its runner. Nothing is raised out of
here but KeyboardInterrupt inside a loop and GeneratorExit; a job is lost by neither.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from contextvars import Context
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from bulkhead.jobs.arguments import from_json
from bulkhead.jobs.errors import JobCancelled, JobTimeout
from bulkhead.jobs.handlers import takers
from bulkhead.tenancy import Tenancy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from bulkhead.jobs.handlers import Taker
    from bulkhead.jobs.records import Run

    Result = BaseException | None
    Steps = Callable[[Run, float, float | None], object]

LONGEST_STEP = 0.1
"""Seconds that a handler may keep its event loop from everything else; as asyncio's own slow_callback_duration."""


def in_this_thread(run: Run, runner: Taker) -> Result:
    """Run a plain handler here. None = it went well."""
    try:
        Context().run(_call, run, runner)
    except BaseException as error:  # noqa: BLE001  SystemExit ends the attempt, not the worker
        return error
    return None


def _call(run: Run, runner: Taker) -> None:
    takers.inside.set(runner)
    with Tenancy(run.entry.tenant):
        result = run.job.function(**from_json(run.entry.arguments))
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"job {run.job.name!r} is a plain function that returned a coroutine, which nobody awaits; decorate the "
            "coroutine function itself"
        )


async def attempt(run: Run, runner: Taker, steps: Steps | None) -> Result:
    """Await a handler that is a coroutine function, in a task of its own with an empty context. None = it went well.

    `steps(run, began, seconds)`: called before each step that keeps the loop, with None, and after it.
    """
    takers.inside.set(runner)
    limit = asyncio.timeout(run.job.timeout)
    try:
        async with Tenancy(run.entry.tenant), limit:
            called = run.job.function(**from_json(run.entry.arguments))
            coroutine = called if inspect.iscoroutine(called) else _awaited(called)
            await (coroutine if steps is None else _watched(coroutine, run, steps))
    except TimeoutError as error:
        if not limit.expired():
            return error
        return JobTimeout(f"it ran longer than its timeout, {run.job.timeout:g} s")
    except asyncio.CancelledError:
        return JobCancelled("its task was cancelled")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  SystemExit ends the attempt, not the loop
        return error
    return None


def ended(task: asyncio.Task[Result]) -> Result:
    """How the attempt of this task ended, also where it never began."""
    if task.cancelled():
        return JobCancelled("its task was cancelled")
    return task.exception() or task.result()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


@types.coroutine
def _watched(coroutine: Coroutine[Any, Any, Any], run: Run, steps: Steps) -> Generator[Any, Any, Any]:
    """Await it, step by step as a task does, and look how long each step keeps the loop."""
    step: Callable[[Any], Any] = coroutine.send
    sent: Any = None
    try:
        while True:
            began = perf_counter()
            steps(run, began, None)
            try:
                value = step(sent)
            finally:
                steps(run, began, perf_counter() - began)
            try:
                step, sent = coroutine.send, (yield value)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  handed on to the handler, which raises it or goes on
                step, sent = cast("Callable[[Any], Any]", coroutine.throw), error
    except StopIteration as end:
        return end.value
    finally:
        sent = None  # an error kept here would hold this frame, and the frame the error
        coroutine.close()

"""What is special about the runner of an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

import bulkhead
from bulkhead.jobs import AsyncRunner, job

if TYPE_CHECKING:
    from conftest import AsyncEventually, RunPython

pytestmark = pytest.mark.anyio


async def test_coroutine_functions_run_in_the_runner_s_loop_and_plain_ones_in_threads() -> None:
    seen: dict[str, object] = {}

    @job()
    async def coroutine() -> None:
        seen["loop"] = asyncio.get_running_loop()

    @job()
    def plain() -> None:
        seen["thread"] = threading.current_thread()

    async with AsyncRunner(workers=2) as runner:
        coroutine.enqueue()
        plain.enqueue()
        assert await runner.drain(timeout=20)
    assert seen["loop"] is asyncio.get_running_loop()
    assert seen["thread"] is not threading.main_thread()


async def test_a_handler_that_blocks_the_loop_is_named_in_the_log_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @job(name="blocks")
    async def blocks() -> None:
        await asyncio.sleep(0)
        time.sleep(0.15)  # noqa: ASYNC251  what is to be found
        await asyncio.sleep(0)

    @job(name="awaits")
    async def awaits() -> None:
        await asyncio.sleep(0.15)

    @job(name="works in a thread")
    def plain() -> None:
        time.sleep(0.15)

    async with AsyncRunner(workers=4) as runner:
        for one in (blocks, awaits, plain, blocks):
            one.enqueue()
        assert await runner.drain(timeout=20)
    told = [record for record in caplog.records if "job_blocks_loop" in record.getMessage()]
    names = [record.bulkhead_job for record in told]  # type: ignore[attr-defined]
    assert names.count("blocks") == 1
    assert "works in a thread" not in names  # of "awaits" a busy machine may make a long step
    assert told[0].bulkhead_seconds >= 0.1  # type: ignore[attr-defined]


async def test_what_a_watched_handler_is_sent_and_thrown_reaches_it() -> None:
    seen: list[object] = []

    async def raises() -> None:
        await asyncio.sleep(0)
        raise LookupError("inner")

    @job()
    async def work() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, "value")
        seen.append(await future)
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(1000)
        except TimeoutError:
            seen.append("timeout")
        try:
            await raises()
        except LookupError as error:
            seen.append(str(error))
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        seen.append("group")

    async with AsyncRunner(workers=1) as runner:
        work.enqueue()
        assert await runner.drain(timeout=20)
    assert seen == ["value", "timeout", "inner", "group"]


async def test_jobs_can_be_enqueued_from_any_thread() -> None:
    seen: list[str | None] = []

    @job()
    async def work() -> None:
        seen.append(bulkhead.current_tenant())

    def enqueue() -> None:
        with bulkhead.tenant("acme"):
            work.enqueue()

    async with AsyncRunner(workers=1) as runner:
        await asyncio.to_thread(enqueue)
        thread = threading.Thread(target=enqueue)
        thread.start()
        thread.join()
        assert await runner.drain(timeout=20)
    assert seen == ["acme", "acme"]


async def test_a_delayed_job_wakes_a_loop_that_sleeps(aeventually: AsyncEventually) -> None:
    seen: list[int] = []

    @job()
    async def work(which: int) -> None:
        seen.append(which)

    async with AsyncRunner(workers=1):
        work.enqueue_in(300, 1)
        await asyncio.sleep(0)
        work.enqueue_in(0.01, 2)
        await aeventually(lambda: seen == [2], 20)


def test_a_keyboard_interrupt_in_a_handler_ends_the_loop_and_loses_no_job(run_python: RunPython) -> None:
    told = run_python(
        """
import asyncio
from bulkhead.jobs import AsyncRunner, job

@job(name="interrupted")
async def interrupted():
    raise KeyboardInterrupt

@job(name="waits")
async def waits():
    await asyncio.sleep(1000)

async def main():
    async with AsyncRunner(workers=1, grace_secs=0) as runner:
        runners.append(runner)
        interrupted.enqueue()
        waits.enqueue()
        await asyncio.sleep(1000)

runners = []
try:
    asyncio.run(main())
except KeyboardInterrupt:
    report = runners[0].report
    print(sorted((record.name, record.attempt) for record in report.returned))
"""
    )
    assert told.stdout.strip() == "[('interrupted', 1), ('waits', 0)]"

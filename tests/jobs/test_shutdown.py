"""Shutdown loses nothing, and says what it returns and what still runs."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from polling import auntil

import bulkhead
from bulkhead.jobs import AsyncRunner, JobRecord, Runner, job

if TYPE_CHECKING:
    from jobs.conftest import Start

pytestmark = pytest.mark.anyio


async def test_running_jobs_end_in_the_grace_and_what_waits_is_returned(start: Start) -> None:
    release, seen = threading.Event(), []

    @job()
    async def work(which: int) -> None:
        while not release.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        seen.append(which)

    async with start(workers=3) as runner:
        for which in range(8):
            work.options(tenant="acme").enqueue(which)
        work.enqueue_in(500, 8)
        await auntil(lambda: runner.stats().running == 3)
        stopping = asyncio.create_task(runner.stop(20))
        await auntil(lambda: runner.runner._backend.closed)
        release.set()
        report = await stopping
    assert report.finished == 3
    assert sorted(seen) == [0, 1, 2]
    assert [record.arguments["which"] for record in report.returned] == [3, 4, 5, 6, 7, 8]
    assert {record.tenant for record in report.returned[:5]} == {"acme"}
    assert 400 < report.returned[5].delay <= 500
    assert report.running == []
    with pytest.raises(bulkhead.Rejected, match="the runner stops"):
        work.options(runner=runner.runner).enqueue(9)


async def test_after_the_grace_jobs_are_cancelled_and_given_back_as_they_were(start: Start) -> None:
    """Known fault 84: 3 jobs run, 5 wait."""
    ended: list[str] = []

    @job(max_attempts=1)
    async def work(which: int) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("cancelled")

    async with start(workers=3) as runner:
        ids = [work.options(tenant="acme").enqueue(which) for which in range(8)]
        await auntil(lambda: runner.stats().running == 3)
        report = await runner.stop(0.01)
    assert ended == ["cancelled"] * 3
    assert report.finished == 0
    assert sorted(record.id for record in report.returned) == sorted(ids)
    assert {record.attempt for record in report.returned} == {0}
    assert report.running == []
    assert runner.stats().finished == {"success": 0, "retry": 0, "dead": 0, "returned": 3}


async def test_a_job_in_a_thread_is_named_as_still_running_and_not_as_returned(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    @job(name="stubborn")
    def stubborn() -> None:
        release.wait(30)

    async with start(workers=1) as runner:
        stubborn.enqueue()
        second = stubborn.enqueue()
        await auntil(lambda: runner.stats().running == 1)
        report = await runner.stop(0.01)
    assert [record.name for record in report.running] == ["stubborn"]
    assert [record.id for record in report.returned] == [second]
    assert any("jobs_still_running" in line and "stubborn" in line for line in caplog.messages)
    release.set()
    await auntil(lambda: runner.stats().finished["success"] == 1)
    assert runner.stats().running == 0


async def test_a_handler_that_swallows_its_cancellation_is_named_as_still_running(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("threads", "tasks"):
        monkeypatch.setattr(f"bulkhead.jobs.{module}.CANCEL_SECONDS", 0.05)
    inside, release = threading.Event(), threading.Event()

    @job(name="deaf")
    async def deaf() -> None:
        inside.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue

    async with start(workers=1) as runner:
        deaf.enqueue()
        await auntil(inside.is_set)
        report = await runner.stop(0)
        assert [record.name for record in report.running] == ["deaf"]
        release.set()
        await auntil(lambda: runner.stats().running == 0)


async def test_jobs_that_running_jobs_enqueue_during_the_shutdown_are_returned(start: Start) -> None:
    go = threading.Event()

    @job(name="child")
    def child() -> None: ...

    @job()
    def parent() -> None:
        go.wait(30)
        child.enqueue()

    async with start(workers=1) as runner:
        parent.options(tenant="acme").enqueue()
        await auntil(lambda: runner.stats().running == 1)
        stopping = asyncio.create_task(runner.stop(20))
        await auntil(lambda: runner.runner._backend.closed)
        go.set()
        report = await stopping
    assert report.finished == 1
    assert [(record.name, record.tenant) for record in report.returned] == [("child", "acme")]


async def test_a_failure_during_the_shutdown_is_returned_for_its_next_attempt(start: Start) -> None:
    go = threading.Event()

    @job()
    def fails() -> None:
        go.wait(30)
        raise ValueError

    async with start(workers=1) as runner:
        fails.enqueue()
        await auntil(lambda: runner.stats().running == 1)
        stopping = asyncio.create_task(runner.stop(20))
        await auntil(lambda: runner.runner._backend.closed)
        go.set()
        report = await stopping
    assert [(record.attempt, record.last_error) for record in report.returned] == [(1, "ValueError")]


async def test_what_is_returned_can_be_restored_also_from_a_file(start: Start) -> None:
    seen: list[tuple[str | None, int]] = []

    @job()
    def work(which: int) -> None:
        seen.append((bulkhead.current_tenant(), which))

    async with start(workers=1) as runner:
        runner.pause("acme")
        for which in range(3):
            work.options(tenant="acme").enqueue(which)
        report = await runner.stop()
    written = json.dumps([record._asdict() for record in report.returned])
    async with start(workers=1) as runner:
        runner.restore([JobRecord(**one) for one in json.loads(written)])
        assert await runner.drain()
    assert seen == [("acme", 0), ("acme", 1), ("acme", 2)]


async def test_stopping_twice_keeps_what_was_returned(start: Start) -> None:
    @job()
    def work() -> None: ...

    async with start(workers=1) as runner:
        runner.pause(None)
        identity = work.enqueue()
        first = await runner.stop()
        second = await runner.stop()
    assert [record.id for record in first.returned] == [record.id for record in second.returned] == [identity]
    with pytest.raises(bulkhead.ConfigurationError, match="make another one"):
        (await runner.start()) if isinstance(runner.runner, AsyncRunner) else runner.start()


async def test_a_cancelled_stop_still_gives_everything_back() -> None:
    @job()
    async def work() -> None:
        await asyncio.sleep(1000)

    runner = await AsyncRunner(workers=1).start()
    ids = {work.enqueue(), work.enqueue()}
    await auntil(lambda: runner.stats().running == 1)
    stopping = asyncio.create_task(runner.stop(1000))
    await auntil(lambda: runner._backend.closed)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert runner.report is not None
    assert {record.id for record in runner.report.returned} == ids


def test_a_loop_that_is_torn_down_without_stop_loses_no_job() -> None:
    """Known fault 84."""
    runner = AsyncRunner(workers=3)

    @job()
    async def work() -> None:
        await asyncio.sleep(1000)

    async def main() -> None:
        await runner.start()
        for _ in range(8):
            work.enqueue()
        await auntil(lambda: runner.stats().running == 3)

    asyncio.run(main())
    assert runner.stats().running == 0
    report = asyncio.run(runner.stop(0))
    assert len(report.returned) == 8


def test_the_context_manager_of_threads_stops_and_keeps_the_report() -> None:
    @job()
    def work() -> None: ...

    with Runner(workers=1) as runner:
        runner.pause(None)
        identity = work.enqueue()
    assert runner.report is not None
    assert [record.id for record in runner.report.returned] == [identity]


def test_stop_within_a_job_does_not_wait_for_itself() -> None:
    reports: list[Any] = []

    @job(name="stopper")
    def stopper() -> None:
        reports.append(runner.stop(20))

    runner = Runner(workers=1).start()
    stopper.enqueue()
    for one in runner._threads:
        one.thread.join(20)
    assert [record.name for record in reports[0].running] == ["stopper"]

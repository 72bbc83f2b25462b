"""Jobs that raise, last too long or are cancelled, in threads and tasks alike: tried again, and told."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from polling import auntil

from bulkhead.jobs import JobCancelled, JobTimeout, job

if TYPE_CHECKING:
    from jobs.conftest import Start

pytestmark = pytest.mark.anyio


async def test_a_failed_job_is_tried_again_and_dead_after_its_attempts(start: Start) -> None:
    tries: list[int] = []

    @job(max_attempts=3, name="fails")
    def fails() -> None:
        tries.append(1)
        raise ValueError("the reason\nSELECT secret")

    async with start(workers=1) as runner:
        identity = fails.options(tenant="acme").enqueue()
        assert await runner.drain()
        assert len(tries) == 3
        (dead,) = runner.dead()
        assert (dead.id, dead.name, dead.tenant, dead.attempt, dead.max_attempts) == (identity, "fails", "acme", 3, 3)
        assert dead.last_error == "ValueError: the reason"
        assert runner.dead("other") == []
        assert runner.stats().finished == {"success": 0, "retry": 2, "dead": 1, "returned": 0}
        runner.resume()
        assert runner.retry(identity)
        assert await runner.drain()
        assert len(tries) == 6
        assert runner.discard(identity)
        assert not runner.discard(identity)
        assert not runner.retry(identity)
        assert runner.dead() == []


async def test_no_slot_is_held_between_two_attempts(start: Start) -> None:
    others: list[int] = []

    @job()
    def fails() -> None:
        raise ValueError

    @job()
    def works() -> None:
        others.append(1)

    async with start(workers=1, max_concurrent=1, chance=lambda: 4000.0) as runner:  # the next attempt is far away
        first = fails.options(tenant="acme").enqueue()
        works.options(tenant="acme").enqueue()
        await auntil(lambda: others)
        assert runner.stats().later == 1
        report = await runner.stop()
    assert [(record.id, record.attempt, record.delay > 100) for record in report.returned] == [(first, 1, True)]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), KeyboardInterrupt()])
@pytest.mark.parametrize("is_async", [False, True])
async def test_whatever_a_handler_raises_neither_the_job_nor_the_worker_is_lost(
    start: Start,
    error: BaseException,
    is_async: bool,  # noqa: FBT001
    request: pytest.FixtureRequest,
) -> None:
    if isinstance(error, KeyboardInterrupt) and "tasks" in request.node.name and is_async:
        pytest.skip("ends the event loop, as it must")
    seen: list[str] = []

    def first_time() -> None:
        seen.append("run")
        if len(seen) == 1:
            raise error

    async def coroutine() -> None:
        first_time()

    function: Any = coroutine if is_async else first_time
    work = job(name="raises")(function)
    async with start(workers=1) as runner:
        work.enqueue()
        assert await runner.drain()
        assert seen == ["run", "run"]
        assert runner.stats().finished == {"success": 1, "retry": 1, "dead": 0, "returned": 0}


async def test_a_coroutine_over_its_timeout_is_cancelled_and_that_is_a_failure(start: Start) -> None:
    ended: list[str] = []

    @job(timeout=0.02, max_attempts=2)
    async def slow() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("cancelled")

    async with start(workers=1) as runner:
        slow.enqueue()
        assert await runner.drain()
        assert ended == ["cancelled"] * 2
        assert (
            runner.dead()[0].last_error == f"{JobTimeout.__module__}.JobTimeout: it ran longer than its timeout, 0.02 s"
        )


async def test_a_plain_function_over_its_timeout_is_reported_keeps_its_slot_and_may_end_well(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    ran: list[str] = []

    @job(timeout=0.01, name="endless")
    def endless() -> None:
        ran.append("endless")
        release.wait(30)

    @job()
    def next_one() -> None:
        ran.append("next")

    async with start(workers=3, max_concurrent=1) as runner:
        endless.options(tenant="acme").enqueue()
        next_one.options(tenant="acme").enqueue()
        await auntil(lambda: runner.stats().overdue)
        assert ran == ["endless"]
        told = [record for record in caplog.records if "job_over_timeout" in record.getMessage()]
        assert [record.bulkhead_job for record in told] == ["endless"]  # type: ignore[attr-defined]
        release.set()
        assert await runner.drain()
        assert ran == ["endless", "next"]
        assert runner.stats().finished["success"] == 2


async def test_a_timeout_error_of_the_handler_s_own_is_not_taken_for_ours(start: Start) -> None:
    @job(timeout=30, max_attempts=1)
    async def work() -> None:
        raise TimeoutError("of a driver")

    async with start(workers=1) as runner:
        work.enqueue()
        assert await runner.drain()
        assert runner.dead()[0].last_error == "TimeoutError: of a driver"


async def test_a_plain_function_that_returns_a_coroutine_fails_with_words(start: Start) -> None:
    """Known fault 41."""

    async def inner() -> None: ...

    @job(max_attempts=1)
    def outer() -> Any:
        return inner()

    async with start(workers=1) as runner:
        outer.enqueue()
        assert await runner.drain()
        assert "returned a coroutine, which nobody awaits" in (runner.dead()[0].last_error or "")


async def test_the_log_names_a_failing_job_and_no_tenant_and_says_less_each_time(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    @job(max_attempts=1, name="failing")
    def failing(secret: str) -> None:
        raise ValueError

    async with start(workers=1) as runner:
        for _ in range(9):
            failing.options(tenant="acme-inc").enqueue("hunter2")
        assert await runner.drain()
    told = [record for record in caplog.records if record.name == "bulkhead" and "job_dead" in record.getMessage()]
    assert [record.bulkhead_count for record in told] == [1, 2, 4, 8]  # type: ignore[attr-defined]
    assert all(record.exc_info is not None for record in told)
    assert "acme-inc" not in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_cancelled_job_counts_its_attempt_and_goes_back(start: Start) -> None:
    tries: list[int] = []

    @job(max_attempts=2)
    async def work() -> None:
        tries.append(1)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1000)

    async with start(workers=1) as runner:
        work.enqueue()
        assert await runner.drain()
        assert len(tries) == 2
        assert runner.dead()[0].last_error == f"{JobCancelled.__module__}.JobCancelled: its task was cancelled"

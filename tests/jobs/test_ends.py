"""Ends that come from outside: a shutdown that is interrupted or cancelled, a drain that it overtakes, a lost thread."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from counts import often
from polling import auntil

from bulkhead.errors import ConfigurationError
from bulkhead.jobs import AsyncRunner, JobRecord, Runner, job

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import AsyncEventually, RunPython
    from jobs.conftest import Start

pytestmark = pytest.mark.anyio


class Interrupted(BaseException):
    pass


def send(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))


async def test_a_drain_without_a_timeout_ends_when_the_runner_does(start: Start) -> None:
    @job()
    def work() -> None: ...

    async with start(workers=1) as runner:
        runner.pause("acme")
        work.options(tenant="acme").enqueue()
        draining = asyncio.create_task(runner.drain(timeout=None))
        await asyncio.sleep(0.05)
        assert not draining.done()
        report = await runner.stop(0)
        assert len(report.returned) == 1
        assert await asyncio.wait_for(draining, 10)


def test_a_stop_that_is_interrupted_still_gives_everything_back(eventually: Callable[..., Any]) -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), []

    @job()
    def work() -> None:
        begun.set()
        goes_on.wait(20)

    runner = Runner(workers=1).start()
    for _ in range(3):
        work.enqueue()
    assert begun.wait(20)

    def stop() -> None:
        try:
            runner.stop(60)
        except Interrupted:
            ended.append("interrupted")

    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    eventually(lambda: runner._backend.closed)
    while stopper.is_alive():
        send(stopper)
        stopper.join(0.3)
    report = runner.report
    goes_on.set()
    assert ended == ["interrupted"]
    assert report is not None
    assert (len(report.returned), len(report.running)) == (2, 1)
    assert len(runner.stop(20).returned) == 2  # the same ones


async def test_a_run_that_is_cancelled_stops_and_keeps_its_report() -> None:
    @job()
    async def work() -> None:
        await asyncio.sleep(1000)

    runner = AsyncRunner(workers=1)
    running = asyncio.create_task(runner.run())
    await auntil(lambda: runner._backend._seats)  # as a worker process would
    for _ in range(3):
        work.options(runner=runner).enqueue()
    await auntil(lambda: runner.stats().running == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert runner.report is not None
    assert len(runner.report.returned) == 3


async def test_a_logging_handler_that_raises_costs_no_worker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise LookupError(record.name)

    seen: list[str] = []

    @job(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    @job()
    def works() -> None:
        seen.append("works")

    log = logging.getLogger("bulkhead")
    monkeypatch.setattr(log, "filters", [broken])
    async with start(workers=1) as runner:
        for _ in range(4):
            fails.enqueue()
        works.enqueue()
        assert await runner.drain(timeout=20)
        monkeypatch.setattr(log, "filters", [])
    assert seen == ["works"]


async def test_an_error_whose_text_is_code_that_raises_or_enqueues_costs_nothing(start: Start) -> None:
    seen: list[str] = []

    @job(name="said")
    def said() -> None:
        seen.append("said")

    class Talkative(Exception):
        def __str__(self) -> str:
            said.options(runner=runner.runner).enqueue()
            raise SystemExit(3)

    @job(max_attempts=1)
    def fails() -> None:
        raise Talkative

    async with start(workers=1) as runner:
        fails.enqueue()
        await auntil(lambda: seen)
        assert await runner.drain(timeout=20)
        assert [one.last_error.endswith("(its text cannot be read)") for one in runner.dead()] == [True]


async def test_a_thread_that_is_ended_from_outside_costs_its_attempt_and_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    seen: list[str] = []

    @job()
    def work() -> None:
        seen.append("ran")

    async with AsyncRunner(workers=1, chance=lambda: 0.0) as runner:
        lost: list[int] = []
        whole = runner._in_thread

        def once(*args: Any) -> None:
            if not lost:
                lost.append(1)
                raise Interrupted
            whole(*args)

        monkeypatch.setattr(runner, "_in_thread", once)
        work.enqueue()
        assert await runner.drain(timeout=20)
        assert runner.stats().finished["retry"] == 1
    assert seen == ["ran"]


def test_a_handler_that_never_gives_the_loop_back_is_named_while_it_does_not(
    eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()

    @job(name="for ever")
    async def blocks() -> None:
        let_go.wait(30)

    async def main() -> None:
        async with AsyncRunner(workers=1) as runner:
            blocks.enqueue()
            assert await runner.drain(timeout=30)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        eventually(lambda: "job_blocks_loop" in caplog.text and "for ever" in caplog.text, 15)
    finally:
        let_go.set()
        thread.join()


def test_records_that_cannot_be_restored_are_refused_and_none_of_the_others_is_kept() -> None:
    @job(name="work")
    def work() -> None: ...

    def record(tenant: Any, arguments: Any) -> JobRecord:
        return JobRecord("id", "work", "default", tenant, arguments, 0, 5, 0.0, None)

    with Runner(workers=2, lanes=2) as runner:
        runner.pause("acme")
        for wrong, error in ((record("", {}), ValueError), (record("acme", {"a": {1}}), ConfigurationError)):
            with pytest.raises(error):
                runner.restore([record("acme", {}), wrong])
        assert runner.top_tenants() == []
        runner.restore([record(7, {})])  # as `tenant(7)` has it
        time.sleep(0)
        assert runner.drain(timeout=20)


async def test_what_a_worker_was_given_and_has_not_begun_is_returned(start: Start) -> None:
    """A coroutine function can be cancelled: it is never named as still running, however early the end comes."""

    @job()
    async def work() -> None:
        await asyncio.sleep(1000)

    for _ in range(often(40, 400)):
        async with start(workers=2) as runner:
            kept = {work.enqueue() for _ in range(3)}
            report = await runner.stop(0)
        assert report.running == []
        assert {record.id for record in report.returned} == kept
        assert {record.attempt for record in report.returned} == {0}


async def test_a_job_in_the_loop_that_stops_its_runner_does_not_wait_for_itself_and_goes_on(
    aeventually: AsyncEventually,
) -> None:
    seen: list[Any] = []

    @job(name="stopper")
    async def stopper() -> None:
        seen.append(await runner.stop(1000))
        await asyncio.sleep(0)
        seen.append("went on")

    @job(name="another")
    async def another() -> None:
        await asyncio.sleep(0.02)

    runner = await AsyncRunner(workers=2).start()
    another.enqueue()
    stopper.enqueue()
    await aeventually(lambda: len(seen) == 2, 20)
    assert ([record.name for record in seen[0].running], seen[0].finished) == (["stopper"], 1)
    await aeventually(lambda: runner.stats().running == 0, 20)
    assert runner.stats().finished["success"] == 2
    assert (await runner.stop(0)).running == []


def test_a_coroutine_function_in_a_thread_that_stops_its_runner_goes_on(eventually: Callable[..., Any]) -> None:
    seen: list[Any] = []

    @job(name="stopper")
    async def stopper() -> None:
        seen.append(runner.stop(1000))
        await asyncio.sleep(0)
        seen.append("went on")

    runner = Runner(workers=1).start()
    stopper.enqueue()
    eventually(lambda: runner.stats().finished["success"] == 1, 20)
    assert [record.name for record in seen[0].running] == ["stopper"]
    assert seen[1] == "went on"


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_two_signals_right_after_each_other_end_the_grace_as_well(kind: str, run_python: RunPython) -> None:
    told = run_python(
        f"""
import asyncio, faulthandler, os, signal
from bulkhead.jobs import AsyncRunner, Runner, job
kind = {kind!r}
faulthandler.dump_traceback_later(60)  # a thread that takes signals and knows nothing of Python

@job(name="signals")
async def signals():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(1000)

runner = (Runner if kind == "threads" else AsyncRunner)(workers=1, grace_secs=1000)
signals.options(runner=runner).enqueue()
report = runner.run() if kind == "threads" else asyncio.run(runner.run())
print([record.name for record in report.returned], report.running)
"""
    )
    assert told.stdout.strip() == "['signals'] []"


def test_a_start_that_fails_gives_back_what_was_enqueued_before(run_python: RunPython) -> None:
    told = run_python(
        """
import asyncio, threading
from bulkhead.jobs import AsyncRunner, Runner, job

@job(name="work")
def work(): ...

async def main():
    runner = AsyncRunner(workers=2)
    work.options(runner=runner).enqueue()
    try:
        await runner.start()
    except RuntimeError as error:
        print(error, len(runner.report.returned), len(asyncio.all_tasks()))

threading.stack_size(1 << 46)  # there is no room for a thread
runner = Runner(workers=2)
work.options(runner=runner).enqueue()
try:
    runner.start()
except RuntimeError as error:
    print(error, len(runner.report.returned))
asyncio.run(main())
"""
    )
    assert told.stdout.splitlines() == ["can't start new thread 1", "can't start new thread 1 1"]


def test_a_clock_that_was_ended_from_outside_is_started_again_by_who_enqueues(run_python: RunPython) -> None:
    told = run_python(
        """
import ctypes, threading, time
from bulkhead.jobs import Runner, job

ended = threading.Event()

@job()
def work():
    ended.set()

with Runner(workers=1) as runner:
    clock = runner._clock
    while clock.is_alive():  # one that comes while it says that it was interrupted ends it
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(clock.ident), ctypes.py_object(KeyboardInterrupt))
        time.sleep(0.001)
    work.enqueue_in(0.01)
    print(ended.wait(20))
"""
    )
    assert told.stdout.strip() == "True"


def test_a_plain_job_that_outlives_its_loop_ends_as_others_do(eventually: Callable[..., Any]) -> None:
    goes_on = threading.Event()
    runner = AsyncRunner(workers=1)

    @job()
    def work() -> None:
        goes_on.wait(20)

    async def main() -> None:
        await runner.start()
        work.enqueue()
        while not runner.stats().running:  # noqa: ASYNC110  the test's own poll
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    goes_on.set()
    eventually(lambda: runner.stats().running == 0, 20)
    assert runner.stats().finished["success"] == 1
    assert asyncio.run(runner.stop(0)).running == []

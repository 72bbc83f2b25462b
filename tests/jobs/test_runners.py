"""What holds for threads and tasks alike."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from counts import often
from polling import auntil

import bulkhead
from bulkhead.jobs import job
from bulkhead.jobs.handlers import takers

if TYPE_CHECKING:
    from jobs.conftest import Start

    from bulkhead.jobs import JobRecord

pytestmark = pytest.mark.anyio


class Gauge:
    """How many are inside at once, by tenant and in all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now: Counter[str | None] = Counter()
        self.most: Counter[str | None] = Counter()
        self.total = 0
        self.most_in_total = 0
        self.runs: list[str | None] = []

    def enter(self) -> None:
        tenant = bulkhead.current_tenant()
        with self._lock:
            self.runs.append(tenant)
            self.now[tenant] += 1
            self.total += 1
            self.most[tenant] = max(self.most[tenant], self.now[tenant])
            self.most_in_total = max(self.most_in_total, self.total)

    def leave(self) -> None:
        with self._lock:
            self.now[bulkhead.current_tenant()] -= 1
            self.total -= 1


async def test_handlers_of_both_kinds_run_with_their_arguments_for_their_tenant(start: Start) -> None:
    seen: list[Any] = []

    @job()
    def plain(number: int, *, word: str = "a") -> None:
        seen.append(("plain", bulkhead.current_tenant(), number, word))

    @job()
    async def coroutine(number: int) -> None:
        await asyncio.sleep(0)
        seen.append(("coroutine", bulkhead.current_tenant(), number))

    async with start(workers=2) as runner:
        with bulkhead.tenant("acme"):
            plain.enqueue(1, word="b")
            coroutine.enqueue(2)
        plain.enqueue(3)
        assert await runner.drain()
    assert set(seen) == {("coroutine", "acme", 2), ("plain", "acme", 1, "b"), ("plain", None, 3, "a")}
    assert len(seen) == 3


async def test_a_job_that_jobs_enqueue_is_their_tenant_s(start: Start) -> None:
    seen: list[tuple[str, str | None]] = []

    @job()
    async def grandchild() -> None:
        seen.append(("grandchild", bulkhead.current_tenant()))

    @job()
    def child() -> None:
        seen.append(("child", bulkhead.current_tenant()))
        grandchild.enqueue()

    @job()
    async def parent() -> None:
        child.enqueue_in(0.01)

    async with start(workers=2) as runner:
        for tenant in ("a", "b"):
            parent.options(tenant=tenant).enqueue()
        assert await runner.drain()
    assert sorted(seen, key=str) == [("child", "a"), ("child", "b"), ("grandchild", "a"), ("grandchild", "b")]


async def test_nothing_of_one_job_s_context_is_in_the_next_one_s(start: Start) -> None:
    left: ContextVar[str] = ContextVar("left", default="nothing")
    seen: list[tuple[str, str | None]] = []

    @job()
    def plain() -> None:
        seen.append((left.get(), bulkhead.current_tenant()))
        left.set("plain")
        bulkhead.set_tenant("leaked")

    @job()
    async def coroutine() -> None:
        seen.append((left.get(), bulkhead.current_tenant()))
        left.set("coroutine")
        bulkhead.set_tenant("leaked")

    left.set("caller")
    async with start(workers=1) as runner:
        for one in (coroutine, coroutine, plain, plain, coroutine):  # the first one begins right where it is enqueued
            one.options(tenant="acme").enqueue()
        assert await runner.drain()
    assert seen == [("nothing", "acme")] * 5
    assert takers.inside.get() is None
    assert bulkhead.current_tenant() is None


@pytest.mark.parametrize("is_async", [False, True])
async def test_caps_are_exact_over_all_queues_and_number_table_and_callable_are_caps(
    start: Start,
    is_async: bool,  # noqa: FBT001
) -> None:
    """Known faults 77, 81."""
    gauge = Gauge()

    def body() -> None:
        gauge.enter()
        time.sleep(0.001)
        gauge.leave()

    async def awaited() -> None:
        gauge.enter()
        await asyncio.sleep(0.001)
        gauge.leave()

    function: Any = awaited if is_async else body
    one, two = (job(queue, name=f"in {queue}")(function) for queue in ("first", "second"))
    number = often(20, 200)
    options: dict[str, Any] = {
        "max_concurrent": lambda tenant: {"free": 1, "gold": 3}.get(tenant, 2),
        "tenants": {"tabled": 4},
    }
    async with start(workers=10, **options) as runner:
        for _ in range(number):
            for tenant in ("free", "gold", "other", "tabled", None):
                one.options(tenant=tenant).enqueue()
                two.options(tenant=tenant).enqueue()
        assert await runner.drain()
        assert runner.stats().finished["success"] == 10 * number
    assert {tenant: gauge.most[tenant] <= cap for tenant, cap in {"free": 1, "gold": 3, "other": 2, "tabled": 4}.items()} == {
        "free": True, "gold": True, "other": True, "tabled": True
    }  # fmt: skip
    assert gauge.most["tabled"] > 1
    assert gauge.most_in_total <= 10


async def test_without_lanes_a_tenant_alone_uses_every_worker(start: Start) -> None:
    """Known fault 83."""
    inside, release = [0], threading.Event()

    @job()
    async def work() -> None:
        inside[0] += 1
        while not release.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async with start(workers=4) as runner:
        for _ in range(6):
            work.options(tenant="alone").enqueue()
        await auntil(lambda: inside[0] == 4)
        assert (runner.stats().running, runner.stats().waiting) == (4, 2)
        release.set()
        assert await runner.drain()


async def test_a_noisy_tenant_s_backlog_does_not_delay_another_tenant_s_job(start: Start) -> None:
    """Known faults 76, 80: a tenant at its cap is passed, and a new one is served within a round."""
    began: list[str | None] = []
    hold = threading.Event()

    @job()
    async def work() -> None:
        began.append(bulkhead.current_tenant())
        while not hold.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    async with start(workers=2, max_concurrent=1) as runner:
        for _ in range(100):
            work.options(tenant="noisy").enqueue()
        work.options(tenant="quiet").enqueue()
        await auntil(lambda: len(began) == 2)
        assert sorted(began, key=str) == ["noisy", "quiet"]
        assert runner.top_tenants() == [("noisy", 99, 1)]
        hold.set()
        assert await runner.drain()
    assert len(began) == 101


async def test_a_paused_tenant_s_jobs_wait_and_others_go_on(start: Start) -> None:
    seen: list[str | None] = []

    @job()
    def work() -> None:
        seen.append(bulkhead.current_tenant())

    async with start(workers=2) as runner:
        runner.pause("acme")
        runner.pause(None)
        for tenant in ("acme", None, "other"):
            work.options(tenant=tenant).enqueue()
        assert await runner.drain("other")
        assert seen == ["other"]
        assert runner.stats().waiting == 2
        runner.resume("acme")
        assert await runner.drain("acme")
        assert seen == ["other", "acme"]
        runner.resume(None)
        assert await runner.drain()


async def test_a_drained_tenant_takes_no_new_jobs_but_those_of_its_own_jobs(start: Start) -> None:
    seen: list[str] = []
    go = threading.Event()

    @job()
    def child() -> None:
        seen.append("child")

    @job()
    def parent() -> None:
        go.wait(30)
        child.enqueue()

    async with start(workers=2) as runner:
        parent.options(tenant="acme").enqueue()
        assert not await runner.drain("acme", timeout=0.01)
        with pytest.raises(bulkhead.Rejected, match="takes no new jobs: it is drained"):
            parent.options(tenant="acme").enqueue()
        child.options(tenant="other").enqueue()
        go.set()
        assert await runner.drain("acme")
        assert await runner.drain("other")
        assert seen.count("child") == 2
        runner.resume("acme")
        child.options(tenant="acme").enqueue()
        assert await runner.drain()


async def test_a_lone_job_finds_a_worker_of_its_lane_every_time(start: Start) -> None:
    """With lanes, one job at a time, each tenant: it must not wait for another job to wake its lane."""
    seen: list[str | None] = []

    @job()
    async def work() -> None:
        seen.append(bulkhead.current_tenant())

    async with start(workers=8, lanes=8, lanes_per_tenant=1) as runner:
        for number in range(often(60, 600)):
            work.options(tenant=f"tenant-{number}").enqueue()
            async with asyncio.timeout(20):
                while len(seen) <= number:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        assert await runner.drain()
        assert runner.stats().idle == 8


async def test_jobs_are_told_apart_by_ids_and_every_one_runs_once(start: Start) -> None:
    number = often(300, 5000)
    seen: list[int] = []

    @job()
    async def work(which: int) -> None:
        seen.append(which)

    async with start(workers=8, lanes=4, max_concurrent=2) as runner:
        ids: list[str] = []

        def enqueue(offset: int) -> None:
            for which in range(offset, number, 4):
                ids.append(work.options(tenant=f"t{which % 7}").enqueue(which))  # noqa: PERF401

        async with asyncio.TaskGroup() as group:
            for offset in range(4):
                group.create_task(asyncio.to_thread(enqueue, offset))
        assert await runner.drain()
    assert sorted(seen) == list(range(number))
    assert len(set(ids)) == number


async def test_whatever_happens_each_job_ends_once(start: Start) -> None:
    """Random failures, delays, pauses, caps and shutdowns; what is returned goes on in the next runner."""
    dice = random.Random(7)  # noqa: S311
    tenants = [None, *(f"tenant-{number}" for number in range(6))]
    succeeded: Counter[str] = Counter()
    ids: list[str] = []
    dead: list[str] = []

    @job(max_attempts=3)
    async def coroutine(key: str, luck: float) -> None:
        await asyncio.sleep(0.001)
        if luck < 0.2 or dice.random() < 0.2:
            raise ValueError
        succeeded[key] += 1

    @job("other", max_attempts=3)
    def plain(key: str, luck: float) -> None:
        time.sleep(0.001)
        if luck < 0.2 or dice.random() < 0.2:
            raise ValueError
        succeeded[key] += 1

    left: list[JobRecord] = []
    rounds = often(6, 40)
    for round_ in range(rounds):
        async with start(workers=4, lanes=dice.choice([0, 4]), max_concurrent=dice.choice([0, 1, 2])) as runner:
            runner.restore(left)
            for number in range(60):
                chosen: Any = dice.choice([coroutine, plain])
                which = chosen.options(tenant=dice.choice(tenants))
                delay = dice.choice([0, 0, 0.003, 0.05])
                ids.append(which.enqueue_in(delay, f"{round_}-{number}", dice.random()))
                if dice.random() < 0.1:
                    runner.pause(dice.choice(tenants))
                if dice.random() < 0.1:
                    runner.resume(dice.choice(tenants))
                if dice.random() < 0.1:
                    await asyncio.sleep(0.002)
            if round_ == rounds - 1:
                for tenant in tenants:
                    runner.resume(tenant)
                assert await runner.drain()
                report = await runner.stop()
            else:
                report = await runner.stop(dice.choice([0.0, 0.005]))
                if report.running:
                    report = await runner.stop(20)  # in threads: they end soon
            left = report.returned
            assert not report.running
            assert not runner.stats().running
            dead += [record.id for record in runner.dead()]
    assert left == []
    assert set(succeeded.values()) == {1}
    assert len(succeeded) + len(dead) == len(ids) == len(set(ids)) == 60 * rounds
    assert len(dead) == len(set(dead)) > 0


async def test_top_tenants_says_who_waits_most(start: Start) -> None:
    @job()
    def work() -> None: ...

    async with start(workers=1) as runner:
        for tenant, number in {"a": 3, "b": 1, "c": 5}.items():
            runner.pause(tenant)
            for _ in range(number):
                work.options(tenant=tenant).enqueue()
        assert runner.top_tenants(2) == [("c", 5, 0), ("a", 3, 0)]

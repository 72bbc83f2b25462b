"""Runners of both kinds behind one face, so that a claim that holds for both is one test. No settings, no leftovers."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from bulkhead.jobs import AsyncRunner, Runner, job
from bulkhead.jobs.handlers import Call, registry, takers
from bulkhead.jobs.memory import EVERYBODY, MemoryBackend, Seat
from bulkhead.settings import Jobs
from bulkhead.settings.live import live

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from bulkhead.jobs import Report


@pytest.fixture(autouse=True)
def _forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # no settings file is here
    for name in list(os.environ):
        if name.startswith("BULKHEAD_"):
            monkeypatch.delenv(name)
    kept = (live.now, live.place, live.seen, live.followers)
    live.now, live.place, live.seen, live.followers = None, None, (), ()
    jobs = dict(registry.jobs)
    yield
    live.now, live.place, live.seen, live.followers = kept
    registry.jobs.clear()
    registry.jobs.update(jobs)
    assert not takers.started, "a runner was not stopped"


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Bench(Seat):
    """A worker that does what the test says."""

    woken = 0

    def wake(self) -> None:
        type(self).woken += 1


class Desk:
    """A backend with its alarm."""

    def __init__(self, clock: Clock, **options: Any) -> None:
        self.clock, self.alarms, self.chance = clock, 0, 1.0
        self.backend = MemoryBackend(Jobs(**options), clock, lambda: self.chance, self.alarm)

    def alarm(self) -> None:
        self.alarms += 1

    def put(self, name: str = "work", tenant: str | None = "acme", delay: float = 0.0, attempts: int = 5) -> str:
        return self.backend.take(Call(name, "default", tenant, "{}", attempts, delay), inside=False)

    def seat(self, number: int = 0) -> Bench:
        seat = Bench(number)
        self.backend.join(seat)
        return seat


@pytest.fixture
def desk(clock: Clock) -> Callable[..., Desk]:
    @job(name="work")
    def work() -> None: ...

    return lambda **options: Desk(clock, **options)


class Started:
    """A runner of either kind, to be awaited."""

    def __init__(self, runner: Runner | AsyncRunner) -> None:
        self.runner = runner

    async def stop(self, grace_secs: float | None = None) -> Report:
        if isinstance(self.runner, AsyncRunner):
            return await self.runner.stop(grace_secs)
        return await asyncio.to_thread(self.runner.stop, grace_secs)

    async def drain(self, tenant: Any = EVERYBODY, timeout: float | None = 20.0) -> bool:  # noqa: ASYNC109  as Runner.drain
        if isinstance(self.runner, AsyncRunner):
            return await self.runner.drain(tenant, timeout)
        return await asyncio.to_thread(self.runner.drain, tenant, timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


class Start(Protocol):
    """`async with start(workers=2) as runner:`; stopped at the end, without grace."""

    def __call__(self, **options: Any) -> AbstractAsyncContextManager[Started]: ...


@pytest.fixture(params=["threads", "tasks"])
def start(request: pytest.FixtureRequest) -> Start:
    """Starts a runner; the test runs once for each kind."""

    @asynccontextmanager
    async def starting(**options: Any) -> AsyncIterator[Started]:
        options = {"chance": lambda: 0.0} | options
        runner: Runner | AsyncRunner = Runner(**options) if request.param == "threads" else AsyncRunner(**options)
        if isinstance(runner, AsyncRunner):
            await runner.start()
        else:
            runner.start()
        started = Started(runner)
        try:
            yield started
        finally:
            if runner.report is None:
                await started.stop(0)

    return starting

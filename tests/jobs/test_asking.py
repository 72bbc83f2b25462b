"""What people ask of a runner: who waits most, how it looks in a console, seconds that are none."""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

import bulkhead
from bulkhead.jobs import AsyncRunner, Runner, job
from bulkhead.option_rows import MAXIMUM_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from jobs.conftest import Start


@pytest.fixture
def waiting() -> Iterator[Runner]:
    """Jobs of paused tenants: 3 of a, 1 of b, 5 of c, 3 of d."""

    @job(name="work")
    def work() -> None: ...

    with Runner(workers=1, grace_secs=0) as runner:
        for tenant, number in {"a": 3, "b": 1, "c": 5, "d": 3}.items():
            runner.pause(tenant)
            for _ in range(number):
                work.options(tenant=tenant).enqueue()
        yield runner


def test_those_who_wait_most_are_told_in_order_and_no_more_than_asked_for(waiting: Runner) -> None:
    assert waiting.top_tenants(3) == [("c", 5, 0), ("a", 3, 0), ("d", 3, 0)]
    assert waiting.top_tenants() == [("c", 5, 0), ("a", 3, 0), ("d", 3, 0), ("b", 1, 0)]
    assert waiting.top_tenants(0) == waiting.top_tenants(-1) == []


def test_tenants_are_put_in_order_without_the_lock(waiting: Runner) -> None:
    """With 100,000 of them that takes longer than all else that a runner does."""
    lock: Any = waiting._backend._lock
    ordered: list[bool] = []

    def note(frame: FrameType, event: str, called: Any) -> None:
        name = getattr(called, "__name__", "") if event == "c_call" else frame.f_code.co_name
        if event in ("call", "c_call") and name in ("sorted", "sort", "nlargest"):
            ordered.append(lock._is_owned())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        waiting.top_tenants(2)
    finally:
        sys.setprofile(before)
    assert ordered
    assert not any(ordered)


def test_a_runner_says_in_a_console_how_it_is(waiting: Runner) -> None:
    assert repr(waiting) == "<Runner started, 1 worker, 12 waiting, 0 running>"
    waiting.stop(0)
    assert repr(waiting) == "<Runner stopped, 1 worker, 0 waiting, 0 running>"
    assert repr(AsyncRunner(workers=3)) == "<AsyncRunner new, 3 workers, 0 waiting, 0 running>"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "given", ["x", -1, math.nan, math.inf, True, 10**5000], ids=["text", "negative", "nan", "inf", "bool", "long"]
)
async def test_seconds_that_are_none_are_refused_by_name_and_change_nothing(start: Start, given: Any) -> None:
    async with start(workers=1) as runner:
        told = re.escape(f"must be a number of seconds of at least 0 and at most {MAXIMUM_SECONDS:g}, or None")
        with pytest.raises(bulkhead.ConfigurationError, match=f"Runner.stop: grace_secs {told}.*, not ") as stop:
            await runner.stop(given)
        with pytest.raises(bulkhead.ConfigurationError, match=f"Runner.drain: timeout {told}.*, not ") as drain:
            await runner.drain(timeout=given)
        for caught in (stop, drain):
            assert len(str(caught.value)) < 250

        @job(name="work")
        def work() -> None: ...

        work.enqueue()  # it is neither stopped nor drained
        assert await runner.drain(timeout=20)

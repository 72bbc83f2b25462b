"""Work in steps: what a body of a response sees of its tenant, and what others in the same context see of it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

import bulkhead
from bulkhead.tenancy import Steps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

now = bulkhead.current_tenant


def test_each_step_finds_the_tenant_and_the_context_is_as_it_was_in_between() -> None:
    steps = Steps("acme")
    with bulkhead.tenant("caller"):
        assert steps.run(now) == "acme"
        assert now() == "caller"
        assert steps.run(lambda *args, **kwargs: (args, kwargs), 1, two=2) == ((1,), {"two": 2})
        with pytest.raises(ZeroDivisionError):
            steps.run(lambda: 1 // 0)
        assert now() == "caller"
    assert now() is None
    assert Steps(None).run(now) is None


def test_a_step_goes_on_where_the_one_before_ended() -> None:
    def parts() -> Iterator[str | None]:
        yield now()
        with bulkhead.tenant("inner"):
            yield now()
            with bulkhead.tenant("innermost"):
                yield now()
            yield now()
        yield now()

    steps, left = Steps("acme"), parts()
    seen = []
    for number in range(5):
        with bulkhead.tenant(f"other-{number}"):
            seen.append(steps.run(next, left))
            assert now() == f"other-{number}"
    assert seen == ["acme", "inner", "innermost", "inner", "acme"]
    steps.run(bulkhead.set_tenant, "set")
    assert steps.run(now) == "set"
    assert now() is None


def test_a_step_may_be_another_threads() -> None:
    steps = Steps("acme")
    seen: list[str | None] = []
    thread = threading.Thread(target=lambda: seen.extend((steps.run(now), now())))
    thread.start()
    thread.join()
    assert seen == ["acme", None]
    assert steps.run(now) == "acme"


@pytest.mark.anyio
async def test_a_step_may_wait_while_other_tasks_work() -> None:
    async def parts() -> AsyncIterator[str | None]:
        with bulkhead.tenant("inner"):
            await asyncio.sleep(0)
            yield now()
            await asyncio.sleep(0)
            yield now()

    async def one(tenant: str) -> list[str | None]:
        steps, left, seen = Steps(tenant), parts(), [now()]
        for _ in range(2):
            seen.append(await steps.arun(anext(left)))
            seen.append(now())
        with pytest.raises(StopAsyncIteration):
            await steps.arun(anext(left))
        return [*seen, steps.run(now), now()]

    told = await asyncio.gather(*(one(f"tenant-{number}") for number in range(3)))
    assert told == [[None, "inner", None, "inner", None, f"tenant-{number}", None] for number in range(3)]

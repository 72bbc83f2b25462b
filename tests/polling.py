"""Bounded polling: how tests wait for a state of something real. None sleeps for as long as it usually takes.

The bound is only for a test that fails, so it is generous. Source text for other interpreters has its own few lines.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    import bulkhead

SECONDS = 30.0
PAUSE = 0.005

T = TypeVar("T")


def until(predicate: Callable[[], T], seconds: float = SECONDS) -> T:
    """Poll until the predicate's value is true, and return it; fails the test when time is over."""
    deadline = time.monotonic() + seconds
    while not (value := predicate()):
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {seconds} s; the last value was {value!r}")
        time.sleep(PAUSE)
    return value


async def auntil(predicate: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """The same, and the event loop runs meanwhile; the predicate may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if hasattr(value, "__await__"):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {seconds} s; the last value was {value!r}")
        await asyncio.sleep(PAUSE)


def until_due(resource: bulkhead.Resource) -> None:
    """Poll until the open circuit says that its time is over; the next call is a probe."""
    assert resource.state == "open", resource.explain()
    until(lambda: _is_due(resource))


async def auntil_due(resource: bulkhead.Resource) -> None:
    """The same, and the event loop runs meanwhile."""
    assert resource.state == "open", resource.explain()
    await auntil(lambda: _is_due(resource))


def _is_due(resource: bulkhead.Resource) -> bool:
    return "its time is over, the next call is a probe" in resource.explain()

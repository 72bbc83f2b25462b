"""What a guarded call is compared to: the ways of today to protect a function, each around the same function."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

import circuitbreaker
import pybreaker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NEVER = 10**9
FREE_THREADED: bool = not getattr(sys, "_is_gil_enabled", lambda: True)()
LOCK, CIRCUITBREAKER, PYBREAKER, SEMAPHORE = "threading.Lock", "circuitbreaker", "pybreaker", "asyncio.Semaphore"


def budget(with_gil: float, without: float | None = None) -> float | None:
    """The budget on this interpreter; without the GIL only those against a Lock exist."""
    return without if FREE_THREADED else with_gil


class Client:
    """Stands for a driver's client: what the guarded functions are methods of."""

    def __init__(self, bulkhead: Any = None) -> None:
        self.bulkhead = bulkhead


def work(self: Client, value: int) -> int:
    """The driver's function."""
    return value


async def work_async(self: Client, value: int) -> int:
    """The same for an event loop."""
    return value


def locked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`with threading.Lock()` as a decorator."""
    lock = threading.Lock()

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return wrapper


def limited(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`async with asyncio.Semaphore(16)` as a decorator."""
    semaphore = asyncio.Semaphore(16)

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        async with semaphore:
            return await function(*args, **kwargs)

    return wrapper


def broken_circuit(function: Callable[..., Any], threshold: int = NEVER) -> Callable[..., Any]:
    """The decorator of circuitbreaker."""
    return circuitbreaker.circuit(failure_threshold=threshold, recovery_timeout=NEVER)(function)  # type: ignore[no-any-return]


def py_broken(function: Callable[..., Any], threshold: int = NEVER) -> Callable[..., Any]:
    """The decorator of pybreaker."""
    return pybreaker.CircuitBreaker(fail_max=threshold, reset_timeout=NEVER)(function)

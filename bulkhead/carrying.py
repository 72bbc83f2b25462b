"""Functions that run in a context or a block which is made for each of their calls: one wrapper per kind of function.

A plain or generator function runs in a context of its own. A coroutine, and each step of an async generator, runs in
the context of the task that awaits it, inside a block. What context and block are about is not known here; tenancy.py
knows that it is the tenant.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from bulkhead.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from contextlib import AbstractContextManager
    from contextvars import Context

    Block = Callable[[], AbstractContextManager[object]]

P = ParamSpec("P")
R = TypeVar("R")


def wrapped(function: Callable[P, R], context: Callable[[], Context], block: Block) -> Callable[P, R]:
    """The function; `context` and `block` make what its calls run in. ConfigurationError if it is no function."""
    if not callable(function):
        raise ConfigurationError(f"a function is needed, not {type(function).__name__}")
    shape = _shape(function)
    if inspect.iscoroutinefunction(shape):
        wrapper = _coroutine_function(cast("Callable[..., Coroutine[Any, Any, Any]]", function), block)
    elif inspect.isasyncgenfunction(shape):
        wrapper = _async_generator_function(cast("Callable[..., AsyncGenerator[Any, Any]]", function), block)
    elif inspect.isgeneratorfunction(shape):
        wrapper = _generator_function(cast("Callable[..., Generator[Any, Any, Any]]", function), context)
    else:
        wrapper = _plain_function(function, context, block)
    return cast("Callable[P, R]", functools.update_wrapper(wrapper, function))


def _shape(function: object) -> object:
    """What says whether it is a coroutine or generator function: inside partials, and `__call__` of objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__ if callable(function) else function


def _plain_function(function: Callable[..., Any], context: Callable[[], Context], block: Block) -> Callable[..., Any]:
    async def awaited(coroutine: Coroutine[Any, Any, Any]) -> object:
        with block():
            return await coroutine

    def run(*args: object, **kwargs: object) -> object:
        result = context().run(function, *args, **kwargs)
        return awaited(result) if inspect.iscoroutine(result) else result

    return run


def _coroutine_function(function: Callable[..., Coroutine[Any, Any, Any]], block: Block) -> Callable[..., Any]:
    async def run(*args: object, **kwargs: object) -> object:
        with block():
            return await function(*args, **kwargs)

    return run


def _generator_function(
    function: Callable[..., Generator[Any, Any, Any]], context: Callable[[], Context]
) -> Callable[..., Any]:
    def run(*args: object, **kwargs: object) -> Generator[Any, Any, Any]:
        inside = context()
        generator = inside.run(function, *args, **kwargs)
        step: Callable[..., Any] = generator.send
        sent: object = None
        try:
            while True:
                value = inside.run(step, sent)
                try:
                    step, sent = generator.send, (yield value)
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 (handed on to the generator, which raises it or goes on)
                    step, sent = generator.throw, error
        except StopIteration as end:
            return end.value
        finally:
            sent = None  # an error kept here would hold this frame, and the frame the error
            inside.run(generator.close)

    return run


def _async_generator_function(function: Callable[..., AsyncGenerator[Any, Any]], block: Block) -> Callable[..., Any]:
    async def run(*args: object, **kwargs: object) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        step: Callable[..., Any] = generator.asend
        sent: Any = None
        try:
            while True:
                with block():
                    value = await step(sent)
                try:
                    step, sent = generator.asend, (yield value)
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 (handed on to the generator, which raises it or goes on)
                    step, sent = generator.athrow, error
        except StopAsyncIteration:
            return
        finally:
            sent = None  # an error kept here would hold this frame, and the frame the error
            with block():
                await generator.aclose()

    return run

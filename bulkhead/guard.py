"""Guarded functions: wrappers with the function's own signature, made from a template as dataclasses makes methods.

A wrapper of `*args, **kwargs` costs 100 ns more a call than one with the signature (17 % of a streamed database row),
so the signature is taken when the wrapper is made. Sync or async is decided once, there. The two forms are one text
that differs by `await`; generators hold the permit while they run, not while they merely exist.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any, cast

from bulkhead import nesting
from bulkhead.errors import ConfigurationError
from bulkhead.outcomes import DIRECT, Site
from bulkhead.sessions import Session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from bulkhead.resources import Resource

# {resource}: where the resource comes from; {nested}: what makes the wrapper part of an outer call; {mark}, {unmark}
TEMPLATE = """
def make({names}):
    {a}def wrapper({declared}):
{find}
        ticket = None
        try:
            take, give, take_shared, give_shared, failed = resource.fast[resource.key()]
            ticket = take()
            shared = take_shared()
        except LookupError:
            failed = None
        if failed is None:  # out of the handler: a refusal raised in there costs more, and carries the KeyError along
            ticket, give, shared, give_shared, failed = {w}resource.{enter}(site, ticket)
{begin}
        try:
{call}
        except BaseException as error:  # noqa: BLE001  passed on to the generator
{end_failed}
            failed(ticket, shared, error, site, {started})
            del ticket, shared
            raise
{end}
        give_shared(shared)
        give(ticket)
        return result
    return wrapper
"""

_OF_HOLDER = """
        resource = {holder}.bulkhead
        if resource is None:
            return {w}function({passed})
        if resource.late:
            resource = resource.now()
        if resource.marked and inside(resource.identifier):
            return {w}function({passed})
"""
_OF_ONE = """
        outer = get_mark()
        if outer:
            if inside(resource.identifier):
                return {w}function({passed})
            outer = own(outer)
        else:
            outer = None
"""
_BEGIN_MARK = """
        mark = [resource.identifier, outer]
        mark.append(set_mark(mark))
"""
_END_MARK = """
        {indent}mark.clear()
        {indent}if outer:
            {indent}outer[2] = set_mark(outer)
"""
_CALL = "            result = {w}function({passed})"
_CALL_WITHIN = """
            if resource.limits_time:
                result = await within(resource.time_limit(ticket), function({passed}))
            else:
                result = await function({passed})
"""
_CALL_CHECKED = """
            result = function({passed})
            if awaitables[result.__class__]:
                refuse(function, result)
"""


def guard(function: Callable[..., Any], site: Site, holder: str = "self") -> Callable[..., Any]:
    """A driver's function, guarded by the `bulkhead` of the object that its parameter `holder` names.

    `function` is plain or a coroutine function. The object's `bulkhead` is None (the function is called as it is), a
    Resource, or a Late. ConfigurationError where the function has no such parameter.
    """
    parameters = _parameters(function)
    declared, passed, names = _signature(parameters)
    if holder not in names:
        raise ConfigurationError(f"guard: {function!r} has no parameter {holder!r}; it has {', '.join(names)}")
    if not names.isdisjoint(_LOCAL):
        raise ConfigurationError(
            f"guard: {function!r} has parameters with names that the wrapper needs for itself: "
            f"{', '.join(sorted(names & _LOCAL))}"
        )
    is_async = inspect.iscoroutinefunction(function)
    w = "await " if is_async else ""
    started = ("        started = resource.clock()\n", "started") if is_async else ("", "None")
    source = TEMPLATE.format(
        names="function, site, inside",
        a="async " if is_async else "",
        w=w,
        declared=declared,
        find=_OF_HOLDER.format(holder=holder, w=w, passed=passed),
        enter="aenter" if is_async else "enter",
        begin=started[0],
        call=_CALL.format(w=w, passed=passed),
        end_failed="",
        end="",
        started=started[1],
    )
    return _made(source, function, (function, site, nesting.inside), parameters)


def guarded(resource: Resource, function: Callable[..., Any]) -> Any:
    """`@resource`: a function of any kind as a guarded call of this resource."""
    kind = _kind(function)
    if kind == "async generator":
        return _like(function, _async_generator(resource, function))
    if kind == "generator":
        return _like(function, _generator(resource, function))
    is_async = kind == "coroutine"
    resource.marked = True
    parameters = _parameters(function, own=True)
    declared, passed, names = _signature(parameters)
    if not names.isdisjoint(_LOCAL):
        declared, passed, parameters = _UNKNOWN, _UNKNOWN, None
    w = "await " if is_async else ""
    started = "        started = resource.clock()\n" if is_async else ""
    source = TEMPLATE.format(
        names="function, site, resource, inside, own, get_mark, set_mark, within, awaitables, refuse",
        a="async " if is_async else "",
        w=w,
        declared=declared,
        find=_OF_ONE.format(w=w, passed=passed),
        enter="aenter" if is_async else "enter",
        begin=_BEGIN_MARK + started,
        call=(_CALL_WITHIN if is_async else _CALL_CHECKED).format(w=w, passed=passed),
        end_failed=_END_MARK.format(indent="    "),
        end=_END_MARK.format(indent=""),
        started="started" if is_async else "None",
    )
    get_mark, set_mark = nesting.current.get, nesting.current.set
    values = (
        function,
        DIRECT,
        resource,
        nesting.inside,
        nesting.own,
        get_mark,
        set_mark,
        _within,
        _AWAITABLES,
        _refuse,
    )
    return _made(source, function, values, parameters)


_LOCAL = {
    "awaitables",
    "error",
    "failed",
    "function",
    "get_mark",
    "give",
    "give_shared",
    "inside",
    "mark",
    "outer",
    "own",
    "refuse",
    "resource",
    "result",
    "set_mark",
    "shared",
    "site",
    "started",
    "take",
    "take_shared",
    "ticket",
    "within",
}


_UNKNOWN = "*arguments, **named"


def _parameters(function: Callable[..., Any], *, own: bool = False) -> list[inspect.Parameter] | None:
    """The parameters that a wrapper declares; None where the function does not tell them (some builtins).

    `own`: those it is called with, not those it says it has: what functools.wraps shows of a decorator that passes
    more or less on (a session, say), or a `__signature__` that somebody wrote.
    """
    if own and hasattr(function, "__signature__"):
        return None
    try:
        return list(inspect.signature(function, follow_wrapped=not own).parameters.values())
    except (TypeError, ValueError):
        return None


def _signature(parameters: list[inspect.Parameter] | None) -> tuple[str, str, set[str]]:
    """How a wrapper declares the parameters, how it passes them on, and their names; defaults are set afterwards."""
    if parameters is None:
        return _UNKNOWN, _UNKNOWN, {"arguments", "named"}
    declared: list[str] = []
    passed: list[str] = []
    starred = False
    for index, one in enumerate(parameters):
        default = "" if one.default is one.empty else "=None"
        if one.kind is one.VAR_POSITIONAL:
            declared.append("*" + one.name)
            passed.append("*" + one.name)
            starred = True
        elif one.kind is one.VAR_KEYWORD:
            declared.append("**" + one.name)
            passed.append("**" + one.name)
        elif one.kind is one.KEYWORD_ONLY:
            if not starred:
                declared.append("*")
                starred = True
            declared.append(one.name + default)
            passed.append(f"{one.name}={one.name}")
        else:
            declared.append(one.name + default)
            passed.append(one.name)
            following = parameters[index + 1] if index + 1 < len(parameters) else None
            if one.kind is one.POSITIONAL_ONLY and (following is None or following.kind is not one.POSITIONAL_ONLY):
                declared.append("/")
    return ", ".join(declared), ", ".join(passed), {one.name for one in parameters}


def _made(
    source: str, function: Callable[..., Any], values: tuple[Any, ...], parameters: list[inspect.Parameter] | None
) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<guard of {getattr(function, '__qualname__', function)!s}>", "exec"), namespace)  # noqa: S102
    wrapper = namespace["make"](*values)
    if parameters is None:
        return _like(function, wrapper)
    positional = [
        one.default
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is not one.empty
    ]
    if wrapper.__defaults__ is not None:
        wrapper.__defaults__ = tuple(positional)
    if wrapper.__kwdefaults__ is not None:
        wrapper.__kwdefaults__ = {
            one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is not one.empty
        }
    return _like(function, wrapper)


def _like(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    functools.update_wrapper(wrapper, function)
    return wrapper


def _kind(function: Callable[..., Any]) -> str:
    """Which of "plain", "coroutine", "generator", "async generator"; also of partials and objects with `__call__`."""
    if not callable(cast("object", function)) or isinstance(function, (type, staticmethod, classmethod)):
        raise ConfigurationError(
            f"a resource guards functions, not {function!r}; put @resource below @staticmethod and @classmethod, "
            "and on methods instead of classes"
        )
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not (inspect.isroutine(inner) or inspect.isfunction(inner)):
        inner = type(inner).__call__
    if inspect.isasyncgenfunction(inner):
        return "async generator"
    if inspect.isgeneratorfunction(inner):
        return "generator"
    return "coroutine" if inspect.iscoroutinefunction(inner) else "plain"


async def _within(seconds: float | None, call: Awaitable[Any]) -> Any:
    if seconds is None:
        return await call
    async with asyncio.timeout(seconds):
        return await call


class _Awaitables(dict[type, bool]):
    """Is an object of this class awaitable? Asked once for each class: `hasattr` costs five times as much."""

    def __missing__(self, kind: type) -> bool:
        answer = hasattr(kind, "__await__")
        if len(self) < _MOST_CLASSES:
            self[kind] = answer
        return answer


_MOST_CLASSES = 1000  # some programs make classes as they go
_AWAITABLES = _Awaitables()


def _refuse(function: Callable[..., Any], result: Any) -> None:
    if inspect.iscoroutine(result):
        result.close()
    raise ConfigurationError(
        f"{getattr(function, '__qualname__', function)} is a plain function that returned an awaitable: what it does "
        "would run unguarded; guard an `async def`, or use `async with resource.permit():`"
    )


def _generator(resource: Resource, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*arguments: Any, **named: Any) -> Generator[Any, Any, Any]:
        inner = cast("Generator[Any, Any, Any]", function(*arguments, **named))
        if nesting.inside(resource.identifier):
            return (yield from inner)
        session = Session(resource.begin(DIRECT), DIRECT, None)
        step: Any = functools.partial(next, inner)
        try:
            while True:
                mark = resource.mark()
                try:
                    value = step()
                finally:
                    nesting.unmark(mark)
                    step = None  # it may hold an error, whose traceback holds this frame
                try:
                    sent = yield value
                except GeneratorExit:
                    inner.close()
                    raise
                except BaseException as error:  # noqa: BLE001  passed on to the generator
                    step = functools.partial(inner.throw, error)
                else:
                    step = functools.partial(inner.send, sent)
        except StopIteration as stop:
            session.end()
            return stop.value
        except BaseException as error:
            session.fail(error)
            raise

    return wrapper


def _async_generator(resource: Resource, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*arguments: Any, **named: Any) -> AsyncGenerator[Any, Any]:
        inner = cast("AsyncGenerator[Any, Any]", function(*arguments, **named))
        inside = nesting.inside(resource.identifier)
        session = None if inside else Session(await resource.abegin(DIRECT), DIRECT, resource.clock())
        step: Awaitable[Any] = inner.__anext__()
        try:
            while True:
                mark = resource.mark()
                try:
                    value = await step
                finally:
                    nesting.unmark(mark)
                try:
                    sent = yield value
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001  passed on to the generator
                    step = inner.athrow(error)
                else:
                    step = inner.asend(sent)
        except StopAsyncIteration:
            if session is not None:
                session.end()
        except BaseException as error:
            if session is not None:
                session.fail(error)
            raise

    return wrapper

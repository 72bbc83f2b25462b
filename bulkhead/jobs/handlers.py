"""`@job`: functions that are called later, by name, with arguments that are JSON. Who runs them is not decided here.

A call becomes a `Call`: names and text only, so that whoever keeps it (this process, later a database) needs nothing
of the function. Rules for a change: what a caller did wrong is raised where the job is enqueued, never when it runs;
the tenant is that of the caller unless `options(tenant=…)` says otherwise.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakSet

from bulkhead import tenancy
from bulkhead.errors import ConfigurationError
from bulkhead.jobs.arguments import as_json
from bulkhead.option_rows import MAXIMUM_COUNT, MAXIMUM_SECONDS, shown
from bulkhead.tenancy import tenant_text, text_fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_QUEUE = "default"
MAX_ATTEMPTS = 5


class Call(NamedTuple):
    """What is written down of a job that is to run."""

    name: str
    queue: str
    tenant: str | None
    arguments: str
    """A JSON object."""
    max_attempts: int
    delay: float
    """Seconds until it may run."""


class Taker(Protocol):
    """Who keeps jobs until they run: a runner."""

    def take(self, call: Call) -> str:
        """Keep the job. Its id. Rejected: it is not kept."""
        ...


CALLER: Final = cast("Any", object())
"""The tenant of the code that enqueues; None says outside any."""


class Sender(Generic[P]):
    """A job together with whose it is and who runs it; made by `options()` and `named()`, used at once or kept."""

    __slots__ = ("_bind", "_max_attempts", "_name", "_queue", "_runner", "_tenant")

    def __init__(
        self,
        name: str,
        queue: str,
        max_attempts: int,
        bind: Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]],
        whose: tuple[Any, Taker | None],
    ) -> None:
        self._name, self._queue, self._max_attempts, self._bind = name, queue, max_attempts, bind
        self._tenant, self._runner = whose

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Let it run as soon as it is its turn. Returns the job's id; see `Job.enqueue`."""
        return self._send(0.0, args, kwargs)

    def enqueue_in(self, delay: float, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Let it run in `delay` seconds at the earliest. Returns the job's id; see `Job.enqueue`."""
        if not _is_number(delay, 0):
            raise ConfigurationError(
                f"job {self._name!r}: the delay must be a number of seconds from 0 to {MAXIMUM_SECONDS:g}, "
                f"not {shown(delay)}"
            )
        return self._send(float(delay), args, kwargs)

    def _send(self, delay: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        text = as_json(self._name, self._bind(args, kwargs))
        tenant = tenancy.current.get() if self._tenant is CALLER else self._tenant
        call = Call(self._name, self._queue, tenant, text, self._max_attempts, delay)
        return (self._runner or takers.the_one()).take(call)

    def __repr__(self) -> str:
        return f"<Sender of job {self._name!r}>"


class Job(Generic[P, R]):
    """A function that can be called later. Called directly it is the function.

    `name` is what is written down of it: module and qualified name, unless given. `is_async`: a coroutine function.
    """

    __wrapped__: Callable[P, R]

    def __init__(
        self, function: Callable[P, R], *, name: str, queue: str, max_attempts: int, timeout: float | None
    ) -> None:
        functools.update_wrapper(cast("Callable[P, R]", self), function)
        self.name, self.queue, self.max_attempts, self.timeout = name, queue, max_attempts, timeout
        self.function = function
        self.is_async = is_coroutine_function(function)
        self._signature = _signature(name, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        return self.function(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Let it run as soon as it is its turn, for the tenant of now. Returns the job's id.

        Arguments are kept as JSON: a tuple arrives as a list. ConfigurationError names an argument that is none, and
        is raised where no runner is started; TypeError: the function does not take these arguments; BacklogFull: too
        many jobs of this tenant wait; NotTaking: the runner stops.
        """
        return self.options().enqueue(*args, **kwargs)

    def enqueue_in(self, delay: float, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Let it run in `delay` seconds at the earliest (0 to 1e9), for the tenant of now; else as `enqueue`."""
        return self.options().enqueue_in(delay, *args, **kwargs)

    def options(self, *, tenant: str | int | UUID | None = CALLER, runner: Taker | None = None) -> Sender[P]:
        """The same job for another tenant (None: for nobody), or for a runner where the process has several."""
        whose = tenant if tenant is CALLER or tenant is None else tenant_text(tenant)
        return Sender(self.name, self.queue, self.max_attempts, self._bind, (whose, runner))

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"job {self.name!r}: {error}") from None
        found = dict(bound.arguments)
        for key, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                found |= found.pop(key, {})
        return found

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"


class Decorator(Protocol):
    """What `job(…)` returns."""

    def __call__(self, function: Callable[P, R], /) -> Job[P, R]:
        """Make a job of the function."""
        ...


class Registry:
    """The jobs of this process by name, and those who want to know of new ones."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job[..., Any]] = {}
        self._followers: WeakSet[Any] = WeakSet()
        self.fresh()

    def fresh(self) -> None:
        """In a forked child no lock is taken."""
        self._lock = threading.Lock()

    def add(self, one: Job[..., Any]) -> None:
        """Another function with the same name is an error; the same one again (its module was reloaded) replaces it."""
        with self._lock:
            self._add(one)
            followers = list(self._followers)
        for follower in followers:
            follower.look_again()

    def _add(self, one: Job[..., Any]) -> None:
        before = self.jobs.get(one.name)
        if before is not None and _place(before) != _place(one):
            raise ConfigurationError(
                f"two jobs are named {one.name!r}: {'.'.join(_place(before))} and {'.'.join(_place(one))}; "
                "give one of them another name="
            )
        self.jobs[one.name] = one

    def follow(self, follower: Any) -> None:
        """Call `follower.look_again()` after each new job, as long as somebody else keeps it."""
        with self._lock:
            self._followers.add(follower)


registry = Registry()
os.register_at_fork(after_in_child=registry.fresh)


class Takers:
    """The runners that are started in this process, and the one that a job in work belongs to."""

    inside: ContextVar[Taker | None]
    started: tuple[Taker, ...]
    _lock: threading.Lock

    def __init__(self) -> None:
        self.forget()

    def the_one(self) -> Taker:
        """Where a job goes that names no runner."""
        mine = self.inside.get()
        if mine is not None:
            return mine
        if len(self.started) == 1:
            return self.started[0]
        if self.started:
            raise ConfigurationError(
                f"{len(self.started)} runners are started in this process; say which one: "
                "job.options(runner=runner).enqueue(…)"
            )
        raise ConfigurationError(
            "no runner is started in this process, and jobs are kept in memory by one: "
            "`with bulkhead.jobs.Runner():` or `async with bulkhead.jobs.AsyncRunner():` around what enqueues "
            "(after a fork, in the child)"
        )

    def add(self, runner: Taker) -> None:
        """It is started."""
        with self._lock:
            self.started = (*self.started, runner)

    def remove(self, runner: Taker) -> None:
        """It is stopped."""
        with self._lock:
            self.started = tuple(filter(lambda one: one is not runner, self.started))

    def forget(self) -> None:
        """In a forked child no thread or loop of the parent runs, no lock is taken, and no job is in work.

        Not even where a job forked: a new variable, since contexts of the parent's jobs go on in the child.
        """
        self.inside = ContextVar("bulkhead_runner", default=None)
        self.started = ()
        self._lock = threading.Lock()


takers = Takers()
os.register_at_fork(after_in_child=takers.forget)


def job(
    queue: str = DEFAULT_QUEUE,
    max_attempts: int = MAX_ATTEMPTS,
    timeout: float | None = None,
    name: str | None = None,
) -> Decorator:
    """Decorator: a plain or coroutine function becomes a job, `@job()`.

    `queue`: queues are served in turn. `max_attempts`: from 1; what still fails then is kept as dead. `timeout`:
    seconds that an attempt may last (above 0); a coroutine function is cancelled then, a plain one only reported.
    `name`: 1 to 256 bytes, for functions that move while jobs wait. ConfigurationError for anything else, and for a
    function whose arguments cannot be named (*args, positional-only) or that is a generator function.
    """
    if callable(queue):
        raise ConfigurationError("write @job() with parentheses: the first argument is the name of a queue")
    for what, text in (("queue", queue), ("name", name)):
        fault = None if text is None and what == "name" else text_fault(text)
        if fault is not None:
            raise ConfigurationError(f"{what} of a job must be a text of 1 to 256 bytes, not {shown(text)}: {fault}")
    if not _is_count(max_attempts):
        raise ConfigurationError(
            f"max_attempts of a job must be a whole number from 1 to {MAXIMUM_COUNT:,}, not {shown(max_attempts)}; "
            "1 = it is not tried again"
        )
    if timeout is not None and (not _is_number(timeout, 0) or not timeout):
        raise ConfigurationError(
            f"timeout of a job must be a number of seconds above 0 and at most {MAXIMUM_SECONDS:g}, or None (no "
            f"limit), not {shown(timeout)}"
        )

    def decorate(function: Callable[P, R], /) -> Job[P, R]:
        given: Any = function
        if not callable(given) or isinstance(given, (type, Job)):
            raise ConfigurationError(f"@job() takes a plain or coroutine function, not {shown(function)}")
        chosen = name or ".".join(_place(function))
        one = Job(function, name=chosen, queue=queue, max_attempts=max_attempts, timeout=timeout)
        registry.add(one)
        return one

    return decorate


def named(name: str, *, queue: str = DEFAULT_QUEUE, max_attempts: int = MAX_ATTEMPTS) -> Sender[...]:
    """A job by its name alone, for code that cannot import the function: `named("reports.build").enqueue(month=7)`.

    Where the name is known its queue and attempts hold, else the ones given here; arguments are keyword arguments,
    not compared with the function's. A job whose name no worker knows waits (see `unknown_after_secs`).
    """
    known = registry.jobs.get(name)
    if known is not None:
        return known.options()
    fault = text_fault(name)
    if fault is not None:
        raise ConfigurationError(f"the name of a job must be a text of 1 to 256 bytes, not {shown(name)}: {fault}")

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if args:
            raise TypeError(f"job {name!r} is known by its name only: name its arguments")
        return kwargs

    return Sender(name, queue, max_attempts, bind, (CALLER, None))


def _is_number(value: object, low: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= MAXIMUM_SECONDS


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAXIMUM_COUNT


def is_coroutine_function(function: Any) -> bool:
    """Also inside partials, and for objects with an async `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _place(function: Any) -> tuple[str, str]:
    while isinstance(function, functools.partial):
        function = function.func
    kind = type(function)
    return (
        str(getattr(function, "__module__", kind.__module__)),
        str(getattr(function, "__qualname__", kind.__qualname__)),
    )


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise ConfigurationError(f"job {name!r}: a generator function does nothing when it is called; write a loop")
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise ConfigurationError(f"job {name!r}: its arguments cannot be read; wrap it in a Python function") from None
    for key, parameter in signature.parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ConfigurationError(f"job {name!r}: its argument {key!r} cannot be named; arguments are kept by name")
    return signature

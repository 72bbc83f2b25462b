"""Who the current code works for: one context variable, and the ways to set, carry and drop it.

It knows nothing of tickets or circuits; the core reads `current` and nothing else. Rules for a change: an id is checked
where it enters (`tenant_text`), never on the way of a guarded call; nothing here may keep an id alive after its block.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import re
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar, cast, get_args
from uuid import UUID

from bulkhead.carrying import wrapped
from bulkhead.errors import ConfigurationError
from bulkhead.request import Held, end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType, TracebackType

P = ParamSpec("P")
R = TypeVar("R")
Policy = Literal["allow", "share", "reject"]

MAXIMUM_BYTES = 256

current: ContextVar[str | None] = ContextVar("bulkhead_tenant", default=None)

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def text_fault(text: object) -> str | None:
    """Why this cannot be an id or a name, of 1 to 256 bytes of UTF-8 without control characters; None when it can."""
    if not isinstance(text, str):
        return "it is no text"
    if not text:
        return "it is empty"
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return "it holds a lone surrogate, which is no text"
    if size > MAXIMUM_BYTES:
        return f"it has {size} bytes of UTF-8, {MAXIMUM_BYTES} are allowed"
    if _CONTROL.search(text):
        return "it holds a control character"
    return None


def tenant_text(identifier: object) -> str:
    """The tenant id as text: str stays, int and UUID become their text. ConfigurationError for anything else."""
    if isinstance(identifier, str):
        text = str.__str__(identifier)  # of a str subclass or enum its text, whatever its own __str__ says
    elif isinstance(identifier, int) and not isinstance(identifier, bool):
        if identifier.bit_length() > 8 * MAXIMUM_BYTES:
            raise ConfigurationError(f"a tenant id has at most {MAXIMUM_BYTES} bytes; this number is longer")
        text = int.__repr__(identifier)
    elif isinstance(identifier, UUID):
        text = str(identifier)
    else:
        raise ConfigurationError(
            f"a tenant id is a str, an int or a UUID, not {type(identifier).__name__}; "
            "pass the id of the tenant, or None for no tenant"
        )
    fault = text_fault(text)
    if fault is not None:  # the id itself is hostile input: it is not quoted
        raise ConfigurationError(f"this tenant id cannot be used: {fault}")
    return text


class Tenancy:
    """What `tenant(id)` returns. May be entered again, nested, and by several threads and tasks at a time.

    Invariant: `entered` is the block that this context is inside of: with the tenant it replaced, what is held for it
    as long as it lasts, and the block around it. The tenant changes before `entered` on the way in and after it on the
    way out, so an exception raised by a signal handler in between is undone here or by the block around. A block that
    ends in another context (an async generator that the event loop closes) changes nothing there.

    What is held is in a dict as a request has one, and ends as that does: see request.py.
    """

    __slots__ = ("tenant",)

    def __init__(self, tenant: str | None) -> None:
        self.tenant = tenant

    def __enter__(self) -> str | None:
        before, around = current.get(), entered.get()
        try:
            current.set(self.tenant)
            entered.set((self, before, {}, around))
        except BaseException:
            entered.set(around)
            current.set(before)
            raise
        return self.tenant

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        block = entered.get()
        if block is not None and block[0] is self:
            try:
                entered.set(block[3])
            finally:
                current.set(block[1])
            end(block[2])
        else:
            self._leave_below(block, sys._getframe(1))  # noqa: SLF001 (its documented name)

    async def __aenter__(self) -> str | None:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.__exit__(kind, error, trace)

    def _leave_below(self, block: Block | None, frame: FrameType | None) -> None:
        """Leave a block that is not the innermost one.

        A generator may end while blocks that its caller entered later go on: only its own block goes. Anywhere else
        the blocks above are over (their end was cut short by an asynchronous exception, or they stand in suspended
        generators), and go with it.
        """
        if frame is not None and frame.f_code is Tenancy.__aexit__.__code__:
            frame = frame.f_back
        in_generator = frame is not None and frame.f_code.co_flags & _GENERATOR
        above: list[Block] = []
        while block is not None and block[0] is not self:
            above.append(block)
            block = block[3]
        if block is None:
            return
        _, before, held, around = block
        if not in_generator:
            entered.set(around)
            current.set(before)
            for over in (block, *above):
                end(over[2])
            return
        next_one = above.pop()
        around = next_one[0], before, next_one[2], around
        while above:
            around = *above.pop()[:3], around
        entered.set(around)
        end(held)

    def __repr__(self) -> str:
        return f"<tenant {self.tenant!r}>"


Block: TypeAlias = "tuple[Tenancy, str | None, Held, Block | None]"
entered: ContextVar[Block | None] = ContextVar("bulkhead_tenancies", default=None)


class Steps:
    """The tenant of work that is done in steps, while other work uses the context in between: a response's body.

    Each step finds the tenant, and the blocks that suspended generators are inside of, as the step before left them;
    between the steps the context is as it was. In any thread, one step at a time.
    """

    __slots__ = ("_block", "_tenant")

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant
        self._block: Block | None = None

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """One step: call the function."""
        before, block = current.get(), entered.get()
        try:
            self._begin()
            return function(*args, **kwargs)
        finally:
            self._end(before, block)

    async def arun(self, awaitable: Awaitable[R], /) -> R:
        """One step: await this."""
        before, block = current.get(), entered.get()
        try:
            self._begin()
            return await awaitable
        finally:
            self._end(before, block)

    def _begin(self) -> None:
        current.set(self._tenant)
        entered.set(self._block)

    def _end(self, before: str | None, block: Block | None) -> None:
        self._tenant, self._block = current.get(), entered.get()
        entered.set(block)
        current.set(before)


def tenant(identifier: str | int | UUID | None) -> Tenancy:
    """A block, `with` or `async with`: the code inside works for this tenant; None = for nobody.

    Ids are str of 1 to 256 bytes of UTF-8 without control characters; int and UUID become their text. Anything else
    is a ConfigurationError, raised here and not at a call.
    """
    return Tenancy(None if identifier is None else tenant_text(identifier))


def current_tenant() -> str | None:
    """The tenant that the current code works for; None outside any."""
    return current.get()


def set_tenant(identifier: str | int | UUID | None) -> Token[str | None]:
    """Set the tenant of this task or thread, for signals and hooks that have no block; undo it with reset_tenant."""
    return current.set(None if identifier is None else tenant_text(identifier))


def reset_tenant(token: Token[str | None]) -> None:
    """Undo the set_tenant that returned this token; in the same task or thread, and once, else ConfigurationError."""
    try:
        current.reset(token)
    except RuntimeError as error:
        raise ConfigurationError("this tenant token was already used; each token resets once") from error
    except ValueError as error:
        raise ConfigurationError(
            "this tenant token was made in another task, thread or by another context variable; reset it where it "
            "was set, or use `with bulkhead.tenant(id):`"
        ) from error
    except TypeError as error:
        raise ConfigurationError("reset_tenant takes the token that set_tenant returned") from error


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """The function, to be called later by another thread or task, working for the tenant of now.

    Plain and generator functions run in a copy of the whole context of now, a fresh copy per call (so it can be
    called many times, at once too). Coroutine and async generator functions run in the context of the task that
    awaits them, with the tenant of now.
    """
    captured = copy_context()
    return wrapped(function, captured.copy, functools.partial(Tenancy, current.get()))


def detached(function: Callable[P, R]) -> Callable[P, R]:
    """The function, working for no tenant, for long-lived background work started inside a request.

    Plain and generator functions run in an empty context, coroutine and async generator functions without a tenant.
    """
    return wrapped(function, Context, functools.partial(Tenancy, None))


class CarryingExecutor(ThreadPoolExecutor):
    """An executor whose work belongs to the tenant that submitted it.

    `CarryingExecutor(max_workers=8)` is a thread pool; `CarryingExecutor(executor)` submits to one that exists and
    shuts it down with itself. Threads get a copy of the whole context, other kinds of executors (processes,
    interpreters) the tenant only. A ThreadPoolExecutor in type, so that `loop.set_default_executor` takes it.
    """

    def __init__(
        self,
        executor: Executor | None = None,
        *,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        if executor is not None and not isinstance(executor, Executor):
            raise ConfigurationError(
                f"CarryingExecutor wraps a concurrent.futures.Executor, not {type(executor).__name__}; "
                "for a number of threads write max_workers="
            )
        if executor is not None and (max_workers is not None or thread_name_prefix or initializer is not None):
            raise ConfigurationError("an executor that exists keeps its own threads: leave max_workers and kin out")
        super().__init__(max_workers, thread_name_prefix, initializer, initargs)  # makes no thread before a submit
        self._executor = executor

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Like Executor.submit; the work runs for the tenant of the caller."""
        if self._executor is None:
            return super().submit(carry(fn), *args, **kwargs)
        if isinstance(self._executor, ThreadPoolExecutor) and not isinstance(self._executor, _OTHER_MEMORY):
            return self._executor.submit(carry(fn), *args, **kwargs)
        return cast("Future[R]", self._executor.submit(_run_for, current.get(), fn, args, kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 (as in Executor)
        """Like Executor.shutdown, of the wrapped executor too."""
        if self._executor is not None:
            self._executor.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


# A subclass of ThreadPoolExecutor (3.14) whose workers do not share our memory.
_OTHER_MEMORY: tuple[type, ...] = tuple(
    kind for kind in (getattr(concurrent.futures, "InterpreterPoolExecutor", None),) if kind is not None
)


def _run_for(whose: str | None, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Runs in a worker that may be another process; a module function, so that it can be pickled."""
    with Tenancy(whose):
        return function(*args, **kwargs)


_policy: Policy = "allow"
_watchers: list[Callable[[], object]] = []


def unknown_tenant(policy: Policy) -> None:
    """What becomes of calls outside any tenant, process-wide.

    "allow" (the default): only the resource-wide limits apply. "share": all of them together are held to the limit
    of one tenant. "reject": UnknownTenantError.
    """
    global _policy
    if policy not in get_args(Policy):
        raise ConfigurationError(f'unknown_tenant takes "allow", "share" or "reject", not {policy!r}')
    changed, _policy = policy != _policy, policy
    if changed:
        for watcher in tuple(_watchers):
            watcher()


def policy() -> Policy:
    """What unknown_tenant() said last."""
    return _policy


def on_policy_change(callback: Callable[[], object]) -> None:
    """Call this after each change of the policy; for the core, for the life of the process."""
    if callback not in _watchers:
        _watchers.append(callback)

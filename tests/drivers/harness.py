"""What a driver provides so that the shared cases can run against it, sync and async alike.

A concrete harness writes its primitives in its own flavour: plain functions, which run in threads that carry the
caller's context, or coroutine functions. The cases only use the methods of `Harness` below the line "for the cases",
all of them coroutines; so each case is written once. A primitive that a driver has no use for is left out, and the
cases that need it are skipped by that reason.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest

import bulkhead
from bulkhead import events

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bulkhead.adapter import Errors, Resource

_numbers = itertools.count(1)
THREADS = 48


class Harness(ABC):
    """One driver in one flavour, for the length of one test."""

    driver: ClassVar[str]  # name of the adapter
    kind: ClassVar[str]  # how its identifiers begin
    module: ClassVar[str]  # whose import loads the driver
    base: ClassVar[type[Exception]]  # what users of the driver catch
    errors: ClassVar[Errors]
    patched: ClassVar[tuple[str, ...]] = ()  # "module:Class.attribute", for the identity case
    connects: ClassVar[bool] = True  # has a connect hook of its own
    ends_late_calls: ClassVar[bool] = True  # call_timeout and half_open_resource_timeout end a call at the driver
    time_outs: ClassVar[bool] = True  # make(read_timeout=…) works
    ends: ClassVar[tuple[str, ...]] = ()  # how a transaction can end: "commit", "rollback"
    script: ClassVar[str]  # make(**kw), call(client), block(client, seconds) for a fresh interpreter
    is_async: ClassVar[bool]

    def __init__(self, server: Any) -> None:
        self.server = server
        self._clients: list[Any] = []

    # ---- primitives, in the driver's own flavour (those of Any return coroutines in an async harness)

    @abstractmethod
    def make(self, raw: object, *, read_timeout: float | None = None, retries: int = 0) -> Any:
        """A client with bulkhead=raw (None: not passed at all)."""

    @abstractmethod
    def shut(self, client: Any) -> Any:
        """Close it."""

    @abstractmethod
    def do(self, client: Any) -> Any:
        """One quick call; the same value each time."""

    @abstractmethod
    def do_block(self, client: Any, seconds: float) -> Any:
        """One call that the server answers after that time."""

    @abstractmethod
    def do_fail(self, client: Any) -> Any:
        """One call that fails at once and counts; the server is fine otherwise."""

    @abstractmethod
    def do_neutral(self, client: Any) -> Any:
        """One call that raises a driver's error which is an answer: it does not count."""

    @abstractmethod
    def reached(self) -> int:
        """How many calls of `do` have reached the server so far. Plain in both flavours."""

    @abstractmethod
    def default_name(self) -> str:
        """The resource's name where options have none."""

    def do_connection(self, client: Any) -> Any:
        """The identity of the physical connection that a quick call would use."""
        raise NotImplementedError

    def do_time_outs(self, client: Any) -> Any:
        """The driver's time-outs on its live connection, to be compared."""
        raise NotImplementedError

    def do_end_while_open(self, client: Any, open_circuit: Callable[[], object], how: str) -> Any:
        """Begin, run a statement, open_circuit(), see a statement rejected, end by `how` without an error."""
        raise NotImplementedError

    def do_stream(self, client: Any, items: int) -> Any:
        """A generator (of the flavour) of that many rows or chunks."""
        raise NotImplementedError

    def make_with_ready_pool(self, raw: object) -> Any:
        """Options on a client that got a pool already."""
        raise NotImplementedError

    def make_by_url(self, name: str) -> Any:
        """Options named in a URL."""
        raise NotImplementedError

    def address(self) -> str:
        """`sys.argv[1]` of scripts."""
        return str(self.server.address)

    # ---- for the cases

    @abstractmethod
    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a primitive: in a thread with this context, or awaited here."""

    @abstractmethod
    async def call_within(self, block: Callable[[], Any], client: Any) -> Any:
        """A quick call inside `block()`, in `with` or `async with`."""

    @abstractmethod
    async def take_from_stream(self, client: Any, items: int, take: int) -> None:
        """Begin a stream of `items`, take some, and close it early."""

    def name(self) -> str:
        """A resource name that no other test uses."""
        return f"suite-{self.driver}-{next(_numbers)}"

    def options(self, **options: Any) -> dict[str, Any]:
        """`bulkhead=` as a mapping, with a fresh name."""
        return {"name": self.name(), **options}

    async def client(self, raw: object = None, **driver_options: Any) -> Any:
        """A client that is closed at the end of the test."""
        client = await self.run(partial(self.make, raw, **driver_options))
        self._clients.append(client)
        return client

    async def guarded(self, **options: Any) -> tuple[Any, Resource]:
        """A client that has connected once, and its resource. Driver options: read_timeout, retries."""
        driver_options = {name: options.pop(name) for name in ("read_timeout", "retries") if name in options}
        wanted = self.options(**options)
        client = await self.client(wanted, **driver_options)
        await self.call(client)
        return client, self.resource(wanted["name"])

    def resource(self, name: str) -> Resource:
        """The registered resource of this driver with that name."""
        found = bulkhead.find(f"{self.kind}:{name}")
        assert found is not None, f"{self.kind}:{name} is not registered; there are {sorted(bulkhead.resources())}"
        return found

    async def call(self, client: Any) -> Any:
        """One quick call."""
        return await self.run(self.do, client)

    async def fail(self, client: Any) -> BaseException:
        """One call that counts as a failure; its error."""
        with pytest.raises(self.base) as caught:
            await self.run(self.do_fail, client)
        assert bulkhead.rejection(caught.value) is None, f"rejected instead: {caught.value}"
        return caught.value

    async def neutral(self, client: Any) -> BaseException:
        """One call that raises an answer of the server; its error."""
        with pytest.raises(self.base) as caught:
            await self.run(self.do_neutral, client)
        return caught.value

    def blocked(self, client: Any, seconds: float) -> asyncio.Task[Any]:
        """A call that takes `seconds` at the server, begun."""
        return asyncio.get_running_loop().create_task(self._block(client, seconds))

    async def _block(self, client: Any, seconds: float) -> Any:
        return await self.run(self.do_block, client, seconds)

    async def holding(self, client: Any, resource: Resource, seconds: float = 30.0) -> asyncio.Task[Any]:
        """The same, once it holds its ticket."""
        before = self._held(resource)
        task = self.blocked(client, seconds)
        while self._held(resource) == before:
            assert not task.done(), f"ended already: {task}"
            await asyncio.sleep(0.005)
        return task

    @staticmethod
    async def cancelled(calls: list[asyncio.Task[Any]]) -> list[Any]:
        """Cancel these tasks until they end; how they ended."""
        while going := [one for one in calls if not one.done()]:
            for one in going:  # once more if need be: asyncio.wait_for of Python 3.11 can swallow a cancellation
                one.cancel()
            await asyncio.wait(going, timeout=0.1)
        return await asyncio.gather(*calls, return_exceptions=True)

    @staticmethod
    def _held(resource: Resource) -> int:
        """Tickets of the current tenant: a pool may be connecting meanwhile, for nobody."""
        tenant = bulkhead.current_tenant()
        if tenant is None:
            return resource.in_use
        return sum(use.in_use for use in resource.top_tenants(1000) if use.tenant == tenant)

    async def optional(self, primitive: Callable[..., Any], *arguments: Any) -> Any:
        """Call an optional primitive, or skip the test."""
        try:
            return await self.run(primitive, *arguments)
        except NotImplementedError:
            pytest.skip(f"{self.driver} has no {primitive.__name__}")

    async def close(self) -> None:
        """Close every client of the test."""
        while self._clients:
            await self.run(self.shut, self._clients.pop())


class SyncHarness(Harness):
    """Primitives are plain functions; calls run in threads that carry the context."""

    is_async = False

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._threads = ThreadPoolExecutor(THREADS)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, copy_context().run, function, *arguments)

    async def call_within(self, block: Callable[[], Any], client: Any) -> Any:
        def inside() -> Any:
            with block():
                return self.do(client)

        return await self.run(inside)

    async def take_from_stream(self, client: Any, items: int, take: int) -> None:
        def partly() -> None:
            stream = self.do_stream(client, items)
            for _ in range(take):
                next(stream)
            stream.close()

        await self.run(partly)

    async def close(self) -> None:
        await super().close()
        self._threads.shutdown(wait=False, cancel_futures=True)


class AsyncHarness(Harness):
    """Primitives are coroutine functions; calls run in the test's own loop."""

    is_async = True

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        coroutine: Coroutine[Any, Any, Any] = function(*arguments)
        return await coroutine if hasattr(coroutine, "__await__") else coroutine

    async def call_within(self, block: Callable[[], Any], client: Any) -> Any:
        async with block():
            return await self.do(client)

    async def take_from_stream(self, client: Any, items: int, take: int) -> None:
        stream = self.do_stream(client, items)
        for _ in range(take):
            await anext(stream)
        await stream.aclose()


class Seen:
    """Collects events of one identifier: `with Seen(resource) as seen: …; seen.of(events.Busy)`."""

    def __init__(self, identifier: str, *kinds: type[events.Event]) -> None:
        self._identifier, self._kinds = identifier, kinds
        self.all: list[events.Event] = []

    def _note(self, event: events.Event) -> None:
        if event.identifier == self._identifier:
            self.all.append(event)

    def of(self, kind: type[events.Event], scope: str | None = None) -> list[Any]:
        """The events of one class, in order."""
        return [one for one in self.all if isinstance(one, kind) and scope in (None, one.scope)]

    def __enter__(self) -> Self:
        self._subscription = bulkhead.subscribe(self._note, *self._kinds)
        return self

    def __exit__(self, *_: object) -> None:
        self._subscription.cancel()

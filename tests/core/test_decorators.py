"""Guarded functions: every kind, with its own signature, guarded while it runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from stories import Boom, at_rest, circuit, full, hold, resource, work_for

from bulkhead import CircuitOpenError, ConfigurationError, ResourceBusyError
from bulkhead.adapter import guard
from bulkhead.outcomes import DIRECT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

pytestmark = pytest.mark.anyio


def test_a_wrapper_has_the_function_s_own_signature() -> None:
    one = resource()

    @one
    def call(a: int, /, b: int = 2, *c: int, d: int, e: int = 5, **g: int) -> tuple[Any, ...]:
        """Its text."""
        return a, b, c, d, e, g

    assert str(inspect.signature(call)).startswith("(a: 'int', /, b: 'int' = 2, *c: 'int', d: 'int', e: 'int' = 5")
    assert call.__doc__ == "Its text."
    assert call(1, d=4) == (1, 2, (), 4, 5, {})
    assert call(1, 9, 8, d=4, e=6, z=7) == (1, 9, (8,), 4, 6, {"z": 7})
    with pytest.raises(TypeError):
        call(1)  # type: ignore[call-arg]
    at_rest(one)


def test_parameters_may_have_the_names_that_the_wrapper_uses() -> None:
    one = resource(tickets=1)

    @one
    def call(ticket: int, shared: int = 2, *, result: int = 3, resource: int = 4) -> tuple[int, ...]:
        return ticket, shared, result, resource

    assert call(1, result=5) == (1, 2, 5, 4)
    at_rest(one)


def test_a_function_of_which_nothing_is_known_is_guarded_too() -> None:
    one = resource(tickets=1)
    assert one(max)(1, 2) == 2
    assert one(functools.partial(int, base=2))("101") == 5
    at_rest(one)


def test_a_decorated_function_is_called_as_it_takes_it() -> None:
    """What `functools.wraps` shows is the signature of the inner function: this one is called with less."""
    one = resource(tickets=1)

    def with_session(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            return function("session", *arguments, **named)

        return wrapper

    @one
    @with_session
    def call(session: str, item: int, *, size: int = 2) -> tuple[str, int, int]:
        return session, item, size

    assert call(5) == ("session", 5, 2)
    assert call(item=5, size=3) == ("session", 5, 3)
    assert one(functools.partial(with_session(lambda session, item: (session, item)), 7))() == ("session", 7)
    at_rest(one)


def test_a_signature_that_was_written_by_hand_is_not_how_a_function_is_called() -> None:
    one = resource(tickets=1)

    def call(**given: int) -> dict[str, int]:
        return given

    vars(call)["__signature__"] = inspect.Signature(
        [inspect.Parameter("size", inspect.Parameter.KEYWORD_ONLY, default=1)]
    )
    assert one(call)() == {}, "and not {'size': 1}"
    assert str(inspect.signature(one(call))) == "(*, size=1)"
    at_rest(one)


def test_methods_are_guarded_below_staticmethod_and_classmethod() -> None:
    one = resource(tickets=1)

    class Client:
        @one
        def plain(self, x: int) -> int:
            return x + one.in_use

        @staticmethod
        @one
        def static(x: int) -> int:
            return x + one.in_use

        @classmethod
        @one
        def of_class(cls, x: int) -> int:
            return x + one.in_use

    assert (Client().plain(1), Client.static(1), Client.of_class(1)) == (2, 2, 2)
    wrongs: list[Any] = [staticmethod(len), classmethod(lambda cls: cls), Client, 3]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError, match="guards functions"):
            one(wrong)


async def test_coroutine_functions_are_guarded_while_they_run() -> None:
    """Known fault 41: also through partial and callable objects."""
    one = resource(**circuit(100), tickets=1)

    async def call(x: int = 1) -> int:
        assert one.in_use == 1
        if x < 0:
            raise Boom
        return x

    class Callable:
        async def __call__(self, x: int = 1) -> int:
            return await call(x)

    for function in (call, functools.partial(call), Callable(), functools.partial(Callable())):
        guarded = one(function)
        made = guarded(1)
        assert one.in_use == 0, "made, not run"
        assert await made == 1
        with pytest.raises(Boom):
            await guarded(-1)
    assert one.failures.value == 4
    assert inspect.iscoroutinefunction(one(call))
    at_rest(one)


async def test_five_failures_of_a_coroutine_open() -> None:
    """Known fault 41, exactly."""
    one = resource(**circuit(5))

    @one
    async def call() -> None:
        raise Boom

    for _ in range(5):
        with pytest.raises(Boom):
            await call()
    with pytest.raises(CircuitOpenError):
        await call()


async def test_a_plain_function_that_returns_an_awaitable_is_an_error_that_says_what_to_use() -> None:
    """Known fault 41: a lambda, a hidden coroutine function, a future, an object with __await__."""
    one = resource(**circuit(1), tickets=1)

    async def call() -> int:
        return 1

    @functools.wraps(call)
    def hidden() -> Awaitable[int]:
        return call()

    class Promise:
        def __await__(self) -> Iterator[Any]:
            return iter(())

    def promise() -> Promise:
        return Promise()

    def plain() -> Awaitable[int]:
        return call()

    for function in (plain, hidden, asyncio.get_running_loop().create_future, asyncio.gather, promise):
        with pytest.raises(ConfigurationError, match="async def"):
            one(function)()
    assert one.state == "closed", "a wrong set-up is no failure of the resource"
    at_rest(one)


def test_the_tenant_is_that_of_the_moment_of_the_call() -> None:
    one = resource(tenant_tickets=1)

    @one
    def call() -> None:
        assert [use.tenant for use in one.top_tenants()] == ["acme"]

    with work_for("acme"):
        call()


def test_guard_takes_the_resource_from_its_holder() -> None:
    class Client:
        bulkhead: Any = None

        def ask(self, question: str, *, times: int = 1) -> str:
            return question * times

    guarded = guard(Client.ask, DIRECT)
    client = Client()
    assert guarded(client, "a", times=2) == "aa"
    one = client.bulkhead = resource(tickets=1)
    held = hold(one)
    with pytest.raises(ResourceBusyError):
        guarded(client, "a")
    held.end()
    assert guarded(client, "a", times=3) == "aaa"
    at_rest(one)


def test_guard_says_what_it_cannot_wrap() -> None:
    def no_self(x: int) -> int:
        return x

    def own_names(self: object, ticket: int) -> int:
        return ticket

    with pytest.raises(ConfigurationError, match="no parameter 'self'"):
        guard(no_self, DIRECT)
    with pytest.raises(ConfigurationError, match="ticket"):
        guard(own_names, DIRECT)


def test_permit_guards_a_block() -> None:
    """BH-15, RG-01, UP-08."""
    one = resource(**circuit(1), tickets=1)
    with one.permit():
        assert full(one) == "resource"
    with pytest.raises(Boom), one.permit():
        raise Boom
    assert one.state == "open"
    with pytest.raises(CircuitOpenError), one.permit():
        pytest.fail("entered")
    at_rest(one)


async def test_permit_guards_an_async_block() -> None:
    one = resource(**circuit(1), tickets=1)
    async with one.permit():
        assert one.in_use == 1
    with pytest.raises(Boom):
        async with one.permit():
            raise Boom
    assert one.state == "open"
    at_rest(one)


def test_one_permit_is_one_block_at_a_time() -> None:
    one = resource(tickets=5)
    permit = one.permit()
    with permit:
        with pytest.raises(RuntimeError, match="in use"):
            permit.__enter__()
        assert one.in_use == 1
    with permit:
        assert one.in_use == 1
    at_rest(one)

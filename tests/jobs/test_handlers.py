"""`@job`: what it accepts, what it writes down, and what is wrong is said where it is written."""

from __future__ import annotations

import functools
import math
import pickle
import sys
from typing import TYPE_CHECKING, Any

import pytest

import bulkhead
from bulkhead.jobs import BacklogFull, NotTaking, job, named
from bulkhead.jobs.handlers import registry, takers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bulkhead.jobs.handlers import Call


class Kept:
    """A taker that writes down what it is given."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def take(self, call: Call) -> str:
        self.calls.append(call)
        return f"id-{len(self.calls)}"


@pytest.fixture
def kept() -> Iterator[Kept]:
    taker = Kept()
    takers.add(taker)
    yield taker
    takers.remove(taker)


def test_a_job_is_still_the_function_when_it_is_called() -> None:
    @job()
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    assert double(4) == 8
    assert (double.__doc__, double.function.__name__) == ("Twice the number.", "double")
    assert double.__wrapped__(3) == 6


@pytest.mark.anyio
async def test_a_job_that_is_a_coroutine_function_is_awaited_when_it_is_called() -> None:
    @job()
    async def double(number: int) -> int:
        return 2 * number

    assert await double(4) == 8
    assert double.is_async


def test_enqueue_writes_down_name_queue_arguments_and_the_tenant_of_now(kept: Kept) -> None:
    @job("mail", max_attempts=3, name="send-mail")
    def send(to: str, copies: int = 1, **more: Any) -> None: ...

    with bulkhead.tenant("acme"):
        assert send.enqueue("ann", urgent=True) == "id-1"
    assert send.enqueue_in(2, to="bob", copies=2) == "id-2"
    first, second = kept.calls
    assert first == ("send-mail", "mail", "acme", '{"to":"ann","urgent":true}', 3, 0.0)
    assert (second.tenant, second.arguments, second.delay) == (None, '{"to":"bob","copies":2}', 2.0)


def test_arguments_may_have_the_names_of_our_own_options(kept: Kept) -> None:
    @job()
    def move(delay: int, tenant: str, runner: str, self: str) -> None: ...

    move.enqueue_in(1, delay=5, tenant="x", runner="y", self="z")
    assert kept.calls[0].arguments == '{"delay":5,"tenant":"x","runner":"y","self":"z"}'
    assert kept.calls[0].delay == 1.0
    assert kept.calls[0].tenant is None


def test_a_tenant_can_be_given_and_so_can_nobody(kept: Kept) -> None:
    @job()
    def work() -> None: ...

    with bulkhead.tenant("acme"):
        work.options(tenant=7).enqueue()
        work.options(tenant=None).enqueue()
        work.options().enqueue()
    assert [call.tenant for call in kept.calls] == ["7", None, "acme"]
    with pytest.raises(bulkhead.ConfigurationError, match="tenant id"):
        work.options(tenant="")


def test_the_arguments_are_those_of_the_moment_of_enqueuing(kept: Kept) -> None:
    @job()
    def work(items: list[int]) -> None: ...

    items = [1]
    work.enqueue(items)
    items.append(2)
    assert kept.calls[0].arguments == '{"items":[1]}'


NESTED: list[Any] = []
NESTED.append(NESTED)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "'what' is of type object"),
        (b"bytes", "'what' is of type bytes"),
        ({1, 2}, "'what' is of type set"),
        (math.nan, "'what' is nan"),
        ([1, {"a": math.inf}], r"'what\[1\]\[…\]' is inf"),
        ({1: "a"}, "'what' has a key of type int"),
        ([{"a": {None: 1}}], r"'what\[0\]\[…\]' has a key of type NoneType"),
        (NESTED, "'what' is nested more than 100 deep"),
        (pytest, "'what' is of type module"),
    ],
)
def test_an_argument_that_is_no_json_is_an_error_that_names_it(kept: Kept, value: object, says: str) -> None:
    @job(name="named")
    def work(fine: int, what: object) -> None: ...

    with pytest.raises(bulkhead.ConfigurationError, match=f"job 'named': arguments are JSON, and {says}"):
        work.enqueue(1, value)
    assert not kept.calls


@pytest.mark.parametrize(
    "value", [10**5000, [1, -(10**5000)], {"a": 10**5000}], ids=["plain", "in a list", "in a dict"]
)
def test_a_number_with_more_digits_than_python_writes_out_is_an_error_that_says_so(kept: Kept, value: Any) -> None:
    @job(name="long")
    def work(what: object) -> None: ...

    limit = f"{sys.get_int_max_str_digits():,}"
    with pytest.raises(bulkhead.ConfigurationError, match=f"'what.*is a whole number of more than {limit} digits"):
        work.enqueue(value)
    assert not kept.calls


def test_a_value_that_is_no_json_is_not_quoted(kept: Kept) -> None:
    class Secret(str):
        __slots__ = ()

    @job()
    def work(what: object) -> None: ...

    with pytest.raises(bulkhead.ConfigurationError) as caught:
        work.enqueue({"password": b"hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "password" not in str(caught.value)


def test_arguments_that_the_function_does_not_take_are_a_type_error_at_once(kept: Kept) -> None:
    @job(name="two")
    def work(one: int, two: int) -> None: ...

    enqueue: Any = work.enqueue
    for args, kwargs in (((1,), {}), ((1, 2, 3), {}), ((1, 2), {"three": 3})):
        with pytest.raises(TypeError, match="job 'two': "):
            enqueue(*args, **kwargs)
    assert not kept.calls


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, "1", None, True, 1e10])
def test_a_delay_is_a_number_of_seconds(kept: Kept, delay: Any) -> None:
    @job()
    def work() -> None: ...

    with pytest.raises(bulkhead.ConfigurationError, match="the delay must be a number of seconds"):
        work.enqueue_in(delay)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_attempts": 0}, "max_attempts of a job must be a whole number from 1"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 2.0}, "max_attempts"),
        ({"timeout": 0}, "timeout of a job must be a number of seconds above 0"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"queue": ""}, "queue of a job must be a text"),
        ({"queue": 7}, "queue of a job"),
        ({"name": ""}, "name of a job must be a text"),
        ({"name": "a\nb"}, "name of a job must be a text"),
    ],
)
def test_an_option_that_cannot_be_is_an_error_where_it_is_written(options: dict[str, Any], says: str) -> None:
    with pytest.raises(bulkhead.ConfigurationError, match=says):
        job(**options)


def test_the_decorator_needs_its_parentheses() -> None:
    with pytest.raises(bulkhead.ConfigurationError, match=r"write @job\(\) with parentheses"):
        job(test_the_decorator_needs_its_parentheses)  # type: ignore[arg-type]


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_generator, "a generator function does nothing"),
        (_async_generator, "a generator function does nothing"),
        (lambda *items: None, "'items' cannot be named"),
        (lambda item, /: None, "'item' cannot be named"),
        (int, "takes a plain or coroutine function"),
        (7, "takes a plain or coroutine function"),
        (functools.partial(_generator), "a generator function does nothing"),
    ],
)
def test_what_cannot_be_a_job_is_refused(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(bulkhead.ConfigurationError, match=says):
        job()(function)


def test_two_functions_cannot_have_one_name_but_a_module_may_be_reloaded() -> None:
    def make() -> Any:
        @job(name="same")
        def work() -> None: ...

        return work

    first, second = make(), make()
    assert registry.jobs["same"] is second is not first
    with pytest.raises(bulkhead.ConfigurationError, match="two jobs are named 'same'"):

        @job(name="same")
        def other() -> None: ...


class _Called:
    async def __call__(self, number: int) -> None: ...


async def _coroutine(number: int) -> None: ...


@pytest.mark.parametrize("function", [_coroutine, functools.partial(_coroutine, number=1), _Called()])
def test_coroutine_functions_are_known_in_every_disguise(function: Callable[..., Any]) -> None:
    """Known fault 41."""
    assert job(name="disguised")(function).is_async


def test_without_a_runner_enqueue_says_what_to_do() -> None:
    @job()
    def work() -> None: ...

    with pytest.raises(bulkhead.ConfigurationError, match=r"no runner is started.*with bulkhead\.jobs\.Runner"):
        work.enqueue()


def test_with_two_runners_enqueue_wants_to_know_which() -> None:
    @job()
    def work() -> None: ...

    one, two = Kept(), Kept()
    for taker in (one, two):
        takers.add(taker)
    try:
        with pytest.raises(bulkhead.ConfigurationError, match="2 runners are started"):
            work.enqueue()
        work.options(runner=two).enqueue()
        assert (len(one.calls), len(two.calls)) == (0, 1)
    finally:
        for taker in (one, two):
            takers.remove(taker)


def test_a_job_can_be_named_where_its_function_cannot_be_imported(kept: Kept) -> None:
    named("elsewhere", queue="far", max_attempts=2).enqueue(month=7)

    @job("near", max_attempts=9, name="here")
    def work(month: int) -> None: ...

    named("here").enqueue(8)
    assert kept.calls[0] == ("elsewhere", "far", None, '{"month":7}', 2, 0.0)
    assert kept.calls[1] == ("here", "near", None, '{"month":8}', 9, 0.0)
    with pytest.raises(TypeError, match="name its arguments"):
        named("elsewhere").enqueue(7)
    with pytest.raises(bulkhead.ConfigurationError, match="the name of a job"):
        named("")


@pytest.mark.parametrize(
    "error",
    [
        BacklogFull("jobs:mail", "acme", "max_backlog_per_tenant", 10_000),
        BacklogFull("jobs:mail", None, "max_backlog", 5),
        NotTaking("jobs:mail", None, "the runner stops"),
    ],
)
def test_refusals_are_rejections_and_can_be_pickled(error: bulkhead.Rejected) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  our own
    assert isinstance(again, bulkhead.Rejected)
    assert (type(again), again.args, str(again)) == (type(error), error.args, str(error))
    assert again.identifier == "jobs:mail"

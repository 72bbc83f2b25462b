"""Races between threads, and calls that a signal handler or a finalizer makes in the middle of another one.

What a free-threaded interpreter shows within a second, a global lock hides most of the time: two reads of an attribute
that another thread changes in between. Here those threads do nothing else. No caller may ever see anything but a permit
or a rejection, and no cap is exceeded.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from stories import NEVER_OPENS, Boom, Clock, at_rest, fail, hold, resource, succeed, together

from bulkhead import ResourceBusyError
from bulkhead.errors import Rejected
from bulkhead.option_set import Options
from bulkhead.outcomes import DIRECT
from bulkhead.registry import Registry
from bulkhead.tickets.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from bulkhead.adapter import Resource, Session

SECONDS = 0.7


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def again_and_again(*calls: Callable[[int], object], seconds: float = SECONDS) -> None:
    """Each in a thread of its own, over and over; rejections and Boom are answers, anything else is a failure."""
    end = time.monotonic() + seconds

    def repeat(call: Callable[[int], object]) -> None:
        number = 0
        while time.monotonic() < end:
            number += 1
            with suppress(Rejected, Boom):
                call(number)

    assert together(*[lambda call=call: repeat(call) for call in calls]) == [None] * len(calls)


def all_of(one: Resource, tenant: str) -> list[Session]:
    """Every ticket that this tenant can have now."""
    held: list[Session] = []
    with suppress(ResourceBusyError):
        while len(held) < 20:
            held.append(hold(one, tenant))
    return held


def test_a_tenant_that_is_evicted_while_its_call_looks_for_it_keeps_its_limit() -> None:
    """Known fault 16."""
    one = resource(**NEVER_OPENS, tenant_tickets=2, maximum_tenants=1)
    succeed(one, "a")
    begun: list[Session] = []
    caller = threading.Thread(target=lambda: begun.append(hold(one, "a")))
    with one.lock:  # the caller sees its entry, then stops here; meanwhile the entry goes
        caller.start()
        time.sleep(0.05)
        succeed(one, "b")
        succeed(one, "b")
    caller.join(5)
    assert len(begun + all_of(one, "a")) == 2


def test_options_that_change_meanwhile_are_an_answer_or_a_rejection() -> None:
    one = resource(error_threshold=3, error_timeout=0.001, success_threshold=1, tickets=3, tenant_tickets=2)
    one.clock = time.monotonic
    steps: list[dict[str, Any]] = [
        {"tickets": None, "tenant_circuit": True, "call_timeout": None},
        {"tickets": 1, "tenant_circuit": True, "call_timeout": 0.0001},
        {"tickets": 3, "tenant_circuit": False, "call_timeout": None},
    ]

    def call(number: int) -> None:
        tenant = f"t{number % 3}"
        if number % 4:
            succeed(one, tenant)
        else:
            fail(one, tenant)

    def report(number: int) -> None:
        one.report(None if number % 2 else Boom(), DIRECT)
        one.check(DIRECT)
        assert one.in_use >= 0

    again_and_again(call, call, call, report, lambda number: one.update(**steps[number % 3]), lambda _: one.reset())
    at_rest(one)


def test_a_resource_that_goes_and_comes_back_answers_every_call() -> None:
    one, other = (resource(**NEVER_OPENS, tickets=2, identifier="call:x") for _ in range(2))

    def change(number: int) -> None:
        if number % 2:
            one.retire(lambda: other)
        else:
            one.restore()

    def ask(_: int) -> None:
        one.check(DIRECT)
        one.report(None, DIRECT)

    again_and_again(change, ask, *[lambda _: succeed(one)] * 4)
    one.restore()
    at_rest(one)
    at_rest(other)


def test_all_resources_can_be_listed_while_others_are_registered() -> None:
    registry = Registry(Clock())
    options = Options(name="x", tickets=1)
    kept = [registry.get(f"call:{number}", options) for number in range(50)]

    def register(number: int) -> None:
        kept[number % 50] = registry.get(f"call:new{number}", options)
        registry.unregister(f"call:new{number}")

    again_and_again(register, lambda _: registry.everything(), lambda _: registry.refresh())


def test_a_pool_that_is_asked_whether_it_may_go_is_not_full_meanwhile() -> None:
    """Or a call would be refused although its tenant has a ticket left."""
    pool = Pool("a", 2)
    pool.fill(2)
    held = pool.pop()
    wrong: list[bool] = []

    def ask(_: int) -> None:
        wrong.extend(True for _ in range(100) if pool.full())

    again_and_again(lambda _: pool.drain(), ask, ask)
    assert not wrong
    pool.append(held)


def test_a_late_tenant_s_lower_limit_holds_in_the_shared_entry() -> None:
    one = resource(**NEVER_OPENS, tenant_tickets=3, tenant_limits={"small": 1}, maximum_tenants=1)
    first = hold(one, "first")
    held = all_of(one, "small")
    assert len(held) == 1
    others = all_of(one, "other")
    assert len(others) == 2, "what is left of the shared entry"
    for session in (first, *held, *others):
        session.end()
    at_rest(one)


@pytest.mark.parametrize("keeps", [True, False], ids=["holding", "ending"])
@pytest.mark.parametrize("tenant", ["a", "b", "c"])
def test_a_nested_call_at_any_line_of_the_slow_path_gains_nothing(tenant: str, keeps: bool) -> None:  # noqa: FBT001
    """A signal handler or a finalizer may call at any moment, the lock is re-entrant. The main call evicts `a` for `b`.

    A trace function stands for the handler: it can say at which line it calls.
    """
    line, reached = 0, True
    while reached:
        line += 1
        one = resource(**NEVER_OPENS, tenant_tickets=2, maximum_tenants=1)
        succeed(one, "a")
        succeed(one, "a")
        succeed(one, "a")
        with one.lock:
            one.special()  # as the hand does
        held: list[Session] = []

        def nested(one: Resource = one, held: list[Session] = held) -> None:
            held.extend(all_of(one, tenant))
            while not keeps and held:
                held.pop().end()

        reached = called_at_line(line, partial(succeed, one, "b"), nested)
        held += all_of(one, tenant)
        assert len(held) == 2, f"line {line}"
        while held:
            held.pop().end()
        for each in "abc":
            for session in (both := all_of(one, each)):
                session.end()
            assert len(both) == 2, f"{each} after line {line}"
        at_rest(one, collect=False)


def called_at_line(number: int, call: Callable[[], object], nested: Callable[[], object]) -> bool:
    """Make `call`, and `nested` in the middle of it, before the line of ours that it reaches as the `number`th."""
    passed = [0]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if "bulkhead" not in frame.f_code.co_filename:
            return None
        if event == "line":
            passed[0] += 1
            if passed[0] == number:
                nested()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(ResourceBusyError):  # `nested` holds what it needs
            call()
    finally:
        sys.settrace(before)
    return passed[0] >= number

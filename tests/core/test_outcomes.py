"""What a call tells the circuit: which exceptions count, who says so, and what they carry."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from stories import CONNECT, DIRECT, Boom, Clock, Outcome, circuit, fail, hold, refused, resource, succeed

from bulkhead import CircuitOpenError, ConfigurationError, QuotaExceeded, ResourceBusyError
from bulkhead.adapter import Errors, Options, Site

pytestmark = pytest.mark.anyio


class Marked(Boom):
    """A driver error that is none."""


def counts(error: BaseException, **options: Any) -> bool:
    """Whether this error opens a circuit that one failure opens."""
    one = resource(**circuit(1), **options)
    fail(one, error=error)
    return one.state == "open"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit(), asyncio.CancelledError()])
def test_what_says_nothing_about_the_resource_changes_nothing(error: BaseException) -> None:
    """Known fault 27."""
    assert not counts(error)


@pytest.mark.parametrize(
    ("is_failure", "error", "expected"),
    [
        (Boom, Boom(), True),
        (Boom, Marked(), True),
        (Boom, ValueError(), False),
        ((OSError, Boom), ConnectionResetError(), True),
        ((OSError, Boom), ValueError(), False),
        (lambda error: not isinstance(error, Marked), Boom(), True),
        (lambda error: not isinstance(error, Marked), Marked(), False),
        (lambda error: None, Boom(), True),
        (None, ValueError(), True),
    ],
)
def test_is_failure_decides(is_failure: Any, error: Exception, expected: bool) -> None:  # noqa: FBT001
    """CB-25, CB-26: a subclass may say no although its class is listed. IS-06. Known fault 25."""
    assert counts(error, is_failure=is_failure) is expected


def test_is_failure_that_raises_leaves_it_to_the_adapter(caplog: pytest.LogCaptureFixture) -> None:
    def rule(error: Exception) -> bool:
        raise ZeroDivisionError

    with caplog.at_level(logging.WARNING, "bulkhead"):
        assert counts(Boom(), is_failure=rule)
    assert "is_failure raised ZeroDivisionError" in caplog.text


def test_an_adapter_whose_rule_raises_counts_a_failure_and_never_hides_the_error() -> None:
    """Known faults 8 and 31 (of our own and of others): the user's error always wins."""

    def rule(error: Exception, options: Options) -> Outcome:
        raise ZeroDivisionError

    site = Site("broken", "query", DIRECT.errors, rule)
    one = resource(**circuit(1))
    fail(one, site=site)
    assert one.state == "open"


def test_a_group_counts_when_one_of_its_leaves_does() -> None:
    assert counts(ExceptionGroup("two", [ValueError(), Boom()]), is_failure=Boom)
    assert counts(ExceptionGroup("deep", [ExceptionGroup("er", [Boom()])]), is_failure=Boom)
    assert not counts(ExceptionGroup("none", [ValueError(), KeyError()]), is_failure=Boom)
    assert not counts(BaseExceptionGroup("cancelled", [asyncio.CancelledError(), KeyboardInterrupt()]))
    assert counts(BaseExceptionGroup("mixed", [asyncio.CancelledError(), Boom()]))


def test_a_class_of_groups_may_be_named_like_any_other() -> None:
    class Both(ExceptionGroup[Exception]):
        pass

    assert counts(Both("two", [ValueError()]), is_failure=Both)
    assert counts(ExceptionGroup("deep", [Both("two", [ValueError()])]), is_failure=(OSError, Both))
    assert counts(ExceptionGroup("any", [ValueError()]), is_failure=ExceptionGroup)
    assert not counts(ExceptionGroup("other", [ValueError()]), is_failure=Both)
    assert not counts(ValueError(), is_failure=Both)
    assert not counts(
        ExceptionGroup("refused", [ResourceBusyError("call:x", None, "tenant")]), is_failure=ExceptionGroup
    )
    assert not counts(BaseExceptionGroup("ended", [KeyboardInterrupt()]), is_failure=BaseExceptionGroup)


@pytest.mark.parametrize(
    "error",
    [
        CircuitOpenError("call:other", None, 1.0),
        ResourceBusyError("call:other", None, "resource"),
        QuotaExceeded("cell"),
        ConfigurationError("wrong"),
    ],
)
def test_a_refusal_of_another_resource_is_no_failure_of_this_one(error: Exception) -> None:
    """Known faults 21 and 22."""
    assert not counts(error)


def test_neither_is_what_a_framework_made_of_a_refusal() -> None:
    class Wrapper(Exception):
        orig: BaseException | None = None

    refusal = ResourceBusyError("redis:other", None, "resource")
    wrapped = Wrapper("by SQLAlchemy")
    wrapped.orig = refusal
    assert not counts(wrapped)
    translated = Wrapper("by Django")
    translated.__cause__ = refusal
    assert not counts(translated)
    during = Wrapper("the fallback failed by itself")
    during.__context__ = refusal
    assert counts(during)


def test_refusals_do_not_count_and_do_not_prolong() -> None:
    """Known fault 21: 100 calls at the limit are no failures; 100 calls while open do not move the end."""
    clock = Clock()
    one = resource(clock, **circuit(2, 10), tickets=1)
    held = hold(one)
    for _ in range(100):
        refused(ResourceBusyError, one)
    assert one.state == "closed"
    held.fail(Boom())
    fail(one)
    for _ in range(100):
        clock.advance(0.09)
        refused(CircuitOpenError, one)
    clock.advance(1.001)
    succeed(one)
    assert one.state == "closed"


def test_busy_counts_where_it_is_asked_for() -> None:
    one = resource(**circuit(2), tickets=1, circuit_counts_busy=True)
    held = hold(one)
    refused(ResourceBusyError, one)
    refused(ResourceBusyError, one)
    assert one.state == "open"
    held.end()


def test_an_error_that_counted_says_whose_it_was() -> None:
    one = resource(**circuit(5))
    counted, not_counted = Boom("x"), ValueError("y")
    fail(one, error=counted)
    one.update(is_failure=Boom)
    fail(one, error=not_counted)
    assert counted.bulkhead_identifier == "call:story"  # type: ignore[attr-defined]
    assert not hasattr(not_counted, "bulkhead_identifier")


def test_an_error_that_takes_no_attributes_counts_all_the_same() -> None:
    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("__"):
                raise AttributeError(name)

    assert counts(Frozen())


@pytest.mark.parametrize(
    ("options", "lasted", "expected"),
    [
        ({}, 4.9, False),
        ({}, 5.0, True),
        ({"cancel_counts_after": 0.02}, 0.05, True),
        ({"cancel_counts_after": 1}, 0.05, False),
        ({"cancel_counts_after": None}, 1e6, False),
        ({"call_timeout": 2.0}, 2.0, True),
        ({"call_timeout": 2.0}, 1.9, False),
        ({"call_timeout": 2.0, "cancel_counts_after": 1.0}, 1.5, True),
    ],
)
def test_a_cancelled_call_counts_after_a_while(options: dict[str, Any], lasted: float, expected: bool) -> None:  # noqa: FBT001
    """Known fault 27b: a hang that an outer time-out ends is a failure; an impatient caller is not."""
    clock = Clock()
    one = resource(clock, **circuit(1), **options)
    session = hold(one)
    clock.advance(lasted)
    session.fail(asyncio.CancelledError())
    assert (one.state == "open") is expected


def test_half_the_driver_s_own_time_out_is_the_default() -> None:
    clock = Clock()
    one = type(resource())("redis:x", Options(**circuit(1)), clock, 0.5)
    session = hold(one)
    clock.advance(0.3)
    session.fail(asyncio.CancelledError())
    assert one.state == "open"


async def test_wait_for_around_the_guard_opens_it_when_the_resource_hangs() -> None:
    """Known fault 27b, with real cancellations."""
    for after, state in ((0.02, "open"), (1.0, "closed")):
        one = resource(**circuit(3), cancel_counts_after=after)
        one.clock = asyncio.get_running_loop().time

        @one
        async def hang() -> None:
            await asyncio.sleep(60)

        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hang(), 0.05)
        assert one.state == state


async def test_a_time_out_raised_by_the_call_itself_counts_once() -> None:
    """Known fault 27b."""
    one = resource(**circuit(2), call_timeout=5.0)

    @one
    async def call() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await call()
    assert one.failures.value == 1
    assert one.state == "closed"


def test_work_without_a_permit_reports_too() -> None:
    """A pool's own connect, a commit: failures count, a success breaks a run, neither takes a ticket."""
    one = resource(**circuit(2, error_threshold_timeout_enabled=False), tickets=1)
    held = hold(one)
    assert one.report(Boom(), DIRECT) is Outcome.FAILURE
    assert one.report(None, DIRECT) is Outcome.SUCCESS
    assert one.report(Boom(), CONNECT) is Outcome.FAILURE
    assert one.state == "closed"
    assert one.report(KeyboardInterrupt(), DIRECT) is Outcome.IGNORED
    one.report(Boom(), CONNECT)
    assert one.state == "open"
    held.end()


def test_while_half_open_its_success_proves_nothing_and_its_failure_opens() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 2))
    fail(one)
    clock.advance(10)
    succeed(one)
    one.report(None, DIRECT)
    assert one.state == "half_open"
    one.report(Boom(), CONNECT)
    assert one.state == "open"


def test_a_verdict_may_come_before_the_end() -> None:
    """The headers of a response: success now, the tickets later; what fails after that counts besides."""
    for options in ({}, {"call_timeout": 60}, {"error_threshold_timeout_enabled": False}):
        one = resource(**circuit(2), tickets=1, **options)
        session = hold(one)
        session.settle()
        assert one.in_use == 1
        session.end()
        assert one.in_use == 0
        session = hold(one)
        session.settle()
        session.fail(Boom())
        fail(one)
        assert one.state == "open", options
        assert one.in_use == 0


def test_a_probe_may_be_settled_before_its_end() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1), tickets=1)
    fail(one)
    clock.advance(10)
    session = hold(one)
    session.settle()
    assert one.state == "closed"
    assert one.in_use == 1
    session.end()
    assert one.in_use == 0


def test_errors_of_a_driver_are_ours_and_the_driver_s() -> None:
    class DriverError(Exception):
        pass

    class DriverBusy(ResourceBusyError, DriverError):
        pass

    site = Site("driver", "query", Errors(DriverBusy, DIRECT.errors.open, DIRECT.errors.unknown_tenant), DIRECT.outcome)
    one = resource(tickets=1)
    held = hold(one)
    assert isinstance(refused(DriverBusy, one, site=site), DriverError)
    held.end()


class Answer(Exception):
    """A driver's error that says that the server answered."""


def _answers(error: Exception, options: Options) -> Outcome:
    return (
        Outcome.SUCCESS if isinstance(error, Answer) else Outcome.IGNORED if type(error) is OSError else Outcome.FAILURE
    )


ANSWERING = Site("answering", "query", DIRECT.errors, _answers)


@pytest.mark.parametrize(
    ("between", "state"),
    [
        (None, "closed"),
        (Answer(), "closed"),
        (OSError(), "open"),
        (KeyboardInterrupt(), "open"),
        (asyncio.CancelledError(), "open"),
    ],
)
def test_a_success_or_an_answer_breaks_a_run_and_what_says_nothing_does_not(
    between: BaseException | None, state: str
) -> None:
    """Known fault 17, for each kind of outcome that may come between two failures."""
    one = resource(**circuit(2, error_threshold_timeout_enabled=False))
    fail(one, site=ANSWERING)
    if between is None:
        succeed(one, site=ANSWERING)
    else:
        fail(one, error=between, site=ANSWERING)
    fail(one, site=ANSWERING)
    assert one.state == state


@pytest.mark.parametrize(("answer", "state"), [(Answer(), "closed"), (OSError(), "half_open"), (Boom(), "open")])
def test_an_answer_of_a_probe_is_a_success_of_it(answer: Exception, state: str) -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1), tickets=1)
    fail(one, site=ANSWERING)
    clock.advance(10)
    fail(one, error=answer, site=ANSWERING)
    assert one.state == state
    assert one.in_use == 0

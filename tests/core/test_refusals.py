"""What a refusal says, what it keeps alive (nothing), and what it costs in garbage (nothing)."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from stories import DIRECT, Boom, Clock, circuit, fail, full, hold, refused, resource, work_for

from bulkhead import CircuitOpenError, ResourceBusyError, UnknownTenantError, rejection
from bulkhead.adapter import Cause
from bulkhead.tenancy import unknown_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _allow_unknown() -> Iterator[None]:
    yield
    unknown_tenant("allow")


def test_the_text_names_the_resource_and_never_quotes_the_driver() -> None:
    """AD-07: the identifier once, no prefix twice."""
    one = resource(**circuit(1, 10))
    fail(one, error=Boom("password=secret"))
    error = refused(CircuitOpenError, one, "acme")
    assert str(error) == "circuit of 'call:story' is open, next probe in 10 s"
    assert "secret" not in repr(error)
    assert (error.identifier, error.tenant) == ("call:story", "acme")


def test_the_cause_is_a_fresh_copy_that_holds_nothing() -> None:
    class Held:
        pass

    def failing(one: object) -> weakref.ref[Held]:
        held = Held()
        error = Boom("gone", 3)
        error.connection = held  # type: ignore[attr-defined]
        try:
            raise ValueError(held)  # noqa: TRY301  its traceback holds this frame
        except ValueError as inner:
            error.__context__ = inner
        fail(one, error=error)  # type: ignore[arg-type]
        return weakref.ref(held)

    one = resource(**circuit(1, 10))
    held = failing(one)
    gc.collect()
    assert held() is None
    first, second = refused(CircuitOpenError, one), refused(CircuitOpenError, one)
    assert first.__cause__ is not second.__cause__
    for error in (first, second):
        cause = error.__cause__
        assert isinstance(cause, Boom)
        assert cause.args == ("gone", 3)
        assert (cause.__traceback__, cause.__context__, cause.__cause__) == (None, None, None)
        assert cause.connection is None  # type: ignore[attr-defined]


def test_an_error_that_cannot_be_copied_is_summed_up() -> None:
    class Odd(Exception):
        def __init__(self, *, why: str) -> None:
            super().__init__(object())
            self.why = why

        def __str__(self) -> str:
            return self.why

    one = resource(**circuit(1, 10))
    fail(one, error=Odd(why="because"))
    cause = refused(CircuitOpenError, one).__cause__
    assert "Odd: because" in str(cause)


def test_an_error_whose_text_raises_reaches_the_caller_unharmed() -> None:
    """Known fault 31."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    one = resource(**circuit(1, 10))
    fail(one, error=Broken())
    assert "Broken" in str(refused(CircuitOpenError, one).__cause__)


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError(111, "refused"), KeyError("k"), UnicodeDecodeError("utf-8", b"x", 0, 1, "reason")],
)
def test_copies_of_built_in_errors_are_like_them(error: BaseException) -> None:
    twin = Cause(error).fresh()
    assert type(twin) is type(error)
    assert str(twin) == str(error)


def test_an_error_with_more_than_its_arguments_says_is_summed_up() -> None:
    assert str(Cause(OSError(5, "io", "file")).fresh()) == "OSError: [Errno 5] io: 'file'"


@pytest.mark.parametrize(
    "error",
    [
        CircuitOpenError("redis:x", "a", 1.5),
        CircuitOpenError("redis:x", None, None),
        ResourceBusyError("redis:x", "a", "tenant"),
        UnknownTenantError("redis:x", None),
    ],
)
def test_refusals_can_be_copied_and_pickled(error: Exception) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert type(twin) is type(error)
        assert twin.args == error.args
        assert str(twin) == str(error)
    assert rejection(error) is error


def test_neither_refusal_leaves_garbage() -> None:
    """A cycle of a frame and the error it raised costs as much as the refusal again."""
    opened = resource(**circuit(1, 1000))
    fail(opened)
    busy = resource(tickets=1, tenant_tickets=1)
    held = hold(busy, "a")

    @opened
    def refused_open() -> None: ...

    @busy
    def refused_busy() -> None: ...

    def calls() -> None:
        with work_for("a"):
            for call, kind in ((refused_open, CircuitOpenError), (refused_busy, ResourceBusyError)):
                for _ in range(100):
                    try:
                        call()
                    except kind:
                        pass

    calls()
    gc.collect()
    gc.disable()
    try:
        calls()
        assert gc.collect() == 0
    finally:
        gc.enable()
    held.end()


def test_a_failure_leaves_no_garbage() -> None:
    one = resource(**circuit(1_000_000, 10), tickets=2, tenant_tickets=2)

    @one
    def call() -> None:
        raise Boom

    def calls() -> None:
        with work_for("a"):
            for _ in range(100):
                try:
                    call()
                except Boom:
                    pass

    calls()
    gc.collect()
    gc.disable()
    try:
        calls()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_traceback_that_is_kept_pins_no_ticket() -> None:
    one = resource(**circuit(5, 10), tickets=1, tenant_tickets=1)

    @one
    def call() -> None:
        raise Boom

    with work_for("a"), pytest.raises(Boom) as kept:
        call()
    held = hold(one, "a")
    assert full(one, "a") == "tenant"
    held.end()
    assert kept.traceback


def test_without_a_tenant_only_the_limits_of_the_resource_apply() -> None:
    """Known fault 61: a context that was lost lands on "no tenant", which has a policy."""
    one = resource(tickets=3, tenant_tickets=1)
    held = [hold(one) for _ in range(3)]
    assert full(one) == "resource"
    for session in held:
        session.end()


def test_calls_without_a_tenant_may_share_one_limit() -> None:
    one = resource(tickets=3, tenant_tickets=1)
    unknown_tenant("share")
    one.configure()
    held = hold(one)
    assert full(one) == "tenant"
    unknown_tenant("allow")
    one.configure()
    others = [hold(one), hold(one)]
    assert full(one) == "resource"
    for session in [held, *others]:
        session.end()


def test_calls_without_a_tenant_may_be_refused() -> None:
    each: tuple[dict[str, Any], ...] = ({"tickets": 3}, {"tenant_tickets": 3}, {})
    for options in each:
        one = resource(**options)
        unknown_tenant("reject")
        one.configure()
        error = refused(UnknownTenantError, one)
        assert error.tenant is None
        assert "outside any tenant" in str(error)
        hold(one, "a").end()
        hold(one, "a").end()
        refused(UnknownTenantError, one)
        unknown_tenant("allow")


def test_a_call_without_a_tenant_is_no_sign_that_the_resource_is_busy() -> None:
    one = resource(**circuit(1, 10), tickets=1, circuit_counts_busy=True)
    unknown_tenant("reject")
    one.configure()
    refused(UnknownTenantError, one)
    assert one.state == "closed"


def test_an_open_circuit_refuses_before_anything_else_is_asked() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10), tickets=1)
    held = hold(one)
    one.report(Boom(), DIRECT)
    refused(CircuitOpenError, one)
    held.end()

"""Events: what is told, when, to whom, and what it may not do to the call."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import pytest
from stories import (
    CONNECT,
    DIRECT,
    Boom,
    Clock,
    at_rest,
    circuit,
    fail,
    hold,
    refused,
    succeed,
    together,
)
from stories import resource as unregistered

from bulkhead import CircuitOpenError, ConfigurationError, ResourceBusyError, events, subscribe
from bulkhead.events import (
    Busy,
    CircuitOpen,
    Failure,
    Ignored,
    StateChange,
    Success,
    anybody,
)
from bulkhead.registry import registry


def resource(clock: Clock | None = None, **options: Any) -> Any:
    """As elsewhere, and told of subscribers as a registered one is."""
    one = unregistered(clock, **options)
    registry.alive["call:test-events"] = one
    return one


def kinds(seen: list[Any]) -> list[str]:
    return [type(event).__name__ for event in seen]


def test_nested_and_refused_calls_are_told_in_order() -> None:
    """IS-01, IS-02, IS-03, IS-04."""
    one = resource(**circuit(1), tickets=1)
    seen: list[Any] = []
    with subscribe(seen.append):
        held = hold(one)
        refused(ResourceBusyError, one)
        held.end()
        fail(one)
        refused(CircuitOpenError, one)
    assert kinds(seen) == ["Busy", "Success", "StateChange", "Failure", "CircuitOpen"]
    assert seen[0].limit == "resource"
    assert seen[-1].retry_after == pytest.approx(10)


def test_events_say_who_where_and_how_long() -> None:
    """IS-05, IS-07, IS-08."""
    clock = Clock()
    one = resource(clock, **circuit(1), tickets=1)
    seen: list[Any] = []
    with subscribe(seen.append):
        session = hold(one, "acme", CONNECT)
        clock.advance(2)
        session.end()
        fail(one, "acme", site=CONNECT)
        refused(CircuitOpenError, one, "acme")
    assert kinds(seen) == ["Success", "StateChange", "Failure", "CircuitOpen"]
    assert {event.identifier for event in seen} == {"call:story"}
    assert seen[0] == Success("call:story", "acme", "call", "connection", 0.0, 2.0)
    assert (seen[1].driver, seen[1].scope) == ("call", "connection")
    assert isinstance(seen[2].error, Boom)
    assert (seen[3].tenant, seen[3].scope) == ("acme", "query")


def test_what_fails_without_a_permit_is_told_too() -> None:
    """A commit, a pool's own connect: they count, so whoever counts events comes to the same number."""
    one = resource(**circuit(1))
    seen: list[Any] = []
    with subscribe(seen.append):
        one.report(Boom(), CONNECT)
        one.report(KeyboardInterrupt(), DIRECT)
        one.report(None, DIRECT)
    assert kinds(seen) == ["StateChange", "Failure", "Ignored"]
    assert seen[1][:-1] == (one.identifier, None, CONNECT.driver, "connection", 0.0, 0.0)
    assert type(seen[1].error) is Boom


def test_success_is_told_of_an_error_that_is_none() -> None:
    """IS-06."""
    one = resource(**circuit(1), is_failure=Boom)
    seen: list[Any] = []
    with subscribe(seen.append):
        fail(one, error=ValueError())
        fail(one, error=KeyboardInterrupt())
    assert kinds(seen) == ["Success", "Ignored"]


def test_the_user_s_rule_is_asked_once_for_each_failure() -> None:
    asked: list[Exception] = []

    def rule(error: Exception) -> bool:
        asked.append(error)
        return True

    one = resource(**circuit(100), is_failure=rule)
    with subscribe(lambda event: None):
        fail(one)
    assert len(asked) == 1


def test_a_call_that_lasted_too_long_is_told_as_the_failure_that_it_is() -> None:
    clock = Clock()
    one = resource(clock, **circuit(5), call_timeout=1.0)
    seen: list[Any] = []
    with subscribe(seen.append):
        session = hold(one)
        clock.advance(2)
        session.end()
    assert kinds(seen) == ["Failure"]
    assert one.failures.value == 1


def test_the_wait_is_told() -> None:
    one = resource(tickets=1, timeout=5.0)
    seen: list[Any] = []
    held = hold(one)
    with subscribe(seen.append, Success):
        waiter = threading.Thread(target=succeed, args=(one,))
        waiter.start()
        while not one.queue.lines:
            pass
        held.end()
        waiter.join(5)
    assert [event.wait > 0 for event in seen] == [True]
    at_rest(one)


def test_state_changes_are_told_after_they_happened() -> None:
    """CB-27: nothing at construction, nothing on success, each transition once."""
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1))
    seen: list[Any] = []
    with subscribe(lambda event: seen.append((event.new, one.state)), StateChange):  # type: ignore[union-attr]
        succeed(one)
        fail(one)
        clock.advance(10)
        succeed(one)
    assert seen == [("open", "open"), ("half_open", "half_open"), ("closed", "closed")]


def test_only_the_kinds_that_were_asked_for_are_told() -> None:
    """AD-10: subscribed by name, all facts delivered, cancelled by its handle."""
    one = resource(**circuit(1), tickets=1)
    seen: list[Any] = []
    handle = subscribe(seen.append, CircuitOpen, Busy)
    succeed(one)
    fail(one)
    refused(CircuitOpenError, one)
    handle.cancel()
    handle.cancel()
    refused(CircuitOpenError, one)
    assert kinds(seen) == ["CircuitOpen"]
    assert not anybody()


def test_without_a_subscriber_calls_are_fast_again() -> None:
    one = resource(tickets=1)
    with subscribe(lambda event: None):
        succeed(one)
        succeed(one)
        assert not one.fast
    succeed(one)
    assert one.fast


def test_subscribers_of_refusals_only_leave_calls_fast() -> None:
    one = resource(tickets=1)
    with subscribe(lambda event: None, Busy):
        succeed(one)
        succeed(one)
        assert one.fast


def test_a_subscriber_that_raises_is_logged_and_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Known fault 14."""
    one = resource(**circuit(1), tickets=1)

    def broken(event: object) -> None:
        raise ZeroDivisionError

    seen: list[Any] = []
    with subscribe(broken), subscribe(seen.append), caplog.at_level(logging.ERROR, "bulkhead"):
        fail(one)
        error = refused(CircuitOpenError, one)
    assert isinstance(error.__cause__, Boom)
    assert kinds(seen) == ["StateChange", "Failure", "CircuitOpen"]
    assert "a subscriber of StateChange raised" in caplog.text
    at_rest(one)


def test_a_subscriber_may_call_the_resource() -> None:
    """Known fault 14: no lock is held; what it sees is the state after the change."""
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1), tickets=5)
    seen: list[str] = []

    def call_back(event: object) -> None:
        if len(seen) < 20:
            seen.append(type(event).__name__)
            try:
                together(lambda: succeed(one))
                succeed(one)
            except CircuitOpenError:
                seen.append("refused")

    with subscribe(call_back, StateChange, Success):
        fail(one)
        assert seen[:2] == ["StateChange", "refused"]
        clock.advance(10)
        succeed(one)
    assert one.state == "closed"
    at_rest(one)


def test_a_subscriber_is_not_told_of_its_own_calls(caplog: pytest.LogCaptureFixture) -> None:
    """Known fault 14: a subscriber that writes to a protected client would be told of that, and so on."""
    one = resource(**circuit(), tickets=1)
    told: list[str] = []

    def writes(event: object) -> None:
        told.append(type(event).__name__)
        with contextlib.suppress(ResourceBusyError, Boom):
            succeed(one)
        with contextlib.suppress(ResourceBusyError, Boom):
            fail(one)

    with subscribe(writes, Success, Failure, Busy), subscribe(writes, Busy):
        succeed(one)
        assert told == ["Success"]
        held = hold(one)
        with pytest.raises(ResourceBusyError):
            one.begin(DIRECT)
        assert told.count("Busy") < 10, "each may be told of the calls of the other, which ends"
        told.clear()
        together(held.end)
        assert told == ["Success"]
    assert "raised" not in caplog.text
    at_rest(one)


def test_a_subscriber_is_told_of_a_circuit_that_its_own_call_opened() -> None:
    one = resource(**circuit(2))
    told: list[str] = []

    def probes(event: object) -> None:
        told.append(type(event).__name__)
        if not isinstance(event, StateChange):
            fail(one)

    with subscribe(probes, Failure, StateChange):
        fail(one)
        assert told == ["Failure", "StateChange"]
    assert one.state == "open"


def test_a_subscriber_that_was_cut_short_is_told_of_the_next_call() -> None:
    one = resource()
    told: list[object] = []

    def cut_short(event: object) -> None:
        told.append(event)
        raise KeyboardInterrupt

    with subscribe(cut_short, Success):
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                succeed(one)
    assert len(told) == 2
    at_rest(one)


def test_subscriptions_may_change_while_events_are_told() -> None:
    """AD-10, concurrently."""
    one = resource(tickets=50)
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            succeed(one)

    def change() -> None:
        for _ in range(100):
            with subscribe(lambda event: None, Success), subscribe(lambda event: None):
                pass
        stop.set()

    assert together(call, call, change) == [None] * 3
    at_rest(one)
    assert not anybody()


def test_what_is_no_subscriber_or_no_event_is_said_at_once() -> None:
    with pytest.raises(ConfigurationError, match="takes a function"):
        subscribe("nothing")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no event class"):
        subscribe(print, int)  # type: ignore[arg-type]


def test_a_waiter_that_was_passed_by_is_no_call() -> None:
    """A permit granted to somebody who is gone is not told as an ended call."""
    one = resource(tickets=1, timeout=5.0)
    seen: list[Any] = []
    with subscribe(seen.append, Success, Failure, Ignored):
        permit = one.attempt(None, DIRECT)
        one.pass_on(permit)
    assert seen == []
    at_rest(one)


def test_what_begins_with_the_next_call_begins_before_it_is_admitted_and_once() -> None:
    one = resource(tickets=1)
    for _ in range(2):
        succeed(one)
    assert one.fast
    seen: list[int] = []
    events.at_next_call(lambda: seen.append(one.in_use))
    assert anybody()
    for _ in range(3):
        succeed(one)
    assert seen == [0]
    assert one.fast
    assert not anybody()


def test_a_refusal_is_a_call_too() -> None:
    """Also one that is answered before anything else is asked, and one of a limit that is no resource."""
    one = resource(**circuit(1, 600), tickets=1)
    fail(one)
    seen: list[str] = []
    events.at_next_call(lambda: seen.append("open"))
    refused(CircuitOpenError, one)
    one.close()
    held = hold(one)
    events.at_next_call(lambda: seen.append("busy"))
    refused(ResourceBusyError, one)
    held.end()
    events.at_next_call(lambda: seen.append("elsewhere"))
    events.tell(events.LruGc(None, None, "", "", 0, 0, 0, 0.0))
    assert seen == ["open", "busy"]
    events.tell(Busy("server:connections", None, "sqlalchemy", "query", "connections"))
    assert seen == ["open", "busy", "elsewhere"]


def test_what_cannot_begin_is_logged_and_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    one = resource(tickets=1)
    events.at_next_call(lambda: 1 // 0)
    with caplog.at_level(logging.ERROR, "bulkhead"):
        succeed(one)
        succeed(one)
    assert caplog.text.count("could not begin") == 1
    at_rest(one)

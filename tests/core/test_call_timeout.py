"""call_timeout: calls that hang are found at the next admission, and every late call counts exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stories import CONNECT, DIRECT, Boom, Clock, at_rest, circuit, fail, hold, refused, resource, succeed, work_for

from bulkhead import CircuitOpenError

pytestmark = pytest.mark.anyio


def test_calls_that_hang_open_the_circuit_at_the_next_admission() -> None:
    """None of them ends: it is the next caller who asks, and is refused."""
    clock = Clock()
    one = resource(clock, **circuit(3, 10), tickets=10, call_timeout=2.0)
    held = [hold(one, "a") for _ in range(3)]
    clock.advance(1.9)
    succeed(one)
    clock.advance(0.2)
    error = refused(CircuitOpenError, one)
    assert "TimeoutError" in type(error.__cause__).__name__
    assert one.failures.value == 3
    for session in held:
        session.end()
    assert one.failures.value == 3, "once, and not again when it ends"
    at_rest(one)


def test_a_call_that_lasts_exactly_call_timeout_is_looked_at_once() -> None:
    """In floating point, (began + limit) - began may be below limit: the next caller must not look for ever."""
    began = next(now for now in range(100, 1000) if (now + 0.1) - now < 0.1)
    clock = Clock(began)
    one = resource(clock, **circuit(2, 10), tickets=2, call_timeout=0.1)
    held = hold(one)
    clock.advance(0.1)
    hold(one).end()
    held.end()
    assert one.failures.value == 1
    at_rest(one)


@pytest.mark.parametrize("tickets", [None, 2])
def test_it_works_when_every_ticket_hangs_and_without_tickets(tickets: int | None) -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 10), tickets=tickets, call_timeout=2.0)
    held = [hold(one), hold(one)]
    clock.advance(3)
    refused(CircuitOpenError, one)
    for session in held:
        session.fail(Boom())
    assert one.failures.value == 2
    at_rest(one)


def test_a_call_that_ends_late_counts_once() -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 10), call_timeout=2.0)
    for _ in range(2):
        session = hold(one)
        clock.advance(2.5)
        session.end()
    assert one.failures.value == 2
    assert one.state == "open"


def test_a_call_that_ends_in_time_is_a_success() -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 10, error_threshold_timeout_enabled=False), call_timeout=2.0)
    fail(one)
    session = hold(one)
    clock.advance(2.0)
    session.end()
    fail(one)
    assert one.state == "closed", "a success broke the run"


def test_each_hung_call_counts_once_however_often_it_is_asked() -> None:
    clock = Clock()
    one = resource(clock, **circuit(10, 100), call_timeout=2.0)
    held = [hold(one) for _ in range(3)]
    for _ in range(20):
        clock.advance(1)
        succeed(one)
    assert one.failures.value == 3
    for session in held:
        session.end()
    assert one.failures.value == 3


def test_a_hung_connect_is_found_too() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10), call_timeout=2.0)
    held = hold(one, site=CONNECT)
    clock.advance(3)
    refused(CircuitOpenError, one)
    assert one.failures.value == 1
    held.fail(Boom())
    assert one.failures.value == 1
    at_rest(one)


def test_a_hung_probe_opens_again_after_call_timeout() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10), call_timeout=2.0)
    fail(one)
    clock.advance(10)
    held = hold(one)
    clock.advance(2)
    assert refused(CircuitOpenError, one).retry_after == pytest.approx(10)
    assert one.state == "open"
    held.end()
    assert one.state == "open"
    at_rest(one)


def test_the_tenant_of_a_hung_call_is_known() -> None:
    clock = Clock()
    one = resource(clock, **circuit(2, 10, error_tenants=2), call_timeout=2.0)
    succeed(one, "healthy")
    held = [hold(one, "a"), hold(one, "a")]
    clock.advance(3)
    succeed(one, "healthy")
    assert one.state == "closed", "only one tenant hangs"
    held.append(hold(one, "b"))
    clock.advance(3)
    refused(CircuitOpenError, one, "healthy")


def test_a_shorter_call_timeout_holds_for_calls_that_began_before() -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10), call_timeout=100.0)
    held = hold(one)
    clock.advance(5)
    one.update(call_timeout=1.0)
    refused(CircuitOpenError, one)
    held.end()


def test_lost_hung_calls_leave_nothing_behind() -> None:
    clock = Clock()
    one = resource(clock, **circuit(5, 10), tickets=2, call_timeout=1.0)
    for _ in range(5):
        hold(one)
    clock.advance(5)
    succeed(one)
    at_rest(one)
    assert not one.failures.value


async def test_a_coroutine_is_ended_and_counts_once() -> None:
    one = resource(**circuit(5, 10), call_timeout=0.05, tickets=1)
    one.clock = asyncio.get_running_loop().time

    @one
    async def hang() -> None:
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await hang()
    with pytest.raises(TimeoutError):
        async with one.permit():
            await asyncio.sleep(60)
    assert one.failures.value == 2
    at_rest(one)


async def test_an_outer_cancellation_stays_one() -> None:
    one = resource(**circuit(1, 10), call_timeout=60.0, tickets=1)

    @one
    async def hang() -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(hang())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert one.state == "closed"
    at_rest(one)


@pytest.mark.parametrize(
    ("options", "closed", "probe"),
    [
        ({}, None, None),
        ({"half_open_resource_timeout": 0.1}, None, 0.1),
        ({"call_timeout": 5.0}, 5.0, 5.0),
        ({"call_timeout": 5.0, "half_open_resource_timeout": 0.1}, 5.0, 0.1),
        ({"call_timeout": 0.05, "half_open_resource_timeout": 0.1}, 0.05, 0.05),
    ],
)
def test_a_probe_may_run_with_a_shorter_time_out(
    options: dict[str, Any], closed: float | None, probe: float | None
) -> None:
    """CB-22, CB-23, CB-24. Known fault 9."""
    clock = Clock()
    one = resource(clock, **circuit(1, 10), **options)
    assert one.limits_time == bool(options)
    with work_for(None):
        permit = one.begin(DIRECT)
        assert one.time_limit(permit[0]) == closed
        permit[4](permit[0], permit[2], Boom(), DIRECT, None)
        clock.advance(10)
        permit = one.begin(DIRECT)
        assert one.time_limit(permit[0]) == probe


@pytest.mark.parametrize("mode", ["shadow", "off"])
async def test_a_mode_that_does_not_enforce_ends_no_call(mode: str) -> None:
    one = resource(**circuit(5, 10), call_timeout=0.01, mode=mode)
    assert not one.limits_time

    @one
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "done"

    assert await slow() == "done"
    one.update(mode="enforce")
    with pytest.raises(TimeoutError):
        await slow()

"""Shared cases: what opens a circuit, probes, time limits, servers that hang and die."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from drivers.harness import Seen
from polling import auntil, auntil_due
from stories import hold

import bulkhead
from bulkhead import events

if TYPE_CHECKING:
    from drivers.harness import Harness

QUICK: dict[str, Any] = {
    "error_threshold": 3,
    "error_threshold_timeout": 10,
    "error_timeout": 1.0,  # a probe may take as long, and so may what is to be refused meanwhile
    "success_threshold": 2,
}
SHORT = {
    **QUICK,
    "error_timeout": 0.4,
    "success_threshold": 1,
}  # where nothing is refused, and probes have a limit of their own


class CircuitCases:
    """Run through `DriverSuite`."""

    async def test_failures_open_it_and_probes_close_it(self, harness: Harness) -> None:
        """RC-06, RC-25, RD-05, RD-29: opens by errors, recovers."""
        client, resource = await harness.guarded(tickets=4, **QUICK)
        for _ in range(3):
            await harness.fail(client)
        assert resource.state == "open"
        before = harness.reached()
        with pytest.raises(harness.errors.open) as caught:
            await harness.call(client)
        assert harness.reached() == before
        assert 0 < (caught.value.retry_after or 0) <= QUICK["error_timeout"]
        assert isinstance(caught.value.__cause__, BaseException)
        await auntil_due(resource)
        await harness.call(client)
        assert resource.state == "half_open"
        await harness.call(client)
        assert resource.state == "closed"

    async def test_a_failed_probe_opens_it_again(self, harness: Harness) -> None:
        client, resource = await harness.guarded(**QUICK)
        for _ in range(3):
            await harness.fail(client)
        await auntil_due(resource)
        await harness.fail(client)
        assert resource.state == "open"
        with pytest.raises(harness.errors.open):
            await harness.call(client)

    async def test_no_more_than_the_allowed_probes_run_at_once(self, harness: Harness) -> None:
        """Known fault 3."""
        client, resource = await harness.guarded(half_open_max_probes=2, half_open_resource_timeout=5.0, **QUICK)
        await asyncio.gather(*(harness.call(client) for _ in range(4)))  # connections to spare
        for _ in range(3):
            await harness.fail(client)
        await asyncio.gather(*(harness.call(client) for _ in range(4)), return_exceptions=True)
        await auntil_due(resource)
        probes = [harness.blocked(client, 0.8) for _ in range(8)]
        done = await asyncio.gather(*probes, return_exceptions=True)
        refused = [one for one in done if isinstance(one, harness.errors.open)]
        assert len(refused) == 6, done
        assert resource.state == "closed"

    async def test_a_failure_is_tagged_and_an_answer_is_not(self, harness: Harness) -> None:
        """RC-14, RC-16, RD-14, RD-15."""
        client, resource = await harness.guarded(error_threshold=20, error_timeout=5, success_threshold=1)
        error = await harness.fail(client)
        assert getattr(error, "bulkhead_identifier", None) == resource.identifier
        answer = await harness.neutral(client)
        assert not hasattr(answer, "bulkhead_identifier")

    async def test_answers_and_rejections_do_not_open_it(self, harness: Harness) -> None:
        """RC-08, RD-07, known faults 21, 28."""
        client, resource = await harness.guarded(tickets=1, **QUICK)
        for _ in range(6):
            await harness.neutral(client)
        holder = hold(resource)
        for _ in range(6):
            with pytest.raises(harness.errors.busy):
                await harness.call(client)
        holder.end()
        assert resource.state == "closed"

    async def test_busy_opens_it_only_on_request(self, harness: Harness) -> None:
        """RC-25, RD-22, RD-29 with circuit_counts_busy; without it see the table of deviations."""
        client, resource = await harness.guarded(tickets=1, circuit_counts_busy=True, **QUICK)
        holder = hold(resource)
        for _ in range(3):
            with pytest.raises(harness.errors.busy):
                await harness.call(client)
        with pytest.raises(harness.errors.open):
            await harness.call(client)
        holder.end()
        await auntil_due(resource)
        await harness.call(client)

    async def test_transactions_can_be_ended_while_it_is_open(self, harness: Harness) -> None:
        """Known fault 75. And the connection is clean afterwards."""
        if not harness.ends:
            pytest.skip(f"{harness.driver} has no transactions")
        client, resource = await harness.guarded(tickets=4)
        for how in harness.ends:
            await harness.run(harness.do_end_while_open, client, resource.open, how)
            resource.close()
            await harness.call(client)
            assert resource.in_use == 0

    async def test_a_probe_has_its_own_time_limit_and_the_old_one_comes_back(self, harness: Harness) -> None:
        """RC-20, RC-22, RD-24, RD-26, known fault 9."""
        if not harness.ends_late_calls:
            pytest.skip(f"{harness.driver} cannot end a late call")
        client, resource = await harness.guarded(half_open_resource_timeout=0.6, **SHORT)
        before = await harness.optional(harness.do_time_outs, client)
        for _ in range(3):
            await harness.fail(client)
        await auntil_due(resource)
        began = time.monotonic()
        with pytest.raises(harness.base) as caught:
            await harness.blocked(client, 9)
        assert bulkhead.rejection(caught.value) is None
        assert time.monotonic() - began < 4
        assert resource.state == "open"
        await auntil_due(resource)
        await harness.call(client)
        assert resource.state == "closed"
        assert await harness.run(harness.do_time_outs, client) == before
        await harness.blocked(client, 0.8)  # longer than a probe may last

    async def test_a_call_that_outlives_call_timeout_is_ended_and_counts(self, harness: Harness) -> None:
        if not harness.ends_late_calls:
            pytest.skip(f"{harness.driver} cannot end a late call")
        client, resource = await harness.guarded(call_timeout=0.4, **QUICK)
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(harness.base) as caught:
                await harness.blocked(client, 9)
            assert bulkhead.rejection(caught.value) is None
            assert time.monotonic() - began < 4
        assert resource.state == "open"
        assert resource.in_use == 0

    @pytest.mark.parametrize("limit", ["cancel_counts_after", "half the driver's time-out"])
    async def test_a_cancelled_call_counts_when_it_lasted(self, harness: Harness, limit: str) -> None:
        """Known fault 27b: a hang that an outer time-out ends is a failure, an impatient caller is none."""
        if not harness.is_async:
            pytest.skip("threads cannot be cancelled")
        half = limit != "cancel_counts_after"
        if half and not harness.time_outs:
            pytest.skip(f"{harness.driver} has no read time-out")
        after: dict[str, Any] = {"read_timeout": 6.0} if half else {"cancel_counts_after": 1.5}
        client, resource = await harness.guarded(tickets=4, **after, **QUICK)
        for seconds, state in ((0.0, "closed"), (3.3 if half else 1.7, "open")):
            calls = [harness.blocked(client, 20) for _ in range(3)]
            while resource.in_use < 3:
                assert not any(one.done() for one in calls), calls
                await asyncio.sleep(0.005)
            await asyncio.sleep(seconds)
            done = await harness.cancelled(calls)
            assert [type(one) for one in done] == [asyncio.CancelledError] * 3
            assert resource.state == state
            assert resource.in_use == 0

    @pytest.mark.resilience
    async def test_a_server_that_hangs_opens_it_and_is_left_in_peace(self, harness: Harness) -> None:
        """RC-06, RD-05. SIGSTOP: connections are accepted, nothing is answered."""
        limit = {"read_timeout": 0.4} if harness.time_outs else {"call_timeout": 0.4}
        client, resource = await harness.guarded(tickets=4, **limit, **{**QUICK, "error_timeout": 1.6})
        with harness.server.paused():
            began = time.monotonic()
            for _ in range(3):
                with pytest.raises(harness.base):
                    await harness.call(client)
            assert time.monotonic() - began < 5
            assert resource.state == "open"
            began = time.monotonic()
            for _ in range(20):
                with pytest.raises(harness.errors.open):
                    await harness.call(client)
            assert time.monotonic() - began < 1.6, "20 that wait for the server would need 8 s"
        await auntil_due(resource)
        await harness.call(client)
        await harness.call(client)
        assert resource.state == "closed"
        assert resource.in_use == 0

    @pytest.mark.resilience
    async def test_a_server_that_dies_opens_it_and_its_return_closes_it(self, harness: Harness) -> None:
        client, resource = await harness.guarded(tickets=4, **QUICK)
        harness.server.kill()
        for _ in range(3):
            with pytest.raises(harness.base):
                await harness.call(client)
        assert resource.state == "open"
        harness.server.restart()

        async def is_closed() -> bool:
            with contextlib.suppress(harness.base):
                await harness.call(client)
            return resource.state == "closed"

        with Seen(resource.identifier, events.StateChange) as seen:
            await auntil(is_closed)
        assert [one.new for one in seen.of(events.StateChange)][-1] == "closed"

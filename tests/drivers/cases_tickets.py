"""Shared cases: tickets, rejections, and that everything comes back."""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
from typing import TYPE_CHECKING

import pytest
from counts import CANCELLATIONS
from drivers.harness import Seen
from stories import hold

import bulkhead
from bulkhead import events

if TYPE_CHECKING:
    from drivers.harness import Harness


class TicketCases:
    """Run through `DriverSuite`."""

    async def test_a_call_without_a_ticket_never_reaches_the_server(self, harness: Harness) -> None:
        """RC-23, RC-24, RD-27, RD-28: a slow call elsewhere holds the ticket."""
        client, resource = await harness.guarded(tickets=1)
        holder = await harness.holding(client, resource, 1.0)
        before = harness.reached()
        for _ in range(3):
            with pytest.raises(harness.errors.busy) as caught:
                await harness.call(client)
            assert caught.value.limit == "resource"
        assert harness.reached() == before
        await holder
        await harness.call(client)
        assert harness.reached() == before + 1

    async def test_a_call_through_an_open_circuit_never_reaches_the_server(self, harness: Harness) -> None:
        client, resource = await harness.guarded(tickets=4)
        before = harness.reached()
        resource.open()
        for _ in range(3):
            with pytest.raises(harness.errors.open):
                await harness.call(client)
        assert harness.reached() == before
        resource.close()
        await harness.call(client)
        assert harness.reached() == before + 1

    async def test_a_rejection_is_ours_and_the_drivers_and_can_be_pickled(self, harness: Harness) -> None:
        """AD-07: the text names the identifier once."""
        client, resource = await harness.guarded(tickets=4, tenant_tickets=1)
        rejections: list[BaseException] = []
        with bulkhead.tenant("acme"):
            holder = hold(resource, "acme")
            with pytest.raises(harness.base) as caught:
                await harness.call(client)
            rejections.append(caught.value)
            holder.end()
        resource.open()
        with pytest.raises(harness.base) as caught:
            await harness.call(client)
        rejections.append(caught.value)
        busy, opened = rejections
        assert isinstance(busy, harness.errors.busy)
        assert isinstance(busy, bulkhead.ResourceBusyError)
        assert isinstance(opened, harness.errors.open)
        assert isinstance(opened, bulkhead.CircuitOpenError)
        assert busy.tenant == "acme"
        for one in rejections:
            assert bulkhead.rejection(one) is one
            assert isinstance(one, bulkhead.Rejected)
            assert one.identifier == resource.identifier
            assert str(one).count(resource.identifier) == 1
            copy = pickle.loads(pickle.dumps(one))  # noqa: S301  our own
            assert type(copy) is type(one)
            assert copy.identifier == resource.identifier
            assert str(copy) == str(one)

    async def test_the_cap_of_one_tenant_does_not_touch_another(self, harness: Harness) -> None:
        client, resource = await harness.guarded(tickets=8, tenant_tickets=1)
        with bulkhead.tenant("noisy"):
            holder = await harness.holding(client, resource, 1.0)
            with pytest.raises(harness.errors.busy) as caught:
                await harness.call(client)
            assert caught.value.limit == "tenant"
        with bulkhead.tenant("quiet"):
            await harness.call(client)
            assert not holder.done(), "it waits for nobody"
        await harness.call(client)
        await holder

    async def test_a_call_inside_a_permit_of_its_own_identifier_takes_one_ticket(self, harness: Harness) -> None:
        client, resource = await harness.guarded(tickets=1)
        with Seen(resource.identifier, events.Success, events.Busy) as seen:
            await harness.call_within(resource.permit, client)
        assert [type(one) for one in seen.all] == [events.Success]
        assert resource.in_use == 0

    async def test_cancelled_calls_give_everything_back(self, harness: Harness) -> None:
        """Known faults 27, 46. A storm of cancellations at random moments, with calls that end well among them."""
        if not harness.is_async:
            pytest.skip("threads cannot be cancelled")
        options = {"tickets": 6, "tenant_tickets": 3, "timeout": 0.05}
        client, resource = await harness.guarded(**options)
        dice = random.Random(7)  # noqa: S311  repeatable

        async def one(number: int) -> None:
            with bulkhead.tenant(f"tenant-{number % 4}"):
                task = harness.blocked(client, 0.02) if number % 3 else asyncio.ensure_future(harness.call(client))
                await asyncio.sleep(dice.random() * 0.03)
                for _ in range(dice.randint(1, 3)):
                    task.cancel()
                    await asyncio.sleep(0)
                await asyncio.gather(task, return_exceptions=True)

        numbers = iter(range(CANCELLATIONS))

        async def worker() -> None:
            for number in numbers:
                await one(number)

        await asyncio.gather(*(worker() for _ in range(12)))
        gc.collect()
        assert resource.in_use == 0
        assert resource.state == "closed"
        # By another client: psycopg_pool itself loses connections whose return is cancelled, guarded or not.
        other = await harness.client({"name": resource.identifier.partition(":")[2], **options})
        assert await harness.call(other) is not None
        with bulkhead.tenant("tenant-0"):
            held = [await harness.holding(other, resource) for _ in range(3)]
            with pytest.raises(harness.errors.busy):
                await harness.call(other)
            await harness.cancelled(held)

    async def test_a_stream_that_is_closed_early_gives_everything_back(self, harness: Harness) -> None:
        """Known fault 44."""
        client, resource = await harness.guarded(tickets=1)
        for _ in range(3):
            try:
                await harness.take_from_stream(client, 1000, 2)
            except NotImplementedError:
                pytest.skip(f"{harness.driver} has no streams")
        gc.collect()
        assert resource.in_use == 0
        await harness.call(client)

    async def test_the_drivers_own_retry_does_not_retry_a_rejection(self, harness: Harness) -> None:
        client, resource = await harness.guarded(tickets=1, retries=4)
        with Seen(resource.identifier, events.Busy, events.CircuitOpen) as seen:
            holder = hold(resource)
            with pytest.raises(harness.errors.busy):
                await harness.call(client)
            holder.end()
            resource.open()
            with pytest.raises(harness.errors.open):
                await harness.call(client)
        assert [type(one) for one in seen.all] == [events.Busy, events.CircuitOpen]

    async def test_a_rejection_leaves_the_connection_usable(self, harness: Harness) -> None:
        client, resource = await harness.guarded(tickets=2)
        before = await harness.optional(harness.do_connection, client)
        resource.open()
        for _ in range(3):
            with pytest.raises(harness.errors.open):
                await harness.call(client)
        resource.close()
        await harness.call(client)
        assert await harness.run(harness.do_connection, client) == before

    async def test_calls_outside_any_tenant_can_be_refused(self, harness: Harness) -> None:
        client, resource = await harness.guarded(tickets=2, tenant_tickets=1)
        bulkhead.unknown_tenant("reject")
        with pytest.raises(harness.errors.unknown_tenant) as caught:
            await harness.call(client)
        assert isinstance(caught.value, harness.base)
        with bulkhead.tenant("acme"):
            await harness.call(client)
        bulkhead.unknown_tenant("allow")
        await harness.call(client)
        assert resource.in_use == 0

    async def test_calls_are_announced_with_scope_and_driver(self, harness: Harness) -> None:
        """RC-12, RC-19, RD-12, RD-23."""
        wanted = harness.options(tickets=2)
        identifier = f"{harness.kind}:{wanted['name']}"
        with Seen(identifier, events.Success, events.Busy) as seen:
            client = await harness.client(wanted)
            with bulkhead.tenant("acme"):
                await harness.call(client)
        assert {one.driver for one in seen.all} == {harness.driver}
        assert {one.identifier for one in seen.all} == {identifier}
        (call,) = seen.of(events.Success, "query")
        assert call.tenant == "acme"
        assert call.duration > 0
        assert bool(seen.of(events.Success, "connection")) is harness.connects

    async def test_a_connect_without_a_ticket_is_refused(self, harness: Harness) -> None:
        """RC-13, RC-17, RD-13, RD-16."""
        if not harness.connects:
            pytest.skip(f"{harness.driver} connects inside its calls")
        _, resource = await harness.guarded(tickets=1)
        other = await harness.client({"name": resource.identifier.partition(":")[2], "tickets": 1})
        holder = hold(resource)
        with Seen(resource.identifier, events.Busy) as seen, pytest.raises(harness.errors.busy):
            await harness.call(other)
        assert [one.scope for one in seen.all] == ["connection"]
        holder.end()
        await harness.call(other)

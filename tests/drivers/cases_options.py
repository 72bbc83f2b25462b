"""Shared cases: every form in which options reach a client, and options that cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drivers.harness import Seen

import adapters
import bulkhead
from bulkhead import events

if TYPE_CHECKING:
    from drivers.harness import Harness


class OptionCases:
    """Run through `DriverSuite`."""

    async def test_every_form_of_options_protects(self, harness: Harness) -> None:
        """RC-02, RD-02: clients of one name share the resource."""
        one, two, three, four = (harness.name() for _ in range(4))
        bulkhead.define(four, tickets=1)
        forms: dict[str, Any] = {
            one: bulkhead.options(name=one, tickets=1)["bulkhead"],
            two: {"name": two, "tickets": 1},
            three: lambda driver, host, port, extra: bulkhead.options(name=three, tickets=1)["bulkhead"],
            four: four,
        }
        for name, form in forms.items():
            client = await harness.client(form)
            await harness.call(client)
            resource = harness.resource(name)
            assert resource.limit == 1
            twin = await harness.client(form)
            await harness.call(twin)
            assert harness.resource(name) is resource

    async def test_a_name_may_be_defined_after_the_client_is_built(self, harness: Harness) -> None:
        name = harness.name()
        client = await harness.client(name)
        bulkhead.define(name, tickets=3)
        await harness.call(client)
        assert harness.resource(name).limit == 3

    async def test_an_unknown_name_is_an_error_that_lists_the_known_ones(self, harness: Harness) -> None:
        known, unknown = harness.name(), harness.name()
        bulkhead.define(known, tickets=3)
        with pytest.raises(bulkhead.ConfigurationError, match=known):
            await harness.call(await harness.client(unknown))

    async def test_a_callable_is_asked_once_with_driver_and_address(self, harness: Harness) -> None:
        asked: list[tuple[Any, ...]] = []
        name = harness.name()

        def ask(driver: str, host: str | None, port: int | None, extra: Any) -> Any:
            asked.append((driver, host, port, dict(extra)))
            return {"name": name, "tickets": 2}

        client = await harness.client(ask)
        for _ in range(3):
            await harness.call(client)
        assert len(asked) == 1
        assert asked[0][0] == harness.driver
        assert asked[0][2] in (harness.server.port, None)

    async def test_a_dynamic_callable_is_asked_on_each_call(self, harness: Harness) -> None:
        """RC-03, RC-04, AD-05: two names on one client have independent circuits."""
        names = [harness.name(), harness.name()]
        chosen = names[0]

        def ask(driver: str, host: str | None, port: int | None, extra: Any) -> Any:
            return {"name": chosen, "tickets": 2, "dynamic": True}

        client = await harness.client(ask)
        await harness.call(client)
        first = harness.resource(names[0])
        first.open()
        with pytest.raises(harness.errors.open):
            await harness.call(client)
        chosen = names[1]
        await harness.call(client)
        second = harness.resource(names[1])
        second.open()
        with pytest.raises(harness.errors.open):
            await harness.call(client)
        chosen = names[0]
        first.close()
        await harness.call(client)

    async def test_resolve_reaches_clients_that_were_given_nothing(self, harness: Harness) -> None:
        name = harness.name()
        adapters.resolve(lambda driver, host, port, extra: {"name": name, "tickets": 1})
        client = await harness.client()
        unprotected = await harness.client(raw=False)
        adapters.resolve(None)
        await harness.call(client)
        harness.resource(name).open()
        with pytest.raises(harness.errors.open):
            await harness.call(client)
        await harness.call(unprotected)

    async def test_false_and_nothing_mean_unprotected(self, harness: Harness) -> None:
        """RC-05, RD-03. Nothing is registered, counted or announced."""
        before = set(bulkhead.resources())
        heard: list[events.Event] = []
        with bulkhead.subscribe(heard.append):
            for raw in (None, False):
                client = await harness.client(raw)
                await harness.call(client)
                await harness.neutral(client)
                with pytest.raises(harness.base) as caught:
                    await harness.run(harness.do_fail, client)
                assert not hasattr(caught.value, "bulkhead_identifier")
        assert set(bulkhead.resources()) == before
        assert heard == []

    async def test_the_default_name_is_the_address(self, harness: Harness) -> None:
        client = await harness.client({"tickets": 7})
        await harness.call(client)
        assert harness.resource(harness.default_name()).limit == 7

    async def test_a_wrong_option_is_found_where_the_client_is_built(self, harness: Harness) -> None:
        with pytest.raises(bulkhead.ConfigurationError, match="tickets"):
            await harness.client({"ticket": 3})
        with pytest.raises(bulkhead.ConfigurationError, match="tickets"):
            await harness.client({"name": harness.name(), "tickets": 0})
        with pytest.raises(bulkhead.ConfigurationError):
            await harness.client(3)

    async def test_one_identifier_cannot_have_two_sets_of_options(self, harness: Harness) -> None:
        """RG-37 deviates: Semian lets the last one win. Known fault 49."""
        name = harness.name()
        client = await harness.client({"name": name, "tickets": 2})
        await harness.call(client)
        with pytest.raises(bulkhead.ConfigurationError, match="tickets"):
            await harness.call(await harness.client({"name": name, "tickets": 3}))

    async def test_options_on_a_client_with_a_ready_pool_are_an_error(self, harness: Harness) -> None:
        with pytest.raises(bulkhead.ConfigurationError, match="pool"):
            await harness.optional(harness.make_with_ready_pool, {"name": harness.name(), "tickets": 2})

    async def test_a_url_can_name_the_options(self, harness: Harness) -> None:
        name = harness.name()
        bulkhead.define(name, tickets=2)
        client = await harness.optional(harness.make_by_url, name)
        harness._clients.append(client)
        await harness.call(client)
        assert harness.resource(name).limit == 2

    async def test_shadow_lets_through_and_says_what_it_would_have_done(self, harness: Harness) -> None:
        client, resource = await harness.guarded(tickets=1, mode="shadow")
        resource.open()
        with Seen(resource.identifier, events.WouldReject) as seen:
            await harness.call(client)
        assert [type(one.error) for one in seen.of(events.WouldReject)] == [harness.errors.open]
        resource.update(mode="enforce")
        with pytest.raises(harness.errors.open):
            await harness.call(client)

    async def test_off_does_nothing(self, harness: Harness) -> None:
        client, resource = await harness.guarded(tickets=1, error_threshold=1, error_timeout=5, success_threshold=1)
        resource.update(mode="off")
        await harness.fail(client)
        await harness.call(client)
        assert resource.state == "closed"

    async def test_bypass_passes_here_and_nowhere_else(self, harness: Harness) -> None:
        """Known fault 74."""
        client, resource = await harness.guarded(tickets=1)
        resource.open()
        await harness.call_within(lambda: bulkhead.bypass(resource.identifier), client)
        with pytest.raises(harness.errors.open):
            await harness.call(client)

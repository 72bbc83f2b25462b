"""The registry: one resource per identifier, and whoever holds one that was unregistered is sent on to the next."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import TYPE_CHECKING

import pytest
from core.registries import add, names
from stories import DIRECT, Boom, Clock, at_rest, circuit, fail, hold, refused, succeed, together

import bulkhead
from bulkhead import CircuitOpenError, ConfigurationError, ResourceBusyError
from bulkhead.adapter import Late
from bulkhead.definitions import interpret
from bulkhead.option_set import Options
from bulkhead.registry import Registry, registered, registry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name
    yield name
    bulkhead.unregister(f"call:{name}")


def test_what_is_registered_is_found() -> None:
    """LR-01, LR-02, LR-03, LR-10, RG-23, AD-01: in one registry, which is always safe for threads."""
    one = bulkhead.resource("test_what_is_registered", tickets=5)
    assert bulkhead.find("call:test_what_is_registered") is one
    assert bulkhead.resource("test_what_is_registered") is one
    assert bulkhead.resource("test_what_is_registered", tickets=5) is one
    assert bulkhead.resources()["call:test_what_is_registered"] is one
    assert bulkhead.unregister("call:test_what_is_registered")
    assert not bulkhead.unregister("call:test_what_is_registered")
    assert bulkhead.find("call:test_what_is_registered") is None


def test_removing_one_leaves_the_others_in_their_order(own: Registry) -> None:
    """LR-04, LR-11, LR-12."""
    add(own, "a", "b", "c")
    assert own.unregister("call:b")
    assert names(own) == ["a", "c"]
    assert own.find("call:b") is None
    for name in ("a", "c"):
        own.unregister(f"call:{name}")
    assert names(own) == []


def test_one_identifier_with_other_options_is_an_error(unique: str) -> None:
    """RG-24. Known fault 49. Semian is wrong here: it overrides, or logs."""
    one = bulkhead.resource(unique, tickets=2)
    with pytest.raises(ConfigurationError, match="tickets: 2 and 5"):
        bulkhead.resource(unique, tickets=5)
    assert one.limit == 2
    one.update(tickets=5)
    assert bulkhead.resource(unique, tickets=5) is one
    assert bulkhead.resource(unique, tickets=2) is one, "as it was registered"


def test_where_validation_is_lax_the_first_options_hold(unique: str, caplog: pytest.LogCaptureFixture) -> None:
    """RG-34, RG-35, RG-36, RG-37."""
    one = bulkhead.resource(unique, tickets=2)
    with caplog.at_level(logging.WARNING, "bulkhead"):
        assert bulkhead.resource(unique, tickets=5, force_config_validation=False) is one
    assert "tickets: 2 and 5" in caplog.text
    assert one.limit == 2


def test_threads_that_register_at_once_get_one_resource() -> None:
    """AD-08, AD-09, RG-03."""
    own = Registry(Clock())
    options = Options(tickets=1)
    found = together(*[lambda: own.get("call:x", options)] * 10)
    assert len({id(one) for one in found}) == 1
    different = together(*[lambda n=n: own.get(f"call:{n}", options) for n in range(10)])
    assert len({id(one) for one in different}) == 10
    assert together(*[lambda n=n: own.unregister(f"call:{n}") for n in range(10)]) == [True] * 10
    assert names(own) == ["x"]


def test_after_unregister_whoever_holds_the_old_one_is_sent_on() -> None:
    """AD-02, AD-03: the client gets another resource; calls in flight end as they began."""
    own = Registry(Clock())
    old = own.get("call:x", Options(**circuit(1), tickets=1))
    session = hold(old)
    assert own.unregister("call:x")
    succeed(old)
    new = own.find("call:x")
    assert new is not None
    assert new is not old
    held = hold(old)
    assert new.in_use == 1
    refused(ResourceBusyError, old)
    held.end()
    session.fail(Boom())
    assert new.state == "closed", "a late answer reaches the old one"
    old.report(Boom(), DIRECT)
    assert new.state == "open"
    with pytest.raises(CircuitOpenError):
        old.check(DIRECT)
    at_rest(new)


def test_what_is_said_to_one_that_was_unregistered_is_said_to_its_successor() -> None:
    """A module may hold its resource for ever: its calls go to the successor, and so does what is done by hand."""
    own = Registry(Clock())
    old = own.get("call:x", Options(**circuit(1), tickets=1))
    own.unregister("call:x")
    old.open("maintenance")
    new = own.find("call:x")
    assert new is not None
    assert new is not old
    assert new.state == old.state == "open"
    refused(CircuitOpenError, old)
    old.close()
    assert new.state == old.state == "closed"
    old.update(tickets=5)
    assert new.limit == 5
    fail(old)
    old.reset()
    assert new.state == "closed"
    assert new.totals()["calls", "failure"] == 1
    at_rest(new)


def test_the_successor_may_have_other_options() -> None:
    """A guarded call never raises ConfigurationError."""
    own = Registry(Clock())
    old = own.get("call:x", Options(tickets=1))
    own.unregister("call:x")
    new = own.get("call:x", Options(tickets=5))
    held = [hold(old) for _ in range(5)]
    assert new.in_use == 5
    for session in held:
        session.end()


@pytest.mark.parametrize("mode", ["off", "enforce"])
def test_an_open_or_switched_off_resource_is_sent_on_too(mode: str) -> None:
    own = Registry(Clock())
    old = own.get("call:x", Options(tickets=1))
    old.update(mode=mode)
    old.open()
    own.unregister("call:x")
    new = own.get("call:x", Options(tickets=1))
    held = hold(old)
    assert new.in_use == 1
    held.end()


async def test_a_coroutine_waits_at_the_successor() -> None:
    own = Registry(Clock())
    old = own.get("call:x", Options(tickets=1, timeout=0.05))
    own.unregister("call:x")
    new = own.get("call:x", Options(tickets=1, timeout=0.05))
    held = hold(new)
    with pytest.raises(ResourceBusyError):
        async with old.permit():
            pass
    assert new.waited[0] == 1
    held.end()


def test_clients_are_held_by_nobody() -> None:
    """AD-04: the registry knows resources, never the clients that use them."""

    class Client:
        def __init__(self) -> None:
            self.bulkhead = registry.get("call:clients", Options(tickets=1))

    watched = [weakref.ref(Client()) for _ in range(10)]
    gc.collect()
    assert not any(client() for client in watched)
    bulkhead.unregister("call:clients")


def test_dynamic_options_are_asked_for_on_each_call() -> None:
    """AD-05, AD-06."""
    asked: list[int] = []

    def choose(*_: object) -> Options:
        asked.append(1)
        return Options(name=f"dynamic-{len(asked) % 2}", tickets=1, dynamic=True)

    raw = interpret(choose, driver="call", host=None, port=None, extra=None)
    late = Late(raw, "call", "default", None)  # type: ignore[arg-type]
    before = len(asked)
    first, second, third = late.now(), late.now(), late.now()
    assert len(asked) == before + 3
    assert first is third
    assert first is not second
    for one in (first, second):
        bulkhead.unregister(one.identifier)


def test_a_name_may_be_defined_after_the_client_is_built() -> None:
    late = Late("defined-later", "call", "default", None)
    with pytest.raises(ConfigurationError):
        late.now()
    bulkhead.define("defined-later", tickets=3)
    assert late.now() is late.now() is registered(Options(name="defined-later", tickets=3), "call", "x")
    bulkhead.unregister("call:defined-later")


def test_a_resource_without_options_has_to_be_known() -> None:
    with pytest.raises(ConfigurationError):
        bulkhead.resource("nobody-registered-this")


def test_a_resource_is_told_by_its_name() -> None:
    """`@bulkhead.resource` without a name, a beginner's mistake, says what it takes."""
    with pytest.raises(ConfigurationError, match=r"resource's name, not .*bulkhead\.resource\(.payments., tickets=8\)"):
        bulkhead.resource(lambda: None)  # type: ignore[arg-type]


def test_marks_of_nesting_are_needed_where_several_drivers_guard_by_one_identifier() -> None:
    options = Options(identifier="sql:shared-by-two", tickets=2)
    one = registered(options, "sql", "", None, "sqlalchemy")
    try:
        assert not registered(options, "sql", "", None, "sqlalchemy").nests
        assert registered(options, "postgres", "", None, "psycopg").nests
        bulkhead.unregister("sql:shared-by-two")
        succeed(one)
        successor = bulkhead.find("sql:shared-by-two")
        assert successor is not None
        assert successor is not one
        assert successor.nests
    finally:
        bulkhead.unregister("sql:shared-by-two")

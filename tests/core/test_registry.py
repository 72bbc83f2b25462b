"""The registry: one resource per identifier, bounded, and never two of an identifier while one of them is in use."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from stories import DIRECT, Boom, Clock, at_rest, circuit, fail, hold, refused, succeed, together

import bulkhead
from bulkhead import CircuitOpenError, ConfigurationError, ResourceBusyError, subscribe
from bulkhead.adapter import Late
from bulkhead.definitions import interpret
from bulkhead.events import LruGc
from bulkhead.option_set import Options
from bulkhead.process_values import defaults, process
from bulkhead.registry import HAND_STEPS, Registry, Slot, registered, registry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    before = process.values
    yield
    process.values = before


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def own(clock: Clock) -> Registry:
    return Registry(clock)


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name
    yield name
    bulkhead.unregister(f"call:{name}")


def add(own: Registry, *names: str, **options: Any) -> None:
    for name in names:
        own.get(f"call:{name}", Options(**options))


def names(own: Registry) -> list[str]:
    return [identifier.removeprefix("call:") for identifier in own.resources()]


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


def test_idle_resources_go_once_they_are_old_enough(own: Registry, clock: Clock) -> None:
    """LR-06, LR-08, LR-09, LR-15, LR-16: nothing before minimum_lru_time; then all but those that say something."""
    defaults(maximum_lru_size=3, minimum_lru_time=10)
    add(own, "a", "b", "c")
    clock.advance(9)
    add(own, "d")
    assert names(own) == ["a", "b", "c", "d"]
    clock.advance(1)
    add(own, "e")
    assert names(own) == ["d", "e"]


def test_nothing_is_looked_at_while_there_is_room(own: Registry, clock: Clock) -> None:
    """LR-16."""
    defaults(maximum_lru_size=3, minimum_lru_time=1)
    seen: list[Any] = []
    with subscribe(seen.append, LruGc):
        add(own, "a", "b")
        clock.advance(100)
        add(own, "c")
        assert seen == []
        add(own, "d")
        assert len(seen) == 1


def test_a_resource_that_was_used_is_young(own: Registry, clock: Clock) -> None:
    """LR-05, LR-14: use is seen by the hand; nothing is written on a hit."""
    defaults(maximum_lru_size=1, minimum_lru_time=10)
    add(own, "used", "unused", tickets=1)
    clock.advance(11)
    one = own.find("call:used")
    assert one is not None
    succeed(one)
    add(own, "x")
    assert names(own) == ["used", "x"]
    clock.advance(5)
    add(own, "y")
    assert "used" in names(own)


@pytest.mark.parametrize("mode", ["shadow", "enforce"])
def test_use_is_seen_where_no_call_is_fast(own: Registry, clock: Clock, mode: Any) -> None:
    defaults(maximum_lru_size=1, minimum_lru_time=10)
    add(own, "used", "unused", tickets=1, mode=mode)
    one = own.find("call:used")
    assert one is not None
    add(own, "x")
    clock.advance(11)
    with subscribe(lambda event: None):
        one.special()
        succeed(one)
        assert not one.fast
    add(own, "y")
    assert own.find("call:used") is one


def test_a_resource_with_failures_that_count_stays(own: Registry, clock: Clock) -> None:
    """LR-07, LR-06."""
    defaults(maximum_lru_size=0, minimum_lru_time=1)
    add(own, "ill", **circuit(3, 100))
    ill = own.find("call:ill")
    assert ill is not None
    fail(ill)
    clock.advance(50)
    add(own, "x")
    clock.advance(10)
    add(own, "y")
    assert "ill" in names(own)
    clock.advance(91)
    add(own, "z")
    add(own, "zz")
    assert "ill" not in names(own)


def test_an_open_circuit_stays_while_its_time_lasts(own: Registry, clock: Clock) -> None:
    defaults(maximum_lru_size=0, minimum_lru_time=1)
    add(own, "open", **circuit(1, 100))
    one = own.find("call:open")
    assert one is not None
    fail(one)
    del one
    for _ in range(3):
        clock.advance(30)
        add(own, f"x{clock.now}")
        assert "open" in names(own)
    clock.advance(11)
    add(own, "y")
    add(own, "z")
    assert "open" not in names(own), "over, and nobody called: forgotten like a closed one"


def test_a_resource_with_tickets_out_stays(own: Registry, clock: Clock) -> None:
    """Known fault 56."""
    defaults(maximum_lru_size=0, minimum_lru_time=1)
    add(own, "held", tickets=2)
    one = own.find("call:held")
    assert one is not None
    session = hold(one)
    del one
    for number in range(20):
        clock.advance(100)
        add(own, f"x{number}")
        gc.collect()
    again = own.get("call:held", Options(tickets=2))
    other = hold(again)
    refused(ResourceBusyError, again)
    session.end()
    other.end()
    at_rest(again)


def test_a_call_in_flight_keeps_its_limit_whatever_is_forgotten(own: Registry, clock: Clock) -> None:
    """Known fault 56, with a client that keeps the resource: the identifier never has two."""
    defaults(maximum_lru_size=0, minimum_lru_time=1)
    one = own.get("call:kept", Options(tickets=1))
    clock.advance(10)
    add(own, "x")
    assert "kept" not in names(own)
    assert own.get("call:kept", Options(tickets=1)) is one
    clock.advance(10)
    add(own, "y")
    assert "kept" not in names(own)
    succeed(one)
    assert own.find("call:kept") is one, "the next call of whoever kept it registers it again"


def test_a_forgotten_resource_that_is_found_again_takes_calls_at_once(own: Registry, clock: Clock) -> None:
    """Else the call of another thread, in the moment between, is sent on to where it is, to the end of the stack."""

    class Table(dict[str, Slot]):
        def __setitem__(self, identifier: str, slot: Slot) -> None:
            super().__setitem__(identifier, slot)
            if identifier == "call:x":
                assert together(lambda: succeed(one)) == [None]

    one = own.get("call:x", Options(tickets=1))
    defaults(maximum_lru_size=0, minimum_lru_time=0)
    clock.advance(1)
    add(own, "y")
    assert own.find("call:x") is None
    own.table = Table(own.table)
    succeed(one)
    assert own.find("call:x") is one
    at_rest(one)


async def test_a_forgotten_resource_comes_back_by_a_coroutine_s_call_too(own: Registry, clock: Clock) -> None:
    defaults(maximum_lru_size=0, minimum_lru_time=1)
    one = own.get("call:kept", Options(tickets=1, timeout=1.0))
    clock.advance(10)
    add(own, "x")
    async with one.permit():
        assert own.find("call:kept") is one
        assert one.in_use == 1
    at_rest(one)


def test_above_maximum_resources_the_least_used_go_at_once(own: Registry) -> None:
    defaults(maximum_lru_size=5, maximum_resources=10, minimum_lru_time=1e6)
    add(own, *[str(number) for number in range(100)], tickets=1)
    assert len(names(own)) == 10
    assert "99" in names(own)


def test_hot_resources_survive_a_flood_of_new_identifiers(own: Registry) -> None:
    defaults(maximum_lru_size=5, maximum_resources=10, minimum_lru_time=1e6)
    hot = own.get("call:hot", Options(tickets=1))
    for number in range(200):
        succeed(hot)
        add(own, str(number))
    assert "hot" in names(own)


def test_a_resource_in_use_never_goes_at_once(own: Registry) -> None:
    defaults(maximum_lru_size=2, maximum_resources=3, minimum_lru_time=1e6)
    add(own, "held", tickets=1)
    one = own.find("call:held")
    assert one is not None
    session = hold(one)
    add(own, *[str(number) for number in range(50)])
    assert "held" in names(own)
    session.end()


def test_if_none_may_go_new_identifiers_share_one(own: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """Known fault 55."""
    defaults(maximum_lru_size=2, maximum_resources=3, minimum_lru_time=1e6)
    held = [hold(own.get(f"call:{number}", Options(tickets=1))) for number in range(3)]
    with caplog.at_level(logging.ERROR, "bulkhead"):
        shared = own.get("call:new", Options(tickets=5))
        assert shared.identifier == "call:(overflow)"
        assert own.get("call:newer", Options(tickets=7)) is shared
        other = own.get("redis:new", Options(tickets=7))
    assert other.identifier == "redis:(overflow)"
    assert caplog.text.count("further identifiers share call:(overflow)") == 1
    for number in range(50):
        own.get(f"made-up-{number}:x", Options())
    assert len(names(own)) <= 3 + 8, "one per kind of driver, not per prefix that somebody made up"
    succeed(shared)
    for session in held:
        session.end()
    assert own.get("call:new", Options(tickets=5)).identifier == "call:new"


@pytest.mark.parametrize("switch", ["BULKHEAD_DISABLED", "BULKHEAD_CIRCUIT_BREAKER_DISABLED"])
def test_the_environment_switches_off_what_new_identifiers_share(
    own: Registry, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults(maximum_lru_size=1, maximum_resources=1, minimum_lru_time=1e6)
    held = hold(own.get("call:used", Options(tickets=1)))
    monkeypatch.setenv(switch, "1")
    shared = own.get("call:new", Options(tickets=5))
    for _ in range(10):
        fail(shared)
    succeed(shared)
    held.end()


def test_what_new_identifiers_share_is_counted_like_any_other(own: Registry) -> None:
    defaults(maximum_lru_size=1, maximum_resources=1, minimum_lru_time=1e6)
    held = hold(own.get("call:used", Options(tickets=1)))
    own.count_successes()
    shared = own.get("call:new", Options(tickets=5))
    succeed(shared)
    assert shared.totals()["calls", "success"] == 1
    held.end()


def test_collection_looks_at_a_bounded_number_each_time(own: Registry, clock: Clock) -> None:
    """LR-13, LR-14: one event per collection, with what was examined and cleared."""
    defaults(maximum_lru_size=4, minimum_lru_time=10)
    seen: list[Any] = []
    with subscribe(seen.append, LruGc):
        add(own, "a", "b", "c", "d")
        clock.advance(11)
        add(own, "e")
    (event,) = seen
    assert (event.size, event.examined, event.cleared) == (4, 4, 4)
    assert event.elapsed >= 0
    assert event.identifier is event.tenant is None
    add(own, *[f"n{number}" for number in range(100)])
    with subscribe(seen.append, LruGc):
        add(own, "one-more")
    assert seen[-1].examined <= HAND_STEPS


def test_registering_and_unregistering_for_ever_keeps_nothing(own: Registry) -> None:
    for _ in range(500):
        add(own, "x")
        own.unregister("call:x")
    assert not own._hand
    assert not own.table


def test_ten_thousand_resources_dropped_are_gone(own: Registry, clock: Clock) -> None:
    """Known fault 95: circuitbreaker keeps each breaker in a monitor for ever."""
    defaults(maximum_lru_size=0, minimum_lru_time=0)
    watched = []
    for number in range(10_000):
        watched.append(weakref.ref(own.get(f"call:{number}", Options(tickets=1))))
        clock.advance(1)
    gc.collect()
    assert sum(one() is not None for one in watched) <= HAND_STEPS + 1
    assert len(own.alive) <= HAND_STEPS + 1


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


def test_what_went_is_summed_up_once(own: Registry, clock: Clock) -> None:
    defaults(maximum_lru_size=0, minimum_lru_time=1)
    one = own.get("call:x", Options(**circuit(5, 1)))
    for _ in range(2):
        fail(one)
    for name in ("seen", "gone"):
        clock.advance(10)
        add(own, name)
    assert own.evicted["calls", "failure"] == 2
    fail(one)
    assert one.totals()["calls", "failure"] == 1, "counted from 0 since it came back"
    for name in ("seen again", "gone again"):
        clock.advance(10)
        add(own, name)
    assert own.evicted["calls", "failure"] == 3


def test_threads_that_use_and_collect_never_see_two_of_one_identifier() -> None:
    defaults(maximum_lru_size=0, minimum_lru_time=0, maximum_resources=10)
    clock = Clock()
    own = Registry(clock)
    options = Options(tickets=1, circuit_breaker=False)
    inside = {str(number): 0 for number in range(4)}
    over: list[str] = []
    guard = threading.Lock()

    def work(seed: int) -> None:
        for step in range(300):
            name = str((seed * 5 + step) % 4)
            clock.advance(0.001)
            one = own.get(f"call:{name}", options)
            try:
                session = hold(one)
            except ResourceBusyError:
                continue
            with guard:
                inside[name] += 1
                if inside[name] > 1:
                    over.append(name)
            del one
            with guard:
                inside[name] -= 1
            session.end()

    assert together(*[lambda seed=seed: work(seed) for seed in range(8)], seconds=50) == [None] * 8
    assert not over


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

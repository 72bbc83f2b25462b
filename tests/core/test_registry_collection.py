"""What the registry lets go: it is bounded, and never has two of an identifier while one of them is in use."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from core.registries import add, names
from stories import Clock, at_rest, circuit, fail, hold, refused, succeed, together

from bulkhead import ResourceBusyError, subscribe
from bulkhead.events import LruGc
from bulkhead.option_set import Options
from bulkhead.process_values import defaults, process
from bulkhead.registry import HAND_STEPS, Registry, Slot

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    before = process.values
    yield
    process.values = before


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

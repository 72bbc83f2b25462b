"""The circuit as pure state: `now` is a number, the owner's switch is one store, nothing is locked."""

from __future__ import annotations

from typing import Any

import pytest
from core.circuit_story import Call, Story
from stories import circuit

from bulkhead.causes import Cause
from bulkhead.circuit.epochs import Closed, HalfOpen, Open


def test_a_circuit_starts_closed_and_lets_calls_in() -> None:
    """CB-01, ST-01."""
    story = Story(**circuit())
    assert story.state == "closed"
    assert story.ask() is None


def test_error_threshold_failures_open_it_and_an_open_circuit_says_how_long() -> None:
    """CB-02, CB-04, ST-02."""
    story = Story(**circuit(2, 10))
    story.fail()
    assert story.state == "closed"
    story.at(1).fail()
    assert story.state == "open"
    assert story.at(4).ask() == pytest.approx(7)
    assert story.changes == [("closed", "open")]


def test_after_error_timeout_the_first_call_makes_it_half_open() -> None:
    """CB-05, CB-13, ST-04: asking without calling changes nothing before the time is over."""
    story = Story(**circuit(1, 5))
    story.fail()
    assert story.at(4.999).ask() is not None
    assert story.state == "open"
    assert story.at(5).state == "open", "nothing happens by itself: no timer, no thread (known fault 8)"
    assert story.ask() is None
    assert story.state == "half_open"


def test_one_failure_while_half_open_opens_again_for_the_whole_time() -> None:
    """CB-06. Known fault 4: no number of calls is needed for the verdict of a probe."""
    story = Story(**circuit(5, 10, 3))
    for _ in range(5):
        story.fail()
    story.at(10).succeed()
    story.at(11).fail()
    assert story.state == "open"
    assert story.ask() == pytest.approx(10)


def test_success_threshold_successes_close_it_and_its_window_is_empty_then() -> None:
    """CB-07, CB-08, ST-03."""
    story = Story(**circuit(2, 10, 2))
    story.fail()
    story.fail()
    story.at(10).succeed()
    assert story.state == "half_open"
    story.succeed()
    assert story.state == "closed"
    story.fail()
    assert story.state == "closed"
    story.fail()
    assert story.state == "open"


@pytest.mark.parametrize("window", [{}, {"error_threshold_timeout_enabled": False}])
def test_open_close_open_cycle(window: dict[str, Any]) -> None:
    """CB-14, CB-15."""
    story = Story(**circuit(2, 10, 2, **window))
    for begin in (0.0, 100.0):
        story.at(begin).fail()
        story.fail()
        assert story.state == "open"
        story.at(begin + 10).succeed()
        assert story.state == "half_open"
        story.succeed()
        assert story.state == "closed"
    assert story.changes == 2 * [("closed", "open"), ("open", "half_open"), ("half_open", "closed")]


def test_entering_half_open_begins_to_count_successes_anew() -> None:
    story = Story(**circuit(1, 10, 2))
    story.fail()
    story.at(10).succeed()
    story.fail()
    story.at(20).succeed()
    assert story.state == "half_open"
    story.succeed()
    assert story.state == "closed"


@pytest.mark.parametrize(
    ("options", "times", "state"),
    [
        pytest.param(circuit(2, 5), (0, 6), "closed", id="CB-10"),
        pytest.param(circuit(3, 5, error_threshold_timeout_enabled=False), (0, 5, 6), "open", id="CB-11"),
        pytest.param(circuit(3, 5), (0, 5, 6), "closed", id="CB-12"),
        pytest.param(circuit(3, 5, error_threshold_timeout=10), (0, 5, 6), "open", id="CB-16"),
        pytest.param(circuit(3, 6), (0, 5, 6), "open", id="CB-18"),
        pytest.param(circuit(3, 5, error_threshold_timeout_enabled=False), (0, 50, 600), "open", id="CB-20"),
    ],
)
def test_failures_open_within_the_window_or_in_a_row(
    options: dict[str, Any], times: tuple[float, ...], state: str
) -> None:
    """CB-10, CB-11, CB-12, CB-16, CB-18, CB-20."""
    story = Story(**options)
    for time in times:
        story.at(time).fail()
    assert story.state == state


def test_a_window_value_beside_a_window_that_is_off_still_opens_where_validation_is_lax() -> None:
    """CB-17, CB-49."""
    story = Story(
        **circuit(2, 5, error_threshold_timeout_enabled=False, error_threshold_timeout=10.0),
        force_config_validation=False,
    )
    story.fail()
    story.at(100).fail()
    assert story.state == "open"


def test_the_window_slides_and_never_forgets_too_much() -> None:
    """Failures 6 s apart never make three within 10 s."""
    story = Story(**circuit(3, 10))
    for time in range(0, 60, 6):
        story.at(time).fail()
    assert story.state == "closed"
    story.at(55).fail()
    assert story.state == "open"


def test_bursts_count_once_while_failures_are_lumped() -> None:
    """CB-28: lumping 2 s, threshold 3: bursts at 0 and 3 s are one failure each; the first one at 6 s opens."""
    story = Story(**circuit(3, 10, lumping_interval=2))
    for time in (0, 0.1, 0.2, 3, 3.1, 3.2):
        story.at(time).fail()
    assert story.state == "closed"
    story.at(6).fail()
    assert story.state == "open"


def test_lumping_leaves_failures_apart_alone() -> None:
    """CB-29, CB-30."""
    story = Story(**circuit(2, 10, lumping_interval=1))
    story.fail()
    story.at(2).fail()
    assert story.state == "open"
    story = Story(**circuit(2, 10))
    story.fail()
    story.fail()
    assert story.state == "open"


def test_a_lumped_failure_of_a_probe_opens_again() -> None:
    """Semian is wrong here: there a lumped failure while half-open re-opens nothing."""
    story = Story(**circuit(1, 1, 2, lumping_interval=1.0, error_threshold_timeout=10))
    story.fail()
    story.at(1).succeed()
    story.at(1.001).fail()
    assert story.state == "open"


def test_a_late_failure_does_not_prolong_the_open_period() -> None:
    """Semian is wrong here. Known fault 13: opened once, by the first; one change."""
    story = Story(**circuit(1, 10))
    admitted = story.circuit.epoch
    story.fail()
    story.at(9)
    assert not story.circuit.wants_to_open(admitted, 9, None, anonymous=False)
    assert not story.note(story.circuit.trip(admitted, 9, None, "late"))
    assert story.ask() == pytest.approx(1)
    assert story.changes == [("closed", "open")]


def test_an_answer_reaches_only_the_epoch_that_admitted_its_call() -> None:
    """Known faults 10 and 11: a call admitted before the trip neither closes the circuit nor opens the next one."""
    story = Story(**circuit(2, 10))
    first = story.circuit.epoch
    story.fail()
    story.fail()
    assert isinstance(first, Closed)
    story.at(10).succeed()
    assert story.state == "closed"
    for _ in range(5):
        assert not story.circuit.wants_to_open(first, story.now, None, anonymous=False)
    assert not story.circuit.says_something(story.now)


def test_back_off_doubles_up_to_error_timeout_and_begins_anew_after_closing() -> None:
    """CB-37, CB-38, CB-39."""
    story = Story(**circuit(1, 16, exponential_backoff_error_timeout=True))
    story.fail()
    for seconds in (1, 2, 4, 8, 16, 16, 16):
        assert story.ask() == pytest.approx(seconds)
        story.at(story.now + seconds).fail()
    story.at(story.now + 16).succeed()
    assert story.state == "closed"
    story.fail()
    assert story.ask() == pytest.approx(1)


@pytest.mark.parametrize(
    ("more", "periods"),
    [
        pytest.param({}, (16, 16), id="CB-40"),
        pytest.param(
            {"exponential_backoff_error_timeout": True, "exponential_backoff_initial_timeout": 2}, (2, 4), id="CB-42"
        ),
        pytest.param(
            {"exponential_backoff_error_timeout": True, "exponential_backoff_multiplier": 3}, (1, 3), id="CB-43"
        ),
    ],
)
def test_open_periods(more: dict[str, Any], periods: tuple[float, float]) -> None:
    """CB-40, CB-42, CB-43."""
    story = Story(**circuit(1, 16, **more))
    story.fail()
    for seconds in periods:
        assert story.ask() == pytest.approx(seconds)
        story.at(story.now + seconds).fail()


def test_a_back_off_of_many_openings_does_not_overflow() -> None:
    story = Story(**circuit(1, 16, exponential_backoff_error_timeout=True, exponential_backoff_multiplier=1e6))
    story.fail()
    for _ in range(100):
        left = story.ask()
        assert left is not None
        story.at(story.now + left).fail()
    assert story.ask() == pytest.approx(16)


def test_opened_by_hand_stays_open_until_closed_by_hand() -> None:
    """CB-09, ST-05: close and reset forget failures and the back-off."""
    story = Story(**circuit(2, 10, exponential_backoff_error_timeout=True))
    story.fail()
    assert story.note(story.circuit.open_by_hand(0, "maintenance"))
    assert story.at(1e9).ask() == float("inf")
    assert story.note(story.circuit.close(story.now, "done"))
    story.fail()
    assert story.state == "closed"
    story.fail()
    assert story.ask() == pytest.approx(1)
    assert story.note(story.circuit.close(story.now, "reset"))
    assert not story.note(story.circuit.close(story.now, "again")), "closing a closed circuit is no change"


def test_a_clock_that_goes_backwards_changes_nothing() -> None:
    """Known faults 52 and 92."""
    story = Story(**circuit(1, 10))
    story.at(1000).fail()
    assert story.at(500).ask() == pytest.approx(510)
    assert story.state == "open"
    assert story.at(1010).ask() is None


def test_a_circuit_says_something_while_failures_count_or_its_open_period_lasts() -> None:
    story = Story(**circuit(2, 10))
    assert not story.circuit.says_something(0)
    story.fail()
    assert story.circuit.says_something(10)
    assert not story.circuit.says_something(11)
    story.at(12).fail()
    story.fail()
    assert story.circuit.says_something(21)
    assert not story.circuit.says_something(22)
    story.at(22).ask()
    assert not story.circuit.says_something(22)


def test_the_cause_is_kept_through_every_period_until_it_closes() -> None:
    story = Story(**circuit(1, 10))
    cause = Cause(ValueError("first"))
    epoch = story.circuit.epoch
    assert story.circuit.wants_to_open(epoch, 0, None, anonymous=False)
    story.note(story.circuit.trip(epoch, 0, cause, "why"))
    assert isinstance(story.circuit.epoch, Open)
    assert story.circuit.epoch.cause is cause
    story.at(10).ask()
    call = Call()
    story.circuit.probe(call, 10, None)
    story.at(30).ask()
    assert isinstance(story.circuit.epoch, HalfOpen)
    assert story.circuit.epoch.cause is cause

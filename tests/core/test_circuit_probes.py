"""Probes of a circuit as pure state: how many at once, their leases, and whose turn it is after one failed."""

from __future__ import annotations

from typing import Any

import pytest
from core.circuit_story import Call, Story
from stories import circuit


def test_only_so_many_probes_at_once() -> None:
    """Known fault 3: half_open_max_probes callers run, the others are refused and told when."""
    story = Story(**circuit(1, 10, 5, half_open_max_probes=2))
    story.fail()
    assert story.at(10).ask() is None
    calls = [Call(), Call(), Call()]
    assert [story.circuit.probe(call, 10, None) for call in calls] == [None, None, pytest.approx(10)]
    epoch = story.circuit.epoch
    story.note(story.circuit.probe_succeeded(epoch, calls[0], 11))
    assert story.circuit.probe(calls[2], 11, None) is None


def test_a_probe_without_a_verdict_gives_its_place_back_and_changes_nothing() -> None:
    """Known fault 1."""
    story = Story(**circuit(1, 10, 1))
    story.fail()
    story.at(10).ask()
    epoch, call = story.circuit.epoch, Call()
    assert story.circuit.probe(call, 10, None) is None
    assert story.circuit.probe(Call(), 10, None) == pytest.approx(10)
    assert not story.note(story.circuit.probe_ignored(epoch, call, 11))
    story.at(11).succeed()
    assert story.state == "closed"


def test_a_probe_that_is_lost_gives_its_place_back() -> None:
    """Known fault 7."""
    story = Story(**circuit(1, 10, 1))
    story.fail()
    story.at(10).ask()
    assert story.circuit.probe(Call(), 10, None) is None  # and nobody keeps it
    story.succeed()
    assert story.state == "closed"


@pytest.mark.parametrize("seconds", [{}, {"half_open_resource_timeout": 2}, {"call_timeout": 3}])
def test_a_probe_that_outlives_its_lease_opens_again_at_that_moment(seconds: dict[str, Any]) -> None:
    """With the next back-off step; what it says later is ignored."""
    story = Story(**circuit(1, 10, 1, **seconds))
    lease = min(seconds.values(), default=10)
    story.fail()
    story.at(10).ask()
    epoch, call = story.circuit.epoch, Call()
    assert story.circuit.probe(call, 10, None) is None
    assert story.at(10 + lease - 0.01).ask() is None
    assert story.state == "half_open"
    assert story.at(10 + lease + 1).ask() == pytest.approx(9), "the open period began when the lease ended"
    assert story.state == "open"
    assert not story.circuit.probe_succeeded(epoch, call, story.now)
    assert not story.circuit.probe_failed(epoch, call, story.now, None, None)
    assert story.changes[-1] == ("half_open", "open")


def test_a_late_verdict_is_itself_what_notices_that_the_lease_is_over() -> None:
    for end in ("probe_succeeded", "probe_ignored"):
        story = Story(**circuit(1, 10, 1, half_open_resource_timeout=2))
        story.fail()
        story.at(10).ask()
        epoch, call = story.circuit.epoch, Call()
        assert story.circuit.probe(call, 10, None) is None
        assert story.note(getattr(story.circuit, end)(epoch, call, 15))
        assert story.state == "open", end


def test_a_lease_that_ended_long_ago_leads_straight_to_the_next_probe() -> None:
    story = Story(**circuit(1, 10, 1, half_open_resource_timeout=2))
    story.fail()
    story.at(10).ask()
    call = Call()
    assert story.circuit.probe(call, 10, None) is None
    assert story.at(100).ask() is None
    assert story.state == "half_open"
    assert story.changes[1:] == [("open", "half_open"), ("half_open", "open"), ("open", "half_open")]


def test_leases_move_the_back_off_on() -> None:
    story = Story(**circuit(1, 16, 1, exponential_backoff_error_timeout=True, half_open_resource_timeout=1))
    story.fail()
    story.at(1).ask()
    call = Call()
    assert story.circuit.probe(call, 1, None) is None
    assert story.at(2).ask() == pytest.approx(2)


def test_the_tenant_whose_probe_failed_waits_while_another_asks() -> None:
    story = Story(**circuit(1, 10, 1, error_tenants=2))
    story.fail("noisy")  # nobody else had a success: the first failure may open
    assert story.state == "open"
    story.at(10).fail("noisy")
    story.circuit.asked_while_open("quiet")
    assert story.at(20).ask() is None
    assert story.circuit.probe(Call(), 20, "noisy") == pytest.approx(10)
    assert story.circuit.probe(Call(), 20, "quiet") is None


def test_nobody_else_asks_so_the_tenant_whose_probe_failed_may_try_again() -> None:
    story = Story(**circuit(1, 10, 1, error_tenants=2))
    story.fail("noisy")
    story.at(10).fail("noisy")
    story.circuit.asked_while_open("noisy")
    assert story.at(20).ask() is None
    assert story.circuit.probe(Call(), 20, "noisy") is None


def test_a_tenant_that_has_to_wait_waits_one_open_period_at_most() -> None:
    story = Story(**circuit(1, 10, 1, error_tenants=2))
    story.fail("noisy")
    story.at(10).fail("noisy")
    story.circuit.asked_while_open("quiet")
    assert story.at(20).ask() is None
    assert story.circuit.probe(Call(), 29, "noisy") == pytest.approx(1)
    assert story.circuit.probe(Call(), 30, "noisy") is None

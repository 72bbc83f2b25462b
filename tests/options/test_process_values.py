"""What holds for the whole process: `defaults()` and the environment."""

from __future__ import annotations

from typing import Any

import pytest

from bulkhead.errors import ConfigurationError
from bulkhead.option_set import Options
from bulkhead.process_values import defaults, disabled, process


def test_strict_and_the_bounds_of_the_registry_are_as_documented() -> None:
    assert process.force_config_validation is True
    assert (process.maximum_lru_size, process.minimum_lru_time, process.maximum_resources) == (500, 300.0, 10_000)


def test_defaults_change_only_what_they_name() -> None:
    defaults(maximum_lru_size=1000)
    defaults(minimum_lru_time=5)
    assert (process.maximum_lru_size, process.minimum_lru_time, process.maximum_resources) == (1000, 5.0, 20_000)
    defaults(maximum_resources=2000)
    assert process.maximum_resources == 2000
    defaults(maximum_resources=None, maximum_lru_size=0)
    assert process.maximum_resources == 10_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"maximum_lru_size": -1},
        {"maximum_lru_size": 5.0},
        {"minimum_lru_time": -0.1},
        {"minimum_lru_time": float("inf")},
        {"maximum_resources": 0},
        {"force_config_validation": None},
        {"force_config_validation": 0},
        {"maximum_lru": 3},
        {"maximum_resources": 499},
        {"maximum_lru_size": 7, "minimum_lru_time": "x"},
    ],
)
def test_a_wrong_value_is_an_error_even_where_lax_and_changes_nothing(wrong: dict[str, Any]) -> None:
    defaults(force_config_validation=False)
    before = process.values
    with pytest.raises(ConfigurationError, match=r"^bulkhead\.defaults: "):
        defaults(**wrong)
    assert process.values is before


def test_strictness_is_a_choice_of_the_process_and_of_each_resource(caplog: pytest.LogCaptureFixture) -> None:
    """RG-34, RG-35, RG-36, RG-37 (here strict is the default)."""
    with pytest.raises(ConfigurationError):
        Options(name="inventory", lumping_interval=-1)
    defaults(force_config_validation=False)
    assert Options(name="inventory", lumping_interval=-1).lumping_interval == 0
    assert caplog.messages == [
        (
            "[BULKHEAD_CONFIG_WARNING]: inventory: lumping_interval must be a number of seconds of at least 0 and at "
            "most 1e+09, not -1 (used instead: lumping_interval=0.0)"
        )
    ]
    with pytest.raises(ConfigurationError):
        Options(name="inventory", lumping_interval=-1, force_config_validation=True)
    defaults(force_config_validation=True)
    assert Options(name="inventory", lumping_interval=-1, force_config_validation=False).lumping_interval == 0


@pytest.mark.parametrize("value", ["1", "true", "yes", "on", "anything"])
def test_a_value_disables(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RG-08, RG-12, RG-16, known fault 74."""
    monkeypatch.setenv("BULKHEAD_TICKETS_DISABLED", value)
    assert [disabled("all"), disabled("tickets"), disabled("circuit_breaker")] == [False, True, False]
    monkeypatch.delenv("BULKHEAD_TICKETS_DISABLED")
    monkeypatch.setenv("BULKHEAD_CIRCUIT_BREAKER_DISABLED", value)
    assert [disabled("all"), disabled("tickets"), disabled("circuit_breaker")] == [False, False, True]


@pytest.mark.parametrize("value", ["0", "false", "False", "FALSE", "", "no", "off", " "])
def test_zero_false_and_empty_do_not_disable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Differs from the reference, where presence counts."""
    for name in ("BULKHEAD_DISABLED", "BULKHEAD_TICKETS_DISABLED", "BULKHEAD_CIRCUIT_BREAKER_DISABLED"):
        monkeypatch.setenv(name, value)
    assert [disabled("all"), disabled("tickets"), disabled("circuit_breaker")] == [False] * 3


def test_the_switch_for_everything_covers_both_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """RG-09, RG-17."""
    monkeypatch.setenv("BULKHEAD_DISABLED", "1")
    assert [disabled("all"), disabled("tickets"), disabled("circuit_breaker")] == [True] * 3


def test_a_switch_never_makes_a_right_configuration_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """RG-25 differs: who disables circuits in an emergency must not stop the application from starting."""
    monkeypatch.setenv("BULKHEAD_CIRCUIT_BREAKER_DISABLED", "1")
    assert Options(name="inventory").circuit_breaker is True

"""Options that are right one by one and wrong together: an error with a way out where strict, a log line where lax."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkhead.errors import ConfigurationError
from bulkhead.option_set import DEFAULTS, ROWS, Options

THREE: dict[str, Any] = {"error_threshold": 3, "error_timeout": 10, "success_threshold": 2}
BACKOFF: dict[str, Any] = {**THREE, "exponential_backoff_error_timeout": True}

# (options, words of the hint, options that lax mode puts back to their defaults)
CONTRADICTIONS: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    (
        {"error_threshold": 2, "error_timeout": 5, "success_threshold": 1, "error_threshold_timeout": 3}
        | {"lumping_interval": 4},
        ("could never open", "lower lumping_interval to 3"),
        ("lumping_interval",),
    ),
    (
        {"error_threshold": 2, "error_timeout": 5, "success_threshold": 1, "lumping_interval": 10},
        ("could never open", "lower lumping_interval to 5"),
        ("lumping_interval",),
    ),
    (
        {"error_threshold": 3, "error_timeout": 4, "success_threshold": 1, "lumping_interval": 3},
        ("could never open", "lower lumping_interval to 2"),
        ("lumping_interval",),
    ),
    (
        {**THREE, "error_threshold_timeout_enabled": False, "error_threshold_timeout": 5},
        ("leave error_threshold_timeout out",),
        ("error_threshold_timeout",),
    ),
    (
        {**THREE, "exponential_backoff_initial_timeout": 2},
        ("exponential_backoff_error_timeout=True",),
        ("exponential_backoff_initial_timeout",),
    ),
    (
        {**THREE, "exponential_backoff_multiplier": 3},
        ("exponential_backoff_error_timeout=True",),
        ("exponential_backoff_multiplier",),
    ),
    (
        {**BACKOFF, "exponential_backoff_initial_timeout": 10},
        ("must be below error_timeout=10",),
        ("exponential_backoff_initial_timeout", "exponential_backoff_error_timeout"),
    ),
    (
        {**BACKOFF, "error_timeout": 0.5},
        ("exponential_backoff_initial_timeout=1 must be below error_timeout=0.5",),
        ("exponential_backoff_error_timeout",),
    ),
    (
        {"tickets": 10, "tenant_quota": 0.5, "tenant_tickets": 3},
        ("tenant_quota stands instead of tenant_tickets",),
        ("tenant_quota",),
    ),
    (
        {"tickets": 10, "tenant_quota": 0.5, "tenant_limits": {"acme": 3}},
        ("tenant_quota stands instead of tenant_limits",),
        ("tenant_quota",),
    ),
    ({"tenant_quota": 0.5}, ("give tickets=",), ("tenant_quota",)),
    ({"tenant_tickets": 0}, ("refuses every call",), ("tenant_tickets",)),
    ({"tickets": 2, "max_waiting": 5}, ("give timeout=",), ("max_waiting",)),
    ({"circuit_counts_busy": True}, ("give tickets=",), ("circuit_counts_busy",)),
    ({"name": "inventory", "identifier": "redis:inventory"}, ("leave name out",), ("name",)),
    (
        {"circuit_breaker": False, "tickets": 2, "error_threshold": 3, "half_open_max_probes": 2},
        ("circuit_breaker is False, so error_threshold and half_open_max_probes can do nothing",),
        ("error_threshold", "half_open_max_probes"),
    ),
]


@pytest.mark.parametrize(("options", "words", "_"), CONTRADICTIONS)
def test_a_contradiction_is_an_error_with_a_way_out(
    options: dict[str, Any], words: tuple[str, ...], _: tuple[str, ...]
) -> None:
    """CB-31, CB-35, CB-44, CB-45, CB-48, CB-49, BH-10, RG-06, RG-35."""
    with pytest.raises(ConfigurationError) as caught:
        Options(**({"identifier": "redis:stock"} | options))
    assert all(word in str(caught.value) for word in words)
    assert str(caught.value).startswith(options.get("identifier", "redis:stock"))


@pytest.mark.parametrize(("options", "_", "back"), CONTRADICTIONS)
def test_lax_the_option_that_the_hint_names_has_its_default_and_one_line_is_logged(
    options: dict[str, Any], _: tuple[str, ...], back: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """RG-34, RG-36 (strict is the default here; lax is per resource or process)."""
    one = Options(force_config_validation=False, **({"identifier": "redis:stock"} | options))
    for name in back:
        assert getattr(one, name) == DEFAULTS[name]
    for name, value in options.items():
        if name not in back:
            assert getattr(one, name) == value
    (record,) = caplog.records
    assert record.name == "bulkhead"
    assert record.getMessage().startswith("[BULKHEAD_CONFIG_WARNING]: redis:")


@pytest.mark.parametrize("lumping", [3.0, 2.5, 0])
def test_lumping_that_just_fits_the_window_is_right(lumping: float) -> None:
    one = Options(error_threshold=2, error_timeout=3, success_threshold=1, lumping_interval=lumping)
    assert one.lumping_interval == lumping


def test_failures_in_a_row_know_no_window_so_any_lumping_fits() -> None:
    one = Options(**THREE, error_threshold_timeout_enabled=False, lumping_interval=100)
    assert one.lumping_interval == 100


@pytest.mark.parametrize(
    "given",
    [
        ("error_threshold",),
        ("error_timeout",),
        ("success_threshold",),
        ("error_threshold", "error_timeout"),
        ("error_timeout", "success_threshold"),
        ("error_threshold", "success_threshold"),
    ],
)
@pytest.mark.parametrize("source", [THREE, DEFAULTS])
def test_the_three_are_given_together_and_those_missing_are_named_together(
    given: tuple[str, ...], source: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """CB-36, RG-02."""
    written = {name: source[name] for name in given}
    missing = " and ".join(name for name in THREE if name not in given)
    with pytest.raises(ConfigurationError, match=f"inventory: {missing} missing"):
        Options(name="inventory", **written)
    one = Options(name="inventory", force_config_validation=False, **written)
    assert one.circuit_breaker is True
    assert all(getattr(one, name) == written.get(name, DEFAULTS[name]) for name in THREE)
    assert len(caplog.records) == 1


def test_other_options_of_the_circuit_go_with_the_three_defaults() -> None:
    assert Options(half_open_resource_timeout=0.5).limits_time


@pytest.mark.parametrize(
    "options",
    [{}, {"call_timeout": 1}, {"tenant_limits": {}}, {"error_threshold": 1, "error_timeout": 1}, {"tickets": -1}],
)
@pytest.mark.parametrize("strict", [True, False])
def test_nothing_to_enforce_is_an_error_even_where_lax(options: dict[str, Any], *, strict: bool) -> None:
    """PR-04, BH-11, RG-05, RG-10, RG-33."""
    with pytest.raises(ConfigurationError) as caught:
        Options(name="inventory", circuit_breaker=False, force_config_validation=strict, **options)
    if not strict:
        assert "there is nothing to enforce" in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"tickets": 1},
        {"tenant_tickets": 1},
        {"tenant_limits": {"acme": 3}},
        {"tickets": 4, "tenant_quota": 0.75},
        {"tenant_connections": 2},
    ],
)
def test_any_tickets_are_something_to_enforce(options: dict[str, Any]) -> None:
    """PR-05, RG-15, RG-26, RG-27."""
    one = Options(name="inventory", circuit_breaker=False, **options)
    assert one.name == "inventory"
    assert one.circuit_breaker is False


def test_a_circuit_alone_is_something_to_enforce() -> None:
    """PR-05, RG-11."""
    assert Options(name="inventory").tickets is None


@pytest.mark.parametrize("strict", [True, False])
def test_a_right_configuration_passes_without_a_line_in_both_modes(
    caplog: pytest.LogCaptureFixture, *, strict: bool
) -> None:
    """RG-38."""
    Options(name="inventory", tickets=10, **THREE, lumping_interval=1, force_config_validation=strict)
    assert not caplog.records


def test_an_allow_list_may_refuse_everybody_else() -> None:
    one = Options(tenant_tickets=0, tenant_limits={"acme": 3})
    assert (one.tenant_limit("acme"), one.tenant_limit("other")) == (3, 0)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.sampled_from([None, "inventory", ""]),
    "identifier": st.sampled_from([None, "redis:stock", "stock"]),
    "tickets": st.sampled_from([None, 1, 10, 0, 2.5]),
    "tenant_tickets": st.sampled_from([None, 0, 3]),
    "tenant_limits": st.sampled_from([None, {}, {"acme": 2}, {"acme": -2}]),
    "tenant_quota": st.sampled_from([None, 0.5, 1, 3]),
    "timeout": st.sampled_from([0, 0.5, -1]),
    "max_waiting": st.sampled_from([None, 3, 0]),
    "circuit_breaker": st.sampled_from([True, False, "adaptive"]),
    "error_threshold": st.integers(0, 5),
    "error_timeout": st.sampled_from([0, 0.5, 1, 10]),
    "success_threshold": st.integers(0, 3),
    "error_threshold_timeout": st.sampled_from([None, 0, 1, 20]),
    "error_threshold_timeout_enabled": st.booleans(),
    "lumping_interval": st.sampled_from([0, 1, 5, -1]),
    "exponential_backoff_error_timeout": st.booleans(),
    "exponential_backoff_initial_timeout": st.sampled_from([0.1, 1, 20]),
    "exponential_backoff_multiplier": st.sampled_from([0, 1.5, 4]),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_whatever_lax_mode_leaves_is_valid_and_keeps_the_circuit(values: dict[str, Any]) -> None:
    try:
        one = Options(**values, force_config_validation=False)
    except ConfigurationError:
        assert values["circuit_breaker"] is False  # nothing to enforce
        return
    again = {name: getattr(one, name) for name in ROWS if getattr(one, name) != DEFAULTS[name]}
    again.pop("force_config_validation")
    if one.circuit_breaker:
        again |= {name: getattr(one, name) for name in THREE}
    assert Options(**again).differences(one) == {}
    assert one.circuit_breaker is (values.get("circuit_breaker") is not False)

"""What each option accepts by itself. The lines of the reference are named by their ids."""

from __future__ import annotations

import copy
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from options.refusing import refused

from bulkhead.errors import BulkheadError, ConfigurationError
from bulkhead.option_set import DEFAULTS, ROWS, Options

THREE = {"error_threshold": 3, "error_timeout": 10, "success_threshold": 2}


def test_no_options_are_a_circuit_with_the_documented_defaults() -> None:
    one = Options()
    assert (one.error_threshold, one.error_timeout, one.success_threshold) == (5, 10.0, 2)
    assert one.circuit_breaker is True
    assert one.tickets is None  # known fault 48: a number of tickets is never guessed
    assert one.window == 10.0
    assert not one.counts_tenants
    assert not one.limits_time


@pytest.mark.parametrize("tickets", [0, -1, 1_000_001, 1.0, True, "4", Decimal(4), math.inf])
def test_tickets_that_are_no_count_in_range_are_refused(tickets: object) -> None:
    """BH-01, BH-02, BH-03, BH-12, RG-22, RG-31, RG-32."""
    text = refused(name="inventory", tickets=tickets)
    assert "inventory: tickets must be a whole number from 1 to 1,000,000" in text


@pytest.mark.parametrize("tickets", [1, 10, 1_000_000, None])
def test_tickets_in_range_are_kept(tickets: int | None) -> None:
    """BH-04, RG-21, RG-26."""
    assert Options(tickets=tickets).tickets == tickets


@pytest.mark.parametrize("name", [123, "", "a\nb", "a\x00", "\x7f", "\x85", "n" * 257, "é" * 129, "\ud800", b"n", True])
def test_a_name_is_text_without_control_characters(name: object) -> None:
    """BH-01."""
    assert "name must be a text of 1 to 256 bytes" in refused(name=name)


@pytest.mark.parametrize("name", ["n", "n" * 256, "é" * 128, "cache-1:6379/0", "日本"])
def test_a_name_of_up_to_256_bytes_is_kept(name: str) -> None:
    assert Options(name=name).name == name


@pytest.mark.parametrize("identifier", ["inventory", "redis:", ":x", "Redis:x", "redis x:y", "redis:a\nb", "", 7])
def test_an_identifier_is_kind_and_name(identifier: object) -> None:
    assert "identifier must be a text like 'kind:name'" in refused(identifier=identifier)


def test_the_prefix_of_an_identifier_is_added_once() -> None:
    """AD-07."""
    assert Options(name="inventory").identify("redis", "cache-1:6379/0") == "redis:inventory"
    assert Options(identifier="redis:inventory").identify("redis", "cache-1:6379/0") == "redis:inventory"
    assert Options().identify("redis", "cache-1:6379/0") == "redis:cache-1:6379/0"


def test_a_name_that_is_a_subclass_of_str_becomes_plain_text() -> None:
    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            return self.upper()

    name = Options(name=Loud("inventory")).name
    assert name == "inventory"
    assert type(name) is str


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("success_threshold", 0),
        ("error_threshold", 0),
        ("error_timeout", -1),
        ("error_timeout", 0),
        ("success_threshold", 1.0),
        ("error_threshold", True),
        ("error_timeout", "10"),
        ("error_timeout", math.nan),
        ("error_timeout", math.inf),
        ("error_timeout", 10**400),
    ],
)
def test_thresholds_and_error_timeout_are_above_zero(option: str, wrong: object) -> None:
    """CB-32, CB-33, CB-34."""
    assert f"{option} must be " in refused(**{**THREE, option: wrong})


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("half_open_resource_timeout", -1),
        ("half_open_resource_timeout", 0),
        ("lumping_interval", -1),
        ("error_threshold_timeout", 0),
        ("error_threshold_timeout", -3),
        ("call_timeout", 0),
        ("call_timeout", -0.5),
        ("timeout", -0.1),
        ("timeout", math.inf),
        ("timeout", False),
        ("timeout", None),
        ("cancel_counts_after", -1),
        ("cancel_counts_after", "soon"),
        ("half_open_max_probes", 0),
        ("half_open_max_probes", None),
        ("error_tenants", 0),
        ("maximum_tenants", 0),
        ("max_waiting", 0),
        ("tenant_tickets", -1),
        ("tenant_connections", 0),
        ("error_threshold_timeout_enabled", 1),
        ("exponential_backoff_error_timeout", "true"),
        ("exponential_backoff_multiplier", 1),
        ("exponential_backoff_multiplier", 0.5),
        ("exponential_backoff_initial_timeout", -1),
        ("circuit_breaker", "adaptive"),
        ("circuit_breaker", None),
        ("circuit_breaker", 1),
        ("tenant_circuit", "yes"),
        ("circuit_counts_busy", 0),
        ("mode", "Shadow"),
        ("mode", None),
        ("mode", []),
        ("dynamic", None),
        ("force_config_validation", "no"),
        ("open_circuit_on_oom", 1),
        ("open_circuit_server_errors", "500"),
        ("ticket_until", "body"),
        ("tenant_quota", "half"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name_with_what_would_do(option: str, wrong: object) -> None:
    """CB-41, CB-45, CB-46, CB-47."""
    text = refused(name="inventory", **{option: wrong})
    assert text.startswith(f"inventory: {option} must be ")
    assert ROWS[option].values.says in text


@pytest.mark.parametrize("quota", [2.0, 1.5, 0, 0.0, -1.0, -0.5, math.nan, True])
def test_a_quota_is_a_share_above_0_and_at_most_1(quota: object) -> None:
    """BH-09, RG-20, RG-29, RG-30. RG-28 differs: the share is of the resource's tickets, and 1 is all of them."""
    assert "tenant_quota must be a share above 0 and at most 1" in refused(tickets=10, tenant_quota=quota)


@pytest.mark.parametrize(
    ("quota", "tickets", "limit"),
    [(0.75, 10, 8), (0.07, 100, 7), (1, 7, 7), (0.001, 10, 1), (0.1, 30, 3), (1e-9, 5, 1)],
)
def test_a_quota_is_rounded_up_from_what_was_written(quota: float, tickets: int, limit: int) -> None:
    """BH-05, BH-27, RG-19, RG-27. 0.07 * 100 is a little above 7 in floating point."""
    one = Options(tickets=tickets, tenant_quota=quota)
    assert one.tenant_limit("acme") == limit
    assert one.counts_tenants


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ticket", "'tickets'"),
        ("error_treshold", "'error_threshold'"),
        ("quota", "'tenant_quota'"),
        ("zzz", "known are"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(name: str, hint: str) -> None:
    """CB-19 (differs from the reference, which ignores it)."""
    for lax in (True, False):
        text = refused(name="inventory", force_config_validation=not lax, **{name: 3})
        assert text.startswith(f"inventory: unknown option '{name}'")
        assert hint in text


@pytest.mark.parametrize("name", ["scope", "min_tickets", "cluster_url", "minimum_calls", "slow_call_duration"])
def test_options_of_other_versions_are_unknown(name: str) -> None:
    assert f"unknown option '{name}'" in refused(**{name: None})


def test_thread_safety_cannot_be_disabled() -> None:
    """RG-04, RG-40 (differ): refused, since there is nothing to disable."""
    assert "thread safety costs nothing here" in refused(thread_safety_disabled=False)


def test_options_are_given_by_name() -> None:
    make: Any = Options
    with pytest.raises(ConfigurationError, match="given by name"):
        make("inventory")


def test_an_error_is_ours_and_a_value_error() -> None:
    with pytest.raises(ValueError, match="tickets"):
        Options(tickets=-1)
    assert issubclass(ConfigurationError, BulkheadError)


def test_a_value_whose_repr_raises_or_is_endless_makes_a_short_error() -> None:
    class Nasty:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert len(refused(tickets=Nasty())) < 300
    assert len(refused(tickets="x" * 10_000)) < 300
    assert len(refused(tickets=10**5000)) < 300
    assert len(refused(name="x" * 10_000)) < 400


def test_more_tickets_for_a_tenant_than_there_are_is_allowed() -> None:
    assert Options(tickets=2, tenant_tickets=5).tenant_limit("acme") == 5


# extras of drivers


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("http", {"open_circuit_on_oom": False}),
        ("redis", {"open_circuit_server_errors": True}),
        ("postgres", {"ticket_until": "headers"}),
        ("redis", {"tenant_connections": 4}),
        ("call", {"tenant_connections": 4}),
    ],
)
def test_an_option_of_another_driver_is_refused_where_the_client_is_built(kind: str, extra: dict[str, Any]) -> None:
    (option,) = extra
    with pytest.raises(ConfigurationError, match=f"inventory: {option} is an option of .* not of {kind}"):
        Options(name="inventory", **extra).for_kind(kind)


def test_an_option_of_this_driver_passes() -> None:
    for kind, extra in (("redis", {"open_circuit_on_oom": False}), ("http", {"ticket_until": "headers"})):
        one = Options(**extra)
        assert one.for_kind(kind) is one
    one = Options(open_circuit_on_oom=True)
    assert one.for_kind("valkey") is one  # a kind of somebody else's adapter


def test_lax_an_option_of_another_driver_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    one = Options(name="inventory", ticket_until="headers", force_config_validation=False).for_kind("redis")
    assert one.ticket_until is None
    assert len(caplog.messages) == 1


ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.floats(),
    st.sampled_from(["auto", "shadow", "redis:x", ""]),
    st.text(),
)


@given(st.dictionaries(st.sampled_from(sorted(ROWS)), ANY, max_size=6))
def test_any_values_make_valid_options_or_a_configuration_error(values: dict[str, Any]) -> None:
    try:
        one = Options(**values)
    except ConfigurationError:
        return
    for name, value in values.items():
        kept = getattr(one, name)
        lax = values.get("force_config_validation") is False  # then a wrong value is logged, and its default holds
        assert kept == value or (value is None and DEFAULTS[name] is None) or (lax and kept == DEFAULTS[name])
    assert copy.copy(one) is one
    assert one.window > 0

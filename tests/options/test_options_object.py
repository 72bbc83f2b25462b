"""Options as a value: frozen, comparable, short in print, changed only by making another one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkhead.errors import ConfigurationError
from bulkhead.option_arguments import options, taking_options
from bulkhead.option_set import DEFAULTS, ROWS, Options, process_table, table

THREE: dict[str, Any] = {"error_threshold": 3, "error_timeout": 10, "success_threshold": 2}


def test_options_cannot_be_changed() -> None:
    one = Options(tickets=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.tickets = 4  # type: ignore[misc]
    assert one.tickets == 3


def test_a_copy_is_the_object_itself() -> None:
    """Driver libraries deep-copy their keyword arguments."""
    one = Options(tickets=3, tenant_limits=lambda _: 3)
    assert copy.copy(one) is one
    assert copy.deepcopy({"bulkhead": one})["bulkhead"] is one


def test_options_are_equal_by_value() -> None:
    def make() -> Options:
        return Options(name="inventory", tickets=3, tenant_limits={"acme": 1}, is_failure=[OSError], **THREE)

    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != Options(name="inventory", tickets=4)
    assert len({Options(), "Options()"}) == 2


def test_an_int_and_a_float_of_one_value_are_the_same_option() -> None:
    assert Options(**{**THREE, "error_timeout": 10}) == Options(**{**THREE, "error_timeout": 10.0})


def test_options_pickle() -> None:
    one = Options(name="inventory", tickets=3, tenant_limits={"acme": 1}, is_failure=OSError, circuit_breaker=False)
    again = pickle.loads(pickle.dumps(one))  # noqa: S301 (our own)
    assert again == one
    assert again.tenant_limit("acme") == 1
    assert again.window == one.window


def test_print_is_short_and_tells_what_differs_from_the_defaults() -> None:
    assert repr(Options()) == "Options()"
    assert repr(Options(name="inventory", tickets=3)) == "Options(name='inventory', tickets=3)"
    long = Options(
        name="n" * 256,
        tenant_limits={str(number): number for number in range(1000)},
        is_failure=tuple([OSError] * 500),
    )
    assert len(repr(long)) <= 220
    assert "<1000 limits>" in repr(Options(tenant_limits={str(number): 1 for number in range(1000)}))


def test_differences_name_both_values_and_leave_names_out() -> None:
    """Known fault 49: two configurations of one key are told apart."""
    one = Options(name="stock", tickets=2, error_threshold=3, error_timeout=10, success_threshold=2)
    two = Options(identifier="redis:stock", tickets=5, error_threshold=3, error_timeout=10, success_threshold=2)
    assert one.differences(two) == {"tickets": (2, 5)}
    assert one.differences(one) == {}
    same, other = (lambda _: 1), (lambda _: 1)
    assert Options(tenant_limits=same).differences(Options(tenant_limits=same)) == {}
    assert list(Options(tenant_limits=same).differences(Options(tenant_limits=other))) == ["tenant_limits"]


def test_replace_is_validated_and_keeps_the_rest() -> None:
    one = Options(name="inventory", tickets=3, **THREE)
    assert one.replace(tickets=9).tickets == 9
    assert one.replace(tickets=9).error_threshold == 3
    assert one.replace(error_timeout=5).window == 5
    for wrong in ({"tickets": 0}, {"tenant_quota": 0.5, "tickets": None}, {"ticket": 3}, {"lumping_interval": 9}):
        with pytest.raises(ConfigurationError, match="inventory: "):
            one.replace(**wrong)
    assert one.tickets == 3


def test_replace_can_switch_a_part_off_and_on_again_without_losing_its_values() -> None:
    one = Options(name="inventory", tickets=3, **THREE, exponential_backoff_error_timeout=True)
    off = one.replace(circuit_breaker=False)
    assert off.replace(circuit_breaker=True) == one
    slow = Options(**THREE, exponential_backoff_error_timeout=True, exponential_backoff_multiplier=3)
    assert slow.replace(exponential_backoff_error_timeout=False).exponential_backoff_multiplier == 3
    with pytest.raises(ConfigurationError, match="can do nothing"):
        off.replace(lumping_interval=1)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace came with 3.13")
def test_copy_replace_is_replace() -> None:
    function: Any = vars(copy)["replace"]
    assert function(Options(tickets=3), tickets=4).tickets == 4


def test_options_returns_the_argument_of_a_client() -> None:
    assert options(name="inventory", tickets=3) == {"bulkhead": Options(name="inventory", tickets=3)}
    every: Any = options
    for wrong in ({"tickets": 0}, {"ticket": 1}):
        with pytest.raises(ConfigurationError):
            every(**wrong)
    assert list(inspect.signature(options).parameters) == list(ROWS)
    assert list(inspect.signature(Options).parameters) == list(ROWS)


@taking_options
def made(name: str, options: Options | None) -> Options | None:
    """A function of ours that takes options."""
    assert name
    return options


def test_a_function_that_takes_options_gets_them_as_one_object() -> None:
    assert made("inventory") is None
    assert made("inventory", tickets=3) == Options(name="inventory", tickets=3)
    assert made("inventory", identifier="redis:x") == Options(identifier="redis:x")
    assert made("inventory", **options(tickets=3)) == Options(name="inventory", tickets=3)
    assert made.__doc__ == "A function of ours that takes options."
    with pytest.raises(ConfigurationError, match="not both"):
        made("inventory", tickets=3, **options(tickets=4))
    with pytest.raises(ConfigurationError, match="answer of a callable"):
        made("inventory", tickets=3, dynamic=True)
    function: Any = made
    with pytest.raises(ConfigurationError, match="given by name"):
        function("inventory", 16)


def test_the_table_of_the_docs_has_one_line_per_option_with_its_default() -> None:
    lines = table().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert [line[0] for line in cells] == list(ROWS)
    for name, default, _unit, only_for, meaning in cells:
        value = DEFAULTS[name]
        assert default.replace(",", "").strip('"') == str(value)
        assert only_for == ", ".join(ROWS[name].kinds)
        assert meaning == ROWS[name].meaning
    assert len(process_table().splitlines()) == 2 + 4


def test_every_option_has_a_row_and_every_default_is_accepted() -> None:
    public = [one.name for one in dataclasses.fields(Options) if one.init]
    assert public == list(ROWS)
    for name, one in ROWS.items():
        kept = one.values.keep(DEFAULTS[name])
        assert (kept, type(kept)) == (DEFAULTS[name], type(DEFAULTS[name]))
        assert one.meaning


@given(tickets=st.one_of(st.none(), st.integers(1, 1_000_000)), wait=st.floats(0, 1e6), name=st.text(min_size=1))
def test_equal_options_have_equal_hashes_and_survive_pickling(tickets: int | None, wait: float, name: str) -> None:
    try:
        one = Options(name=name, tickets=tickets, timeout=wait)
    except ConfigurationError:
        return
    again = pickle.loads(pickle.dumps(one))  # noqa: S301 (our own)
    assert (again, hash(again)) == (one, hash(one))
    assert "\n" not in repr(one)

"""Options that contradict each other, or together protect nothing. One function per rule.

A rule looks at the values, each of which is valid by itself, and at the names that were written; it returns None, or
what is wrong (with the way out) and which options go back to their defaults where validation is lax. Rules run in
order, on what the ones before them left. The last one, "nothing to enforce", is an error even in lax mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from bulkhead.option_rows import Row


class Fault(NamedTuple):
    """What is wrong, and the options that go back to their defaults."""

    says: str
    options: tuple[str, ...] = ()


class Complain(Protocol):
    """Raises, or writes the log line and returns."""

    def __call__(self, says: str, /, *, used: tuple[str, ...] = (), always: bool = False) -> None:
        """`used` = the options that get their defaults; `always` = raise even in lax mode."""


Values = Mapping[str, Any]
Rule = Callable[[Values, frozenset[str]], Fault | None]
_BACKOFF = ("exponential_backoff_initial_timeout", "exponential_backoff_multiplier")
_TICKETS = ("tickets", "tenant_tickets", "tenant_limits", "tenant_quota", "tenant_connections")


def settle(
    values: dict[str, Any],
    given: frozenset[str],
    rows: Mapping[str, Row],
    defaults: Mapping[str, Any],
    complain: Complain,
) -> None:
    """Apply the rules to the values, in place."""
    circuit = frozenset(name for name, one in rows.items() if one.part == "circuit")
    fault = _circuit_off(values, given & circuit)
    if fault is None and values["circuit_breaker"]:
        fault = _three_or_none(given, defaults)
    _mend(values, defaults, complain, fault)
    if fault is not None:
        given -= set(fault.options)
    for rule in RULES:
        _mend(values, defaults, complain, rule(values, given))
    if not values["circuit_breaker"] and all(values[name] is None for name in _TICKETS):
        complain(
            "there is nothing to enforce: circuit_breaker is False and no tickets are given; give tickets= or "
            "tenant_tickets=, or leave bulkhead= out",
            always=True,
        )


def _mend(values: dict[str, Any], defaults: Values, complain: Complain, fault: Fault | None) -> None:
    if fault is None:
        return
    complain(fault.says, used=fault.options)
    for name in fault.options:
        values[name] = defaults[name]


def _circuit_off(values: Values, given: frozenset[str]) -> Fault | None:
    if values["circuit_breaker"] or not given:
        return None
    names = tuple(sorted(given))
    return Fault(f"circuit_breaker is False, so {_list(names)} can do nothing; leave one side out", names)


def _three_or_none(given: frozenset[str], defaults: Values) -> Fault | None:
    three = ("error_threshold", "error_timeout", "success_threshold")
    missing = [name for name in three if name not in given]
    if len(missing) in (0, 3):
        return None
    there = ", ".join(f"{name}={defaults[name]:g}" for name in missing)
    return Fault(
        f"{_list(missing)} missing: error_threshold, error_timeout and success_threshold belong together, "
        f"give all three or none; the defaults would be {there}"
    )


def _two_names(values: Values, _: frozenset[str]) -> Fault | None:
    if values["name"] is None or values["identifier"] is None:
        return None
    return Fault("name and identifier are both given; identifier is the name in full, leave name out", ("name",))


def _window_off(values: Values, _: frozenset[str]) -> Fault | None:
    if values["error_threshold_timeout_enabled"] or values["error_threshold_timeout"] is None:
        return None
    return Fault(
        "error_threshold_timeout is the window that error_threshold_timeout_enabled=False switches off; "
        "leave error_threshold_timeout out",
        ("error_threshold_timeout",),
    )


def _never_opens(values: Values, _: frozenset[str]) -> Fault | None:
    if not values["error_threshold_timeout_enabled"]:
        return None
    threshold, lumping = values["error_threshold"], values["lumping_interval"]
    window = values["error_threshold_timeout"] or values["error_timeout"]
    if lumping * (threshold - 1) <= window:
        return None
    return Fault(
        f"this circuit could never open: {threshold} failures that count apart, lumping_interval={lumping:g} s, do not "
        f"fit in a window of {window:g} s; lower lumping_interval to {window / (threshold - 1):g} or less",
        ("lumping_interval",),
    )


def _backoff_off(values: Values, given: frozenset[str]) -> Fault | None:
    idle = tuple(name for name in _BACKOFF if name in given)
    if values["exponential_backoff_error_timeout"] or not idle:
        return None
    return Fault(f"{_list(idle)} can do nothing without exponential_backoff_error_timeout=True", idle)


def _backoff_too_long(values: Values, _: frozenset[str]) -> Fault | None:
    first, longest = values["exponential_backoff_initial_timeout"], values["error_timeout"]
    if not values["exponential_backoff_error_timeout"] or first < longest:
        return None
    return Fault(
        f"exponential_backoff_initial_timeout={first:g} must be below error_timeout={longest:g}, up to which it grows",
        ("exponential_backoff_error_timeout", *_BACKOFF),
    )


def _quota_and_tickets(values: Values, _: frozenset[str]) -> Fault | None:
    others = [name for name in ("tenant_tickets", "tenant_limits") if values[name] is not None]
    if values["tenant_quota"] is None or not others:
        return None
    return Fault(f"tenant_quota stands instead of {_list(others)}; leave one side out", ("tenant_quota",))


def _quota_of_nothing(values: Values, _: frozenset[str]) -> Fault | None:
    if values["tenant_quota"] is None or values["tickets"] is not None:
        return None
    return Fault("tenant_quota is a share of tickets, and tickets is not given; give tickets=", ("tenant_quota",))


def _nobody_admitted(values: Values, _: frozenset[str]) -> Fault | None:
    if values["tenant_tickets"] != 0 or values["tenant_limits"] is not None:
        return None
    return Fault(
        "tenant_tickets=0 refuses every call of every tenant; it makes sense beside tenant_limits, which names those "
        "that may call. Give at least 1, or None for no limit",
        ("tenant_tickets",),
    )


def _nobody_waits(values: Values, _: frozenset[str]) -> Fault | None:
    if values["max_waiting"] is None or values["timeout"] > 0:
        return None
    return Fault("max_waiting can do nothing while timeout is 0: nobody waits; give timeout=", ("max_waiting",))


def _nobody_refused(values: Values, _: frozenset[str]) -> Fault | None:
    if not values["circuit_counts_busy"] or any(values[name] is not None for name in _TICKETS):
        return None
    return Fault(
        "circuit_counts_busy can do nothing without tickets: no call is refused one; give tickets= or tenant_tickets=",
        ("circuit_counts_busy",),
    )


RULES: tuple[Rule, ...] = (
    _two_names,
    _window_off,
    _never_opens,
    _backoff_off,
    _backoff_too_long,
    _quota_and_tickets,
    _quota_of_nothing,
    _nobody_admitted,
    _nobody_waits,
    _nobody_refused,
)


def _list(names: tuple[str, ...] | list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

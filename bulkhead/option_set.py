"""Options: what a protected resource can be told, validated in one place, at construction.

An option exists once: as a field here, with its row. Checks, the table of the docs and the set of known names follow
from the rows; options that contradict each other are found by `option_rules`. Nothing here looks at a driver, a
resource or a clock. To add an option, add its field, and a rule where it can contradict others.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast, final

from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import (
    Refused,
    Values,
    check_known,
    choice,
    defaults_of,
    either,
    failures,
    flag,
    identifier_text,
    is_limit,
    keep,
    limits,
    markdown,
    name_text,
    number,
    row,
    rows_of,
    shown,
    whole,
)
from bulkhead.option_rules import settle
from bulkhead.process_values import ProcessValues, defaults, disabled, process

__all__ = ["Options", "defaults", "disabled", "process", "process_table", "table"]

KINDS: Final = ("redis", "postgres", "sql", "http", "cell", "call")
_THREE: Final = frozenset(("error_threshold", "error_timeout", "success_threshold"))

_log = logging.getLogger("bulkhead")
_LIMIT = whole(1, none="no limit")
_FRACTION = number("a share", 0.0, 1.0, none="no share")


def _seconds(*, above: bool = False, none: str = "") -> Values:
    return number("a number of seconds", 0.0, above=above, none=none)


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Options:
    """The options of one protected resource. Immutable, checked when made, equal by value.

    Invariant: an Options object is always valid and free of contradictions. Where validation is strict (the default)
    a wrong option raises ConfigurationError with a hint; where it is lax (`force_config_validation=False`) it is
    logged and the option has its default.
    """

    name: str | None = row(
        None,
        "",
        "the resource's name, host:port[/db] where none is given; give it a stable one. "
        "identifier = `<kind>:<name>`, kind = redis, postgres, sql, http or call",
        Values("a text of 1 to 256 bytes without control characters", name_text),
        part="form",
        marks=("restart",),
    )
    identifier: str | None = row(
        None,
        "",
        "the identifier in full, where sharing across drivers is wanted",
        Values("a text like 'kind:name' of at most 256 bytes without control characters", identifier_text),
        part="form",
        marks=("restart",),
    )
    tickets: int | None = row(
        None, "calls", "calls in flight on the resource, all tenants together; None = no limit", _LIMIT, part="tickets"
    )
    tenant_tickets: int | None = row(
        None,
        "calls",
        "calls in flight per tenant; None = no limit; 0 only beside tenant_limits",
        whole(0, none="no limit"),
        part="tickets",
    )
    tenant_limits: Mapping[str, int | None] | Callable[[str], int | None] | None = row(  # noqa: RUF009 (a field)
        None,
        "calls",
        "mapping or callable tenant -> limit (tiers); None from it = tenant_tickets, 0 = refuse",
        Values(
            "a mapping of tenant ids to whole numbers from 0 or None, or a callable that takes a tenant id, or None",
            limits,
        ),
        part="tickets",
    )
    tenant_quota: float | None = row(
        None,
        "share",
        "instead of tenant_tickets: share of `tickets` (0 < q <= 1) that one tenant may hold, rounded up",
        _FRACTION,
        part="tickets",
    )
    tenant_connections: int | None = row(
        None,
        "connections",
        "connections one tenant may have checked out of this engine's or pool's (SQLAlchemy, psycopg_pool)",
        _LIMIT,
        part="tickets",
        kinds=("sql", "postgres"),
    )
    timeout: float = row(0.0, "s", "how long a call may wait for tickets; 0 = it never waits", _seconds())
    max_waiting: int | None = row(
        None,
        "calls",
        "waiters per pool; None = as many as the pool has tickets",
        whole(1, none="the pool's own limit"),
    )
    call_timeout: float | None = row(
        None,
        "s",
        "how long one attempt may last (httpx: until the headers). Longer: one failure, and the attempt is ended "
        "where the driver allows it; a direct synchronous call is only counted",
        _seconds(above=True, none="no limit"),
    )
    cancel_counts_after: float | Literal["auto"] | None = row(
        "auto",
        "s",
        'a cancelled attempt that lasted at least this long is a failure. "auto" = call_timeout, else half the '
        "driver's read time-out, else 5; None = never",
        either("auto", _seconds(none="never")),
    )
    circuit_breaker: bool = row(True, "", "False = tickets only", flag())
    error_threshold: int = row(
        5,
        "failures",
        "failures in the window that open the circuit; with error_timeout and success_threshold: all three or none",
        whole(1),
        part="circuit",
    )
    error_timeout: float = row(
        10.0, "s", "how long the circuit stays open before a probe", _seconds(above=True), part="circuit"
    )
    success_threshold: int = row(2, "successes", "successes of probes that close the circuit", whole(1), part="circuit")
    error_threshold_timeout: float | None = row(
        None,
        "s",
        "length of the failure window; None = error_timeout",
        _seconds(above=True, none="error_timeout"),
        part="circuit",
    )
    error_threshold_timeout_enabled: bool = row(
        True, "", "False = failures in a row open it, whatever the time between them", flag(), part="circuit"
    )
    half_open_max_probes: int = row(1, "calls", "probes in flight while half-open", whole(1), part="circuit")
    half_open_resource_timeout: float | None = row(
        None,
        "s",
        "driver time-out during a probe; None = the driver's own",
        _seconds(above=True, none="the driver's own"),
        part="circuit",
    )
    lumping_interval: float = row(0.0, "s", "failures closer together than this count once", _seconds(), part="circuit")
    exponential_backoff_error_timeout: bool = row(
        False, "", "open periods grow (1, 2, 4 … s) up to error_timeout", flag(), part="circuit"
    )
    exponential_backoff_initial_timeout: float = row(
        1.0, "s", "the first open period, below error_timeout", _seconds(above=True), part="circuit"
    )
    exponential_backoff_multiplier: float = row(
        2.0, "", "the factor between two open periods, above 1", number("a number", 1.0, 1e6), part="circuit"
    )
    tenant_circuit: bool = row(
        False,
        "",
        "besides the shared circuit one per (identifier, tenant), fed by that tenant's outcomes",
        flag(),
        part="circuit",
    )
    error_tenants: int = row(
        1,
        "tenants",
        "the shared circuit opens only when failures came from this many different tenants, or when no other tenant "
        "had a success in the window",
        whole(1),
        part="circuit",
    )
    circuit_counts_busy: bool = row(False, "", "a call that got no ticket is a failure", flag(), part="circuit")
    is_failure: type[BaseException] | Sequence[type[BaseException]] | Callable[[Exception], bool | None] | None = row(  # noqa: RUF009 (a field)
        None,
        "",
        "exception class, tuple of classes, or callable(exception) -> True, False or None (= the adapter decides). "
        "Without an adapter every Exception is a failure",
        Values("an exception class, a tuple of them, or a callable that takes the exception, or None", failures),
        marks=("code",),
    )
    mode: Literal["enforce", "shadow", "off"] = row(
        "enforce",
        "",
        '"shadow" = decide and announce, but let every call run; "off" = do nothing',
        choice("enforce", "shadow", "off"),
    )
    maximum_tenants: int = row(10_000, "tenants", "tenant entries kept per resource", whole(1), marks=("restart",))
    dynamic: bool = row(
        False, "", "in the answer of a callable: ask it on each call", flag(), part="form", marks=("code",)
    )
    force_config_validation: bool | None = row(
        None,
        "",
        "True = a wrong option raises, False = it is logged and its default holds; None = as in `defaults()`",
        flag(none="as in bulkhead.defaults()"),
        part="form",
    )
    open_circuit_on_oom: bool | None = row(
        None,
        "",
        "whether redis' out-of-memory error is a failure; None = True",
        flag(none="the driver's default"),
        kinds=("redis",),
    )
    open_circuit_server_errors: bool | None = row(
        None,
        "",
        "whether an HTTP 5xx status is a failure; None = False",
        flag(none="the driver's default"),
        kinds=("http",),
    )
    ticket_until: Literal["closed", "headers"] | None = row(
        None,
        "",
        'when a request gives its ticket back: "closed" = with the response, "headers" = when those arrived; '
        'None = "closed"',
        choice("closed", "headers", none="the driver's default"),
        kinds=("http",),
    )

    # Worked out once, for the core.
    window: float = field(init=False, compare=False)
    """Length of the failure window in seconds."""
    counts_tenants: bool = field(init=False, compare=False)
    """Whether any limit is per tenant (connections apart)."""
    limits_time: bool = field(init=False, compare=False)
    """Whether a call can have a time limit."""
    _tenant_default: int | None = field(init=False, compare=False)
    _said: list[str] = field(init=False, compare=False)
    _given: frozenset[str] = field(init=False, compare=False)

    if not TYPE_CHECKING:  # checkers take names and types from the fields, `help` from the signature of __init__

        def __new__(cls, *positional: object, **given: object) -> Self:
            """Names are checked before dataclasses see them, and which were given is remembered."""
            if positional:
                raise ConfigurationError(f"options are given by name, like tickets=16, not as {shown(positional[0])}")
            check_known(given, ROWS, _who(given))
            return _blank(frozenset(given))

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ROWS}
        values = _validated(given, self._given)
        for name, value in values.items():
            if value is not given[name]:
                object.__setattr__(self, name, value)
        quota, tickets = self.tenant_quota, self.tickets
        per_tenant = self.tenant_tickets
        if quota is not None and tickets is not None:
            # As a fraction of what was written: 0.07 * 100 is a little above 7 in floating point.
            per_tenant = math.ceil(Fraction(repr(quota)) * tickets)
        derived: dict[str, object] = {
            "window": self.error_threshold_timeout or self.error_timeout,
            "counts_tenants": per_tenant is not None or self.tenant_limits is not None,
            "limits_time": self.call_timeout is not None or self.half_open_resource_timeout is not None,
            "_tenant_default": per_tenant,
            "_said": [],
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def tenant_limit(self, tenant: str | None) -> int | None:
        """Calls that this tenant may have in flight; None = no limit. Never raises.

        tenant_limits first; None from it, an answer that is no limit, and a callable that raises (said once in the
        log) = tenant_tickets. For no tenant: what a tenant without a limit of its own gets.
        """
        tiers = self.tenant_limits
        if tiers is None or tenant is None:
            return self._tenant_default
        if isinstance(tiers, Mapping):
            limit = tiers.get(tenant)
        else:
            try:
                limit = tiers(tenant)
            except Exception as error:  # noqa: BLE001 (the user's code: accounting must not raise into a call)
                self._say_once("tenant_limits", f"raised {type(error).__name__}; tenant_tickets holds")
                limit = None
            if not is_limit(limit):
                self._say_once("tenant_limits", f"answered {shown(limit)}, no limit; tenant_tickets holds")
                limit = None
        return self._tenant_default if limit is None else limit

    def counts(self, error: BaseException) -> bool | None:
        """What is_failure says of this error: True or False; None = it says nothing, the adapter decides."""
        rule = self.is_failure
        if rule is None:
            return None
        if isinstance(rule, (type, tuple)):
            return isinstance(error, rule)
        try:
            answer = cast("Callable[[BaseException], bool | None]", rule)(error)
        except Exception as fault:  # noqa: BLE001 (the user's code: accounting must not raise into a call)
            self._say_once("is_failure", f"raised {type(fault).__name__}; the adapter decides")
            return None
        return None if answer is None else bool(answer)

    def identify(self, kind: str, default_name: str) -> str:
        """The identifier for a client of this kind that goes by `default_name` (host:port[/db]) without options."""
        return self.identifier or f"{kind}:{self.name or default_name}"

    def for_kind(self, kind: str) -> Options:
        """These options for a driver of this kind; ConfigurationError (lax: left out) for those of other drivers."""
        changes: dict[str, None] = {}
        for name, one in ROWS.items():
            if one.kinds and getattr(self, name) is not None and kind not in one.kinds and kind in KINDS:
                says = f"{name} is an option of {' and '.join(one.kinds)} clients, not of {kind}; leave it out"
                self.complain(says)
                changes[name] = None
        return self.replace(**changes) if changes else self

    def replace(self, **changes: object) -> Options:
        """These options with changes, validated again; what is not named stays, also where it has no use now."""
        check_known(changes, ROWS, self.label)
        made = _blank(frozenset(changes) - _THREE)
        together: dict[str, Any] = self._values() | changes
        Options.__init__(made, **together)
        return made

    def moved(self, before: Options, after: Options) -> Options:
        """These options with what differs between two others changed as there; ConfigurationError as in `replace`.

        Nothing counts as given, so an option that goes back to its default is no option without use.
        """
        made = _blank(frozenset())
        changes = {name: new for name, (_, new) in before.differences(after).items()}
        together: dict[str, Any] = self._values() | changes
        Options.__init__(made, **together)
        return made

    def differences(self, other: Options) -> dict[str, tuple[Any, Any]]:
        """Options that make another resource of the same identifier: name -> (here, there). Names do not count."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name, one in ROWS.items() if one.part != "form"}
        return {name: pair for name, pair in pairs.items() if pair[0] is not pair[1] and pair[0] != pair[1]}

    @property
    def label(self) -> str:
        """Whose options these are, for texts: the identifier, else the name, else "options"."""
        return _who(self._values())

    def complain(self, says: str) -> None:
        """Raise ConfigurationError with this text, or where these options are lax write the warning line."""
        _complain(self._values(), says)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ROWS}

    def _say_once(self, option: str, says: str) -> None:
        if option not in self._said:
            self._said.append(option)
            _log.warning("%s: %s %s (said once)", self.label, option, says)

    __replace__ = replace  # copy.replace of Python 3.13

    def __hash__(self) -> int:
        """By value; what may not be hashable is left out."""
        return hash(tuple(getattr(self, name) for name in ROWS if name not in ("tenant_limits", "is_failure")))

    def __copy__(self) -> Options:
        return self

    def __deepcopy__(self, memo: object, /) -> Options:
        return self

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Options], tuple[dict[str, Any]]]:
        changed = {name: value for name, value in self._values().items() if value != DEFAULTS[name]}
        if isinstance(self.tenant_limits, Mapping):
            changed["tenant_limits"] = dict(self.tenant_limits)
        return _restored, (changed,)

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={_brief(value)}" for name, value in self._values().items() if value != DEFAULTS[name])
        return f"Options({told if len(told) <= 200 else told[:199] + '…'})"


ROWS: Final = rows_of(Options)
DEFAULTS: Final = defaults_of(Options)
vars(Options.__new__)["__signature__"] = inspect.signature(Options.__init__)


def _blank(given: frozenset[str]) -> Options:
    made = object.__new__(Options)
    object.__setattr__(made, "_given", given)
    return made


def _restored(values: dict[str, Any]) -> Options:
    """An unpickled Options. They were valid together, so nothing counts as given."""
    check_known(values, ROWS, _who(values))
    made = _blank(frozenset())
    Options.__init__(made, **values)
    return made


def _validated(values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
    """The values to keep: checked one by one, then together."""
    kept = dict(values)
    for name, one in ROWS.items():
        try:
            kept[name] = keep(name, kept[name], one)
        except Refused as refused:
            _complain(values, str(refused), used=(name,))
            kept[name] = DEFAULTS[name]
            given -= {name}
    settle(kept, given, ROWS, DEFAULTS, functools.partial(_complain, values))
    return kept


def _complain(values: Mapping[str, Any], says: str, *, used: tuple[str, ...] = (), always: bool = False) -> None:
    """Raise, or where validation is lax write the log line."""
    strict = values["force_config_validation"]
    if not isinstance(strict, bool):  # None, or itself a wrong value
        strict = process.force_config_validation
    who = _who(values)
    if strict or always:
        raise ConfigurationError(f"{who}: {says}")
    ending = f" (used instead: {', '.join(f'{name}={DEFAULTS[name]!r}' for name in used)})" if used else ""
    _log.warning("[BULKHEAD_CONFIG_WARNING]: %s: %s%s", who, says, ending)


def _who(values: Mapping[str, Any]) -> str:
    """Whose options these are, for a text: identifier, else name."""
    for name in ("identifier", "name"):
        one = values.get(name)
        if one is not None:
            return one if isinstance(one, str) and one.isprintable() and 0 < len(one) <= 256 else shown(one)
    return "options"


def _brief(value: object) -> str:
    if isinstance(value, Mapping):
        return f"<{len(value)} limits>"
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, value))})"
    return getattr(value, "__qualname__", None) or shown(value)


def table() -> str:
    """The options as a Markdown table, for README and docs."""
    return markdown(Options, "option")


def process_table() -> str:
    """The values of `bulkhead.defaults()` as a Markdown table."""
    return markdown(ProcessValues, "value")

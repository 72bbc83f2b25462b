"""What an option is made of: its row (unit, meaning, accepted values), and the kinds of values that rows accept.

It knows no option by name; those are the fields of `option_set.Options` and `process_values.ProcessValues`. A kind of
value says in words what it accepts (that text is the hint) and returns the value to keep.
"""

from __future__ import annotations

import difflib
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from bulkhead.errors import ConfigurationError
from bulkhead.tenancy import tenant_text, text_fault

T = TypeVar("T")
Mark = Literal["restart", "secret", "code"]

MAXIMUM_COUNT = 1_000_000
MAXIMUM_SECONDS = 1e9  # 31 years; a thread cannot wait much longer (threading.TIMEOUT_MAX)

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*:.", re.DOTALL)
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


class Refused(Exception):
    """A value is not accepted. Its text, if any, replaces the general one of its kind."""


class Values(NamedTuple):
    """One kind of value: `says` completes "must be …"; `keep` returns the value to keep, or raises Refused."""

    says: str
    keep: Callable[[Any], Any]


class Row(NamedTuple):
    """What stands beside an option's name and default: the documentation and the check."""

    unit: str
    meaning: str
    values: Values
    part: str
    kinds: tuple[str, ...]
    marks: tuple[Mark, ...] = ()


def row(
    default: T,
    unit: str,
    meaning: str,
    values: Values,
    *,
    part: str = "",
    kinds: tuple[str, ...] = (),
    marks: tuple[Mark, ...] = (),
) -> T:
    """A dataclass field with its row. `part` groups options for rules; `kinds` = the drivers that know it, () = all.

    `marks`: "restart" = a reload of the settings does not change it; "secret" = its value is shown nowhere, error
    texts included; "code" = it cannot stand in a settings file.
    """
    one = Row(unit, meaning, values, part, kinds, marks)
    return field(default=default, repr="secret" not in marks, metadata={"row": one})


def rows_of(table: type) -> dict[str, Row]:
    """The rows of a dataclass by option name, in order."""
    return {one.name: one.metadata["row"] for one in fields(table) if "row" in one.metadata}


def defaults_of(table: type) -> dict[str, Any]:
    """The default of each option of a dataclass."""
    return {one.name: one.default for one in fields(table) if "row" in one.metadata}


def shown(value: object) -> str:
    """The value for an error text: short, and never an exception of its own."""
    try:
        return _short.repr(value)
    except ValueError:  # an int of more digits than Python writes out
        return f"<{type(value).__name__}>"


def keep(name: str, value: object, one: Row) -> object:
    """The checked value of the option; Refused with the whole sentence if it is not accepted."""
    try:
        return one.values.keep(value)
    except Refused as refused:
        told = "what was given (its value is not shown)" if "secret" in one.marks else f"{shown(value)}{refused}"
        raise Refused(f"{name} must be {one.values.says}, not {told}") from None


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint for a name that is not known: the nearest one that is, else all of them."""
    names = list(known)
    close = difflib.get_close_matches(str(word), names, 1, 0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are {', '.join(names)}" if names else "none is known"


def check_known(given: Iterable[object], known: Iterable[str], who: str) -> None:
    """ConfigurationError for the first name that is not among the known ones."""
    names = list(known)
    for name in given:
        if name == "thread_safety_disabled":
            raise ConfigurationError(
                f"{who}: there is no option 'thread_safety_disabled': thread safety costs nothing here and cannot "
                "be disabled; leave it out"
            )
        if name not in names:
            raise ConfigurationError(f"{who}: unknown option {shown(name)}: {nearest(name, names)}")


def whole(low: int, *, none: str = "") -> Values:
    """A whole number from `low` to a million; `none` = what None means, "" = None is refused."""

    def keep(value: object) -> int | None:
        if value is None and none:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAXIMUM_COUNT:
            raise Refused
        return int(value)

    return Values(f"a whole number from {low:,} to {MAXIMUM_COUNT:,}{_or_none(none)}", keep)


def number(what: str, low: float, high: float = MAXIMUM_SECONDS, *, above: bool = True, none: str = "") -> Values:
    """A finite number above `low` (or at least `low`) and at most `high`."""

    def keep(value: object) -> float | None:
        if value is None and none:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise Refused  # NaN compares with nothing
        if above and value == low:
            raise Refused
        return float(value)

    bound = f"above {low:g}" if above else f"of at least {low:g}"
    return Values(f"{what} {bound} and at most {high:g}{_or_none(none)}", keep)


def flag(*, none: str = "") -> Values:
    """True or False, nothing that is like one."""

    def keep(value: object) -> object:
        if isinstance(value, bool) or (value is None and none):
            return value
        raise Refused

    return Values(f"True or False{_or_none(none)}", keep)


def choice(*words: str, none: str = "") -> Values:
    """One of these words."""

    def keep(value: object) -> object:
        if (isinstance(value, str) and value in words) or (value is None and none):
            return value
        raise Refused

    return Values(f"{' or '.join(map(repr, words))}{_or_none(none)}", keep)


def either(word: str, values: Values) -> Values:
    """This word, or what the other kind accepts."""

    def keep(value: object) -> object:
        return word if isinstance(value, str) and value == word else values.keep(value)

    return Values(f"{word!r}, {values.says}", keep)


def name_text(value: object) -> str | None:
    """A resource's name."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise Refused
    text = str.__str__(value)
    fault = text_fault(text)
    if fault is not None:
        raise Refused(f": {fault}")
    return text


def identifier_text(value: object) -> str | None:
    """A resource's identifier in full."""
    text = name_text(value)
    if text is not None and not is_identifier(text):
        raise Refused
    return text


def is_identifier(value: object) -> bool:
    """Whether this looks like `<kind>:<name>`."""
    return isinstance(value, str) and _IDENTIFIER.match(value) is not None


def limits(value: object) -> object:
    """Mapping tenant -> limit (copied, keys as tenant ids), or callable(tenant) -> limit; an empty mapping is None."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        table: dict[str, int | None] = {}
        for whose, limit in value.items():
            try:
                text = tenant_text(whose)
            except ConfigurationError as error:
                raise Refused(f": {error}") from None
            if not is_limit(limit):
                raise Refused(f": its value for one tenant is {shown(limit)}")
            table[text] = limit
        return MappingProxyType(table) if table else None
    if callable(value) and not isinstance(value, type):
        _takes_one(value)
        return value
    raise Refused


def is_limit(value: object) -> bool:
    """Whether this can be one tenant's limit: None, or a whole number from 0 (refused always) to a million."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAXIMUM_COUNT)


def failures(value: object) -> object:
    """An exception class, a tuple or list of them (kept as a tuple), or callable(exception)."""
    if value is None or _can_fail(value):
        return value
    if isinstance(value, (tuple, list)):
        if not value:
            raise Refused(": with no class nothing could ever count")
        for one in value:
            if not _can_fail(one):
                raise Refused(f": {shown(one)} is not an exception class that can count")
        return tuple(value)
    if isinstance(value, (type, BaseException)) or not callable(value):
        raise Refused
    _takes_one(value)
    return value


def _can_fail(value: object) -> bool:
    """An exception class that a call can fail with: KeyboardInterrupt, SystemExit and cancellation never count."""
    return isinstance(value, type) and (
        issubclass(value, Exception) or value is BaseException or value is BaseExceptionGroup
    )


def _takes_one(function: Callable[..., object]) -> None:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise Refused(": a coroutine function cannot answer at once; pass a plain one")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise Refused(": it must take exactly one argument") from None
    except ValueError:  # a C function that does not tell its signature
        return


def markdown(table: type, heading: str) -> str:
    """The rows of a dataclass as a Markdown table."""
    defaults = defaults_of(table)
    lines = [f"| {heading} | default | unit | only for | meaning |", "|---|---|---|---|---|"]
    for name, one in rows_of(table).items():
        default = defaults[name]
        if isinstance(default, str):
            told = f'"{default}"'
        else:
            told = f"{default:,}" if isinstance(default, int) and default >= 10_000 else repr(default)
        lines.append(f"| {name} | {told} | {one.unit} | {', '.join(one.kinds)} | {one.meaning} |")
    return "\n".join(lines) + "\n"


def _or_none(none: str) -> str:
    return f", or None ({none})" if none else ""

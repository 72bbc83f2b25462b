"""Kinds of values that settings have beside those of options: texts, lists of texts, numbers per tenant.

Callables are accepted where the row says so; a settings file cannot hold one, code can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, time
from types import MappingProxyType
from typing import Any

from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import MAXIMUM_COUNT, Refused, Values, shown
from bulkhead.tenancy import tenant_text, text_fault

DEFAULT_TENANT = "default"
"""The key of a table tenant -> number that holds for tenants which are not in it."""

MAXIMUM_BYTES = 2**63 - 1
"""No machine has more, and more digits than Python writes out cannot come together."""

PerTenant = int | Mapping[str, int] | Callable[[str], int]


def text(what: str, pattern: str, *, none: str = "") -> Values:
    """A text that the pattern matches in full; `none` = what None means, "" = None is refused."""
    form = re.compile(pattern)

    def keep(value: object) -> str | None:
        if value is None and none:
            return None
        if not isinstance(value, str) or text_fault(value) is not None or not form.fullmatch(value):
            raise Refused
        return str.__str__(value)

    return Values(f"{what}, or None ({none})" if none else what, keep)


def texts(what: str, pattern: str) -> Values:
    """A list of texts, each of which the pattern matches in full; kept as a tuple. One text alone is a list of one."""
    form = re.compile(pattern)

    def keep(value: object) -> tuple[str, ...]:
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, (list, tuple)):
            raise Refused
        for one in found:
            if not isinstance(one, str) or not form.fullmatch(one):
                raise Refused(f": {shown(one)} is none")
        return tuple(dict.fromkeys(found))

    return Values(f"a list of {what}", keep)


def word_or_callable(*words: str) -> Values:
    """One of these words; in code also a callable."""

    def keep(value: object) -> object:
        if (isinstance(value, str) and value in words) or (callable(value) and not isinstance(value, type)):
            return value
        raise Refused

    return Values(f"{', '.join(map(repr, words))} or (in code) a callable", keep)


def per_tenant() -> Values:
    """A whole number, a table tenant id -> whole number, or in code callable(tenant) -> whole number."""

    def keep(value: object) -> object:
        if isinstance(value, Mapping):
            return MappingProxyType({_tenant(whose): _count(number, shown(whose)) for whose, number in value.items()})
        if callable(value) and not isinstance(value, type):
            return value
        return _count(value, "")

    return Values(
        f"a whole number from 0 to {MAXIMUM_COUNT:,}, a table of tenant ids and such numbers (its key "
        f"{DEFAULT_TENANT!r} = all others), or (in code) a callable that takes a tenant id",
        keep,
    )


def amount() -> Values:
    """A whole number of bytes."""

    def keep(value: object) -> int:
        return _bytes(value, "")

    return Values("a whole number of bytes from 0 to 2**63 - 1", keep)


def bytes_per_tenant() -> Values:
    """A table tenant id -> number of bytes, or in code callable(tenant) -> number of bytes or None; None = neither.

    No key stands for all others: every text can be a tenant's id.
    """

    def keep(value: object) -> object:
        if isinstance(value, Mapping):
            return MappingProxyType({_tenant(whose): _bytes(size, shown(whose)) for whose, size in value.items()})
        if value is None or (callable(value) and not isinstance(value, type)):
            return value
        raise Refused

    return Values(
        "a table of tenant ids and numbers of bytes from 0 to 2**63 - 1, or None, or (in code) a callable that takes a "
        "tenant id",
        keep,
    )


def tenant_table(*, none: str) -> Values:
    """A table tenant id -> whole number. The other kinds of `per_tenant` are none; `none` = what None means."""

    def keep(value: object) -> object:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise Refused
        return MappingProxyType({_tenant(whose): _count(number, shown(whose)) for whose, number in value.items()})

    return Values(f"a table of tenant ids and whole numbers from 0 to {MAXIMUM_COUNT:,}, or None ({none})", keep)


def number_for(value: PerTenant, tenant: str) -> int:
    """What a `per_tenant` value says of this tenant; 0 = no limit. Raises what the user's callable raises."""
    if isinstance(value, Mapping):
        return value[tenant] if tenant in value else value.get(DEFAULT_TENANT, 0)
    return value if isinstance(value, int) else value(tenant)


def secret(what: str) -> Values:
    """A text that is never shown; in code anything that no settings file can hold. None = there is none."""

    def keep(value: object) -> Any:
        if value == "" or isinstance(value, (bool, int, float, list, tuple, Mapping, date, time)):
            raise Refused
        return value

    return Values(f"{what}, or None", keep)


def _tenant(whose: object) -> str:
    try:
        return tenant_text(whose)
    except ConfigurationError as error:
        raise Refused(f": {error}") from None


def _bytes(size: object, whose: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAXIMUM_BYTES:
        raise Refused(f": the number of {whose} is {shown(size)}" if whose else "")
    return int(size)


def _count(number: object, whose: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAXIMUM_COUNT:
        raise Refused(f": the number of {whose} is {shown(number)}" if whose else "")
    return number

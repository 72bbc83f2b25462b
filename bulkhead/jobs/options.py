"""Options of a runner: what code gave, over the settings [jobs], followed when those are reloaded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypedDict, cast

from bulkhead import settings
from bulkhead.errors import ConfigurationError
from bulkhead.log_lines import say
from bulkhead.option_rows import Refused, check_known, is_limit, keep, number, rows_of, shown
from bulkhead.settings.kinds import PerTenant, number_for
from bulkhead.settings.parts import Jobs

if TYPE_CHECKING:
    from collections.abc import Mapping


class RunnerOptions(TypedDict, total=False):
    """The keys of [jobs]; docs/settings.md has their meaning."""

    workers: int
    max_concurrent: PerTenant
    tenants: Mapping[str, int] | None
    lanes: int
    lanes_per_tenant: int
    max_backlog_per_tenant: int
    max_backlog: int
    grace_secs: float
    unknown_after_secs: float


def checked(who: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options given in code, as they are kept. ConfigurationError, with a hint, for what is not accepted."""
    rows = rows_of(Jobs)
    check_known(given, rows, who)
    kept: dict[str, Any] = {}
    for name, value in given.items():
        try:
            kept[name] = keep(name, value, rows[name])
        except Refused as refused:
            raise ConfigurationError(f"{who}: {refused}") from None
    return kept


_WAIT = number("a number of seconds", 0, above=False)


def seconds(what: str, given: object, none: str) -> float | None:
    """The seconds given to a call. None, which means `none`, stays; ConfigurationError for what is not accepted."""
    if given is None:
        return None
    try:
        return cast("float", _WAIT.keep(given))
    except Refused:
        raise ConfigurationError(f"{what} must be {_WAIT.says}, or None ({none}), not {shown(given)}") from None


def in_force(given: Mapping[str, Any]) -> Jobs:
    """These over the settings of now."""
    return dataclasses.replace(settings.current().jobs, **given)


class Caps:
    """max_concurrent and the table of single tenants: tenant -> number. Replaced as a whole, never changed."""

    __slots__ = ("_limit", "_said", "_table")

    def __init__(self, options: Jobs) -> None:
        self._limit, self._table = options.max_concurrent, options.tenants or {}
        self._said = False

    def of(self, tenant: str | None) -> int:
        """The tenant's cap, 0 = none. Never raises; may run the user's code."""
        if tenant is None:
            return 0
        if tenant in self._table:
            return self._table[tenant]
        try:
            found: Any = number_for(self._limit, tenant)
        except Exception as error:  # noqa: BLE001  the user's code: a job must not be lost by it
            return self._complain(f"raised {type(error).__name__}")
        if not is_limit(found):
            return self._complain(f"answered {shown(found)}, no whole number from 0")
        return cast("int", found) or 0

    def _complain(self, what: str) -> int:
        if not self._said:
            self._said = True
            say(
                "settings_warning",
                f"the callable {what}; no limit holds then (said once)",
                setting="jobs.max_concurrent",
            )
        return 0

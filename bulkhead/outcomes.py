"""What a call tells the circuit, and where calls come from.

`verdict` is the one place that turns an exception into an outcome: the user's `is_failure` first, then the adapter,
then the rules for cancellation. It never raises: a rule that fails is logged and the driver's error keeps its default.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from bulkhead.errors import (
    CircuitOpenError,
    ConfigurationError,
    QuotaExceeded,
    Rejected,
    ResourceBusyError,
    UnknownTenantError,
)
from bulkhead.request import client_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.option_set import Options

log = logging.getLogger("bulkhead")


class Outcome(StrEnum):
    """What a call that was let through tells the circuit."""

    SUCCESS = "success"  # the resource answered, be it with an error
    FAILURE = "failure"  # it did not, or said that it cannot
    IGNORED = "ignored"  # says nothing about the resource


# In Python 3.11 each look-up of a member in its class costs 200 ns.
SUCCESS, FAILURE, IGNORED = Outcome.SUCCESS, Outcome.FAILURE, Outcome.IGNORED


class Errors(NamedTuple):
    """The rejections of one driver: each also inherits from the driver's own base error."""

    busy: type[ResourceBusyError]
    open: type[CircuitOpenError]
    unknown_tenant: type[UnknownTenantError]


class Site:
    """Where guarded calls are made: one driver and one scope ("connection" or "query")."""

    __slots__ = ("connects", "driver", "errors", "open_error", "outcome", "scope")

    def __init__(
        self,
        driver: str,
        scope: str,
        errors: Errors,
        outcome: Callable[[Exception, Options], Outcome],
    ) -> None:
        self.driver, self.scope, self.errors, self.outcome = driver, scope, errors, outcome
        self.open_error = errors.open
        # A connect that succeeds proves little: it says nothing to a circuit. One that fails is nobody's poison.
        self.connects = scope == "connection"

    def __repr__(self) -> str:
        return f"<Site {self.driver} {self.scope}>"


def every_exception(error: Exception, options: Options) -> Outcome:  # noqa: ARG001  an outcome function
    """Without an adapter, every Exception is a failure, unless it is what a driver made of a rejection."""
    inner: BaseException | None = error
    for _ in range(_WRAPPED):
        inner = getattr(inner, "orig", None) or inner.__cause__ if inner is not None else None
        if isinstance(inner, (Rejected, QuotaExceeded)):
            return IGNORED
    return FAILURE


_WRAPPED = 3  # errors in errors: SQLAlchemy in Django in a caller's own


DIRECT = Site("call", "query", Errors(ResourceBusyError, CircuitOpenError, UnknownTenantError), every_exception)


def verdict(error: BaseException, site: Site, options: Options, lasted: float | None, limit: float | None) -> Outcome:
    """The outcome of a call that raised `error` after `lasted` seconds (None: nobody measured).

    `limit`: seconds from which on a cancelled call is a failure; None: never.
    """
    if error.__class__ not in ORDINARY and not _is_ordinary(error.__class__):
        return _of_others(error, site, options, lasted, limit)
    said = None if options.is_failure is None else options.counts(error)
    if said:
        return FAILURE
    try:
        outcome = site.outcome(error, options)  # type: ignore[arg-type]  # an Exception
    except Exception:
        log.exception("[BULKHEAD] the rule of the %s adapter raised; the error counts as a failure", site.driver)
        outcome = FAILURE
    return SUCCESS if said is False and outcome is FAILURE else outcome


# What says nothing about the resource: a refusal, or that it was set up wrongly.
_OURS = (Rejected, QuotaExceeded, ConfigurationError)

# Classes of exceptions that mean what the adapter says: asking once for each class is cheaper than three times a call.
ORDINARY: set[type[BaseException]] = set()
_MOST_CLASSES = 1000  # some programs make classes as they go


def _is_ordinary(kind: type[BaseException]) -> bool:
    ordinary = issubclass(kind, Exception) and not issubclass(kind, (BaseExceptionGroup, *_OURS))
    if ordinary and len(ORDINARY) < _MOST_CLASSES:
        ORDINARY.add(kind)
    return ordinary


def _of_others(
    error: BaseException, site: Site, options: Options, lasted: float | None, limit: float | None
) -> Outcome:
    if isinstance(error, BaseExceptionGroup):
        found = {verdict(leaf, site, options, lasted, limit) for leaf in error.exceptions}
        if SUCCESS in found and FAILURE not in found and _named(error, options.is_failure):
            return FAILURE
        return FAILURE if FAILURE in found else SUCCESS if SUCCESS in found else IGNORED
    if isinstance(error, (*_OURS, KeyboardInterrupt, SystemExit, GeneratorExit)):
        return IGNORED
    # What is left is a cancellation: asyncio's, trio's, or one like them.
    late = limit is not None and lasted is not None and lasted >= limit
    return FAILURE if late and not client_gone() else IGNORED


def _named(error: BaseException, rule: Any) -> bool:
    """Does is_failure name a class of groups that this one is of? Else a group is what its members are."""
    classes = rule if isinstance(rule, tuple) else (rule,)
    return any(
        isinstance(one, type) and issubclass(one, BaseExceptionGroup) and isinstance(error, one) for one in classes
    )


def overrun(limit: float) -> TimeoutError:
    """What stands for a call that lasted longer than call_timeout, and raised nothing."""
    return TimeoutError(f"a call lasted longer than call_timeout ({limit:g} s)")

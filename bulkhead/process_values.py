"""What holds for the whole process: `defaults()`, and the environment variables that switch parts off.

`process` is read wherever a value is needed, never copied, so that a change is seen at once. The environment is read
at each question: a running process can be switched by a debugger or a test, and nothing is stale after fork.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import Refused, check_known, flag, keep, number, row, rows_of, whole

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")

_SWITCHES = {
    "all": ("BULKHEAD_DISABLED",),
    "circuit_breaker": ("BULKHEAD_DISABLED", "BULKHEAD_CIRCUIT_BREAKER_DISABLED"),
    "tickets": ("BULKHEAD_DISABLED", "BULKHEAD_TICKETS_DISABLED"),
}
_NOT_DISABLED = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessValues:
    """The values of `defaults()`, one field each."""

    force_config_validation: bool = row(
        True, "", "a wrong option raises ConfigurationError; False = it is logged and its default holds", flag()
    )
    maximum_lru_size: int = row(500, "resources", "the number of resources to come down to", whole(0))
    minimum_lru_time: float = row(
        300.0,
        "s",
        "a resource used more lately is kept, even above maximum_lru_size",
        number("a number of seconds", 0, above=False),
    )
    maximum_resources: int | None = row(
        None,
        "resources",
        "never more than this many; None = 20 x maximum_lru_size, at least 10,000",
        whole(1, none="20 x maximum_lru_size, at least 10,000"),
    )


class Process:
    """The process-wide values in force. Replaced together by one store."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = ProcessValues()

    @property
    def force_config_validation(self) -> bool:
        """Whether a wrong option raises."""
        return self.values.force_config_validation

    @property
    def maximum_lru_size(self) -> int:
        """The number of resources that the registry comes down to."""
        return self.values.maximum_lru_size

    @property
    def minimum_lru_time(self) -> float:
        """Seconds for which a resource is kept after its last use."""
        return self.values.minimum_lru_time

    @property
    def maximum_resources(self) -> int:
        """The number of resources that is never exceeded."""
        given = self.values.maximum_resources
        return max(10_000, 20 * self.values.maximum_lru_size) if given is None else given


process = Process()


def _setter(make: Callable[P, ProcessValues]) -> Callable[P, None]:
    """Names and types of the fields become those of `defaults`, for type checkers too."""

    def defaults(*args: P.args, **changes: P.kwargs) -> None:
        """Set process-wide values; those not named stay as they are. A wrong one is always a ConfigurationError."""
        if args:
            raise ConfigurationError("bulkhead.defaults: values are given by name")
        rows = rows_of(ProcessValues)
        check_known(changes, rows, "bulkhead.defaults")
        try:
            kept = {name: keep(name, value, rows[name]) for name, value in changes.items()}
        except Refused as refused:
            raise ConfigurationError(f"bulkhead.defaults: {refused}") from None
        together: dict[str, Any] = asdict(process.values) | kept
        values = make(*args, **together)
        if values.maximum_resources is not None and values.maximum_resources < values.maximum_lru_size:
            raise ConfigurationError(
                f"bulkhead.defaults: maximum_resources={values.maximum_resources} is below "
                f"maximum_lru_size={values.maximum_lru_size}, the number to come down to; lower that too"
            )
        process.values = values

    return defaults


defaults = _setter(ProcessValues)


def disabled(part: Literal["all", "circuit_breaker", "tickets"]) -> bool:
    """Whether the environment switches this part off; BULKHEAD_DISABLED switches everything off.

    "0", "false", "no", "off", "" (in any case) and unset mean not disabled.
    """
    return any(os.environ.get(name, "").strip().lower() not in _NOT_DISABLED for name in _SWITCHES[part])

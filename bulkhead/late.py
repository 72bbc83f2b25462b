"""A resource that is not known yet: its options are defined later, or asked for on each call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bulkhead import definitions
from bulkhead.registry import registered, unprotected

if TYPE_CHECKING:
    from bulkhead.resources import Resource


class Late:
    """Stands for a resource whose options are not known yet, or are asked for on each call."""

    __slots__ = ("_driver", "_driver_kind", "_known", "_name", "_raw", "_read_timeout")

    late = marked = True  # whether its resource is marked is seen when that is known

    def __init__(
        self,
        raw: str | definitions.Dynamic,
        kind: str,
        default_name: str,
        read_timeout: float | None,
        driver: str = "call",
    ) -> None:
        self._raw, self._driver_kind, self._name, self._read_timeout = raw, kind, default_name, read_timeout
        self._driver = driver
        self._known: Resource | None = None

    def now(self) -> Resource:
        """The resource of this call. ConfigurationError that lists the known names if the name is unknown still."""
        if self._known is not None:
            return self._known
        raw = self._raw
        options = definitions.defined(raw) if isinstance(raw, str) else raw.now()
        if options is None:
            return unprotected
        resource = registered(options, self._driver_kind, self._name, self._read_timeout, self._driver)
        if isinstance(raw, str):
            self._known = resource
        return resource

    def __repr__(self) -> str:
        return f"<{self._driver_kind} resource by {self._raw!r}>"

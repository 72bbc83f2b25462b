"""What goes wrong with cells while requests are served. Faults of a map are `bulkhead.ConfigurationError`."""

from __future__ import annotations

from typing import cast

from bulkhead.errors import BulkheadError, Rejected


class CellUnavailableError(Rejected):
    """The tenant's cell cannot be asked now. `args` = (identifier, tenant, retry_after, reason).

    `reason` is "down" (the cell), "moving" or "frozen" (the tenant), or "misdirected" (the cell says that the tenant
    is not its own, and so does the newest map that there is).
    """

    @property
    def retry_after(self) -> float | None:
        """Seconds until another try may pass, as the map says."""
        return cast("float | None", self.args[2])

    @property
    def reason(self) -> str:
        """Why: "down", "moving", "frozen" or "misdirected"."""
        return cast("str", self.args[3])

    def __str__(self) -> str:
        told = {
            "down": "is down",
            "moving": "does not serve this tenant now: it is being moved",
            "frozen": "does not serve this tenant now: it is frozen",
            "misdirected": "says that the tenant is not its own",
        }
        return f"{self.identifier!r} {told.get(self.reason, self.reason)}"


class UnsafePathError(BulkheadError, ValueError):
    """A path that could lead out of the cell's base path, or end a line. Its text does not quote the path."""


class MapUnavailableError(BulkheadError):
    """The source of a map cannot be reached; at start-up: and there is no copy of the last good one."""

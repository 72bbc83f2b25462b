"""The error tree, and how to find one of ours inside what a framework made of it.

Rejections keep their facts in `args` and read them through properties: no `__init__` of ours runs, which makes raising
one cheap, and pickling, copying and driver bases with constructors of their own work unchanged. The text never quotes
a driver's error (tools match on text); the failure that opened a circuit is the rejection's `__cause__`.
"""

from __future__ import annotations

from typing import Any, cast


class BulkheadError(Exception):
    """Base of everything that this toolkit raises."""


class ConfigurationError(BulkheadError, ValueError):
    """An option, a name or a set-up step is wrong. Raised where it is written, with a hint; never by a guarded call."""


class QuotaExceeded(BulkheadError):
    """There is no room in a tenant's memory cell; nothing was charged. `args` = (tenant, requested, in_use, quota)."""

    @property
    def tenant(self) -> str | None:
        """Whose cell it is."""
        return cast("str | None", self.args[0])

    @property
    def requested(self) -> int:
        """Bytes that were to be charged."""
        return cast("int", self.args[1])

    @property
    def in_use(self) -> int:
        """Bytes that were charged at that moment."""
        return cast("int", self.args[2])

    @property
    def quota(self) -> int:
        """Bytes that the cell may hold."""
        return cast("int", self.args[3])

    def __str__(self) -> str:
        if len(self.args) != 4:
            return super().__str__()
        return (
            f"the memory cell of tenant {self.tenant!r} has no room for {self.requested:,} bytes more: "
            f"{self.in_use:,} of {self.quota:,} are in use"
        )


class Rejected(BulkheadError):
    """A call was refused before the driver was touched. Never counts as a failure of the resource.

    `args` start with (identifier, tenant).
    """

    @property
    def identifier(self) -> str:
        """The resource that refused, `<kind>:<name>`."""
        return cast("str", self.args[0])

    @property
    def tenant(self) -> str | None:
        """The tenant whose call was refused; None outside any tenant."""
        return cast("str | None", self.args[1])

    @property
    def retry_after(self) -> float | None:
        """Seconds until another try may pass; None where nobody can know."""
        return None


class CircuitOpenError(Rejected):
    """The circuit is open, or half-open with no probe free. `args` = (identifier, tenant, retry_after)."""

    @property
    def retry_after(self) -> float | None:
        """Seconds until the next probe may run, 0.0 or more."""
        return cast("float | None", self.args[2])

    def __str__(self) -> str:
        after = self.retry_after
        when = "" if after is None else f", next probe in {after:.3g} s"
        return f"circuit of {self.identifier!r} is open{when}"


class ResourceBusyError(Rejected):
    """No ticket was free. `args` = (identifier, tenant, limit), and where there is more to say, that as text."""

    @property
    def limit(self) -> str:
        """What was full: "tenant", "resource", "connections" or "requests"."""
        return cast("str", self.args[2])

    def __str__(self) -> str:
        whose = "" if self.tenant is None else f" for tenant {self.tenant!r}"
        more = "".join(f"; {text}" for text in self.args[3:])
        return f"{self.identifier!r} is busy{whose}: the {self.limit} limit is reached{more}"


class UnknownTenantError(Rejected):
    """No tenant in context while `unknown_tenant("reject")` is in force. `args` = (identifier, None)."""

    def __str__(self) -> str:
        return (
            f"{self.identifier!r} was called outside any tenant; put the work under bulkhead.tenant(id), "
            "or carry the context into threads with bulkhead.carry"
        )


def rejection(error: BaseException | None) -> Rejected | QuotaExceeded | None:
    """Our rejection inside `error`: itself, its `.orig`, `__cause__`, `__context__` or a member of a group; else None.

    Frameworks wrap errors: Django re-raises with a cause, SQLAlchemy keeps the driver's error in `.orig`. A rejection
    that is the *cause* of opening another circuit is found too; the outermost one wins.
    """
    waiting: list[Any] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, (Rejected, QuotaExceeded)):
            return one
        waiting += [getattr(one, "orig", None), one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return None

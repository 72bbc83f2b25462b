"""Errors of jobs. What is refused is a `Rejected`: the edge of a web application answers 503 to it."""

from __future__ import annotations

from typing import cast

from bulkhead.errors import BulkheadError, Rejected


class BacklogFull(Rejected):
    """Too many jobs wait, so this one was not taken. `args` = (identifier, tenant, limit, number)."""

    @property
    def limit(self) -> str:
        """Which limit is reached: "max_backlog_per_tenant", or "max_backlog" by a tenant that has its share of it."""
        return cast("str", self.args[2])

    def __str__(self) -> str:
        whose = "jobs outside any tenant" if self.tenant is None else f"jobs of tenant {self.tenant!r}"
        return f"{self.identifier!r} takes no more {whose}: {self.limit} ({self.args[3]:,}) is reached"


class NotTaking(Rejected):
    """No new jobs are taken: the runner stops, or the tenant is drained. `args` = (identifier, tenant, why)."""

    def __str__(self) -> str:
        return f"{self.identifier!r} takes no new jobs: {self.args[2]}"


class JobTimeout(BulkheadError, TimeoutError):
    """A job ran longer than its `timeout` and was cancelled; counts as a failed attempt."""


class JobCancelled(BulkheadError):
    """A job's task was cancelled, by its own code or by somebody else's; counts as a failed attempt."""

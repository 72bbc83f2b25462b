"""How many jobs may wait: counted by tenant, refused by rule. No lock: the one who uses it has one.

Invariant: a tenant without waiting jobs has no entry, so ids chosen by clients grow it no more than jobs that wait do.
Above the total only tenants with their equal share or more are refused; with n tenants waiting there can be as many
again in all (each of them up to 1/n of the total), never more.
"""

from __future__ import annotations

PER_TENANT, TOTAL = "max_backlog_per_tenant", "max_backlog"


class Backlog:
    """Waiting jobs by tenant: those in line, those not due, those without a handler."""

    __slots__ = ("_of", "total")

    def __init__(self) -> None:
        self._of: dict[str | None, int] = {}
        self.total = 0

    def full(self, tenant: str | None, per_tenant: int, total: int) -> tuple[str, int] | None:
        """The limit, with its number, that forbids one more job of this tenant; None: it may come.

        Jobs outside any tenant are held to the total only.
        """
        mine = self._of.get(tenant, 0)
        if tenant is not None and mine >= per_tenant:
            return PER_TENANT, per_tenant
        if self.total >= total and (mine + 1) * (len(self._of) + (mine == 0)) > total:
            return TOTAL, total
        return None

    def add(self, tenant: str | None) -> None:
        """One more waits."""
        self._of[tenant] = self._of.get(tenant, 0) + 1
        self.total += 1

    def remove(self, tenant: str | None) -> None:
        """One waits no more."""
        left = self._of.get(tenant, 0) - 1
        if left > 0:
            self._of[tenant] = left
        else:
            self._of.pop(tenant, None)
        self.total -= 1

    def of(self, tenant: str | None) -> int:
        """How many of this tenant wait."""
        return self._of.get(tenant, 0)

    def numbers(self) -> dict[str | None, int]:
        """A snapshot: tenant -> how many of it wait."""
        return self._of.copy()

    def clear(self) -> None:
        """Nothing waits."""
        self._of.clear()
        self.total = 0

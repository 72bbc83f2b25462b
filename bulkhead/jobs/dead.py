"""Jobs that failed for good, kept to be looked at, tried again or discarded. No lock: the one who uses it has one.

At most MAXIMUM of them: above it the oldest of the tenant that has most goes, so that what fails of one tenant does
not push out another's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bulkhead.jobs.records import Entry

MAXIMUM = 10_000


class Dead:
    """Dead jobs by tenant, each oldest first.

    Invariant: each tenant that has n of them is in `_with[n]`, and `_most` is the highest n that any has: who has most
    is known without a look at all, also where a failure of everybody's buries thousands in a second.
    """

    __slots__ = ("_most", "_of", "_tenants", "_with", "maximum")

    def __init__(self, maximum: int = MAXIMUM) -> None:
        self.maximum = maximum
        self._of: dict[str | None, dict[str, Entry]] = {}
        self._tenants: dict[str, str | None] = {}  # id -> tenant
        self._with: dict[int, dict[str | None, None]] = {}
        self._most = 0

    def add(self, entry: Entry) -> Entry | None:
        """Keep it, in place of one with its id. Returns the one that had to go for it, if any."""
        self.pop(entry.id)
        gone = None
        if len(self._tenants) >= self.maximum:
            whose = next(iter(self._with[self._most]))
            if len(self._of.get(entry.tenant, ())) >= self.maximum / len(self._of):
                whose = entry.tenant
            gone = self.pop(next(iter(self._of[whose])))
        mine = self._of.setdefault(entry.tenant, {})
        mine[entry.id] = entry
        self._tenants[entry.id] = entry.tenant
        self._count(entry.tenant, len(mine) - 1, len(mine))
        return gone

    def get(self, identity: str) -> Entry | None:
        """The one with this id."""
        return self._of[self._tenants[identity]].get(identity) if identity in self._tenants else None

    def pop(self, identity: str) -> Entry | None:
        """Keep it no longer; None: there is none with this id."""
        if identity not in self._tenants:
            return None
        tenant = self._tenants.pop(identity)
        mine = self._of[tenant]
        entry = mine.pop(identity, None)
        if not mine:
            del self._of[tenant]
        self._count(tenant, len(mine) + 1, len(mine))
        return entry

    def _count(self, tenant: str | None, before: int, now: int) -> None:
        """It had `before` of them, and has one more or less."""
        same = self._with.get(before, {})
        same.pop(tenant, None)
        if before and not same:
            self._with.pop(before, None)
        if now:
            self._with.setdefault(now, {})[tenant] = None
        if now > self._most or self._most not in self._with:
            self._most = now

    def mend(self) -> None:
        """After a call that was interrupted: every job that is kept can be found."""
        self._of = {tenant: mine for tenant, mine in self._of.items() if mine}
        self._tenants = {identity: tenant for tenant, mine in self._of.items() for identity in mine}
        self._with = {}
        for tenant, mine in self._of.items():
            self._with.setdefault(len(mine), {})[tenant] = None
        self._most = max(self._with, default=0)

    def all(self) -> list[Entry]:
        """All of them, by tenant."""
        return [entry for mine in self._of.values() for entry in mine.values()]

    def of(self, tenant: str | None) -> list[Entry]:
        """Those of one tenant, oldest first."""
        return list(self._of.get(tenant, {}).values())

    def __len__(self) -> int:
        return len(self._tenants)

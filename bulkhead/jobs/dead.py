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
    """Dead jobs by tenant, each oldest first."""

    __slots__ = ("_of", "_tenants", "maximum")

    def __init__(self, maximum: int = MAXIMUM) -> None:
        self.maximum = maximum
        self._of: dict[str | None, dict[str, Entry]] = {}
        self._tenants: dict[str, str | None] = {}  # id -> tenant

    def add(self, entry: Entry) -> Entry | None:
        """Keep it. Returns the one that had to go for it, if any."""
        gone = None
        if len(self._tenants) >= self.maximum:
            whose = max(self._of, key=lambda tenant: len(self._of[tenant]))
            if len(self._of.get(entry.tenant, ())) >= self.maximum / len(self._of):
                whose = entry.tenant
            gone = self.pop(next(iter(self._of[whose])))
        self._of.setdefault(entry.tenant, {})[entry.id] = entry
        self._tenants[entry.id] = entry.tenant
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
        return entry

    def mend(self) -> None:
        """After a call that was interrupted: every job that is kept can be found."""
        self._of = {tenant: mine for tenant, mine in self._of.items() if mine}
        self._tenants = {identity: tenant for tenant, mine in self._of.items() for identity in mine}

    def all(self) -> list[Entry]:
        """All of them, by tenant."""
        return [entry for mine in self._of.values() for entry in mine.values()]

    def of(self, tenant: str | None) -> list[Entry]:
        """Those of one tenant, oldest first."""
        return list(self._of.get(tenant, {}).values())

    def __len__(self) -> int:
        return len(self._tenants)

"""How many jobs each tenant runs and may run, counted over all queues that share one `Slots`.

Pure: no lock, no clock, no I/O, and no user code (a limit is a number that the caller found out before). Whoever owns
it calls everything under one lock. A tenant that has neither running nor waiting jobs is in here only as long as a
queue remembers it (lanes.py says how many), so ids chosen by clients cannot make it grow; `paused` holds the tenants
that an operator named.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, cast

from bulkhead.jobs.rounds import Line

if TYPE_CHECKING:
    from bulkhead.jobs.rounds import Place, Round

NOWHERE: tuple[int, ...] = ()


class Account(Line):
    """What one tenant has running and waiting. It is the tenant's line as well, in the queue that opened it: most
    tenants have jobs in one queue only, and two objects are further apart in memory than one.

    Invariant: `passed` lists the rounds that came to one of the tenant's lines while it was at its limit and took it
    out. There are none whenever `running < limit`: then each of its lines is in every round that it belongs to.
    """  # noqa: D205  the first sentence is long

    __slots__ = ("cap", "lanes", "limit", "lines", "passed", "running", "tenant", "waiting")

    def __init__(self, tenant: str | None, place: Place, cap: float, limit: float) -> None:
        super().__init__(None, place)
        self.tenant = tenant
        self.lanes = place.lanes
        self.cap = cap
        self.limit = limit
        """The cap, or 0 while paused."""
        self.running = 0
        self.waiting = 0
        self.lines = 0
        """Of queues that remember the tenant: as long as there are any, this is its only account."""
        self.passed: list[tuple[Line, Round]] | None = None

    @property
    def number(self) -> int:
        """The cap as it is given, 0 for none."""
        return 0 if self.cap == inf else int(self.cap)

    def change(self, cap: float, limit: float) -> tuple[int, ...]:
        """The lanes that may take jobs of this tenant that they could not take before."""
        before = self.limit
        self.cap, self.limit = cap, limit
        if self.running >= limit:
            return NOWHERE
        self.come_back()
        return self.lanes if before <= self.running and self.waiting else NOWHERE

    def come_back(self) -> None:
        """No longer at the limit: to the places it had, at the head of the rounds that went past it."""
        for line, where in self.passed or ():
            line.stand_first(where)
        self.passed = None


def account_of(line: Line) -> Account:
    """The account of the tenant whose line this is."""
    return line.home or cast("Account", line)


class Slots:
    """Tenant -> Account. Shared by the queues of a runner, so that a cap holds over all of them."""

    __slots__ = ("_paused", "shape", "table")

    def __init__(self) -> None:
        self.table: dict[str | None, Account] = {}
        self.shape: tuple[int, int] | None = None
        """Lanes and lanes per tenant, of every queue that shares this."""
        self._paused: set[str | None] = set()

    def open(self, tenant: str | None, place: Place, cap: int) -> Account:
        """An account for a tenant that has none, at home in the queue of this place (0 = no cap)."""
        most = inf if tenant is None else cap or inf
        limit = 0 if self._paused and tenant in self._paused else most
        account = self.table[tenant] = Account(tenant, place, most, limit)
        return account

    def running(self, tenant: str | None) -> int:
        """Jobs of this tenant that were claimed and have not ended."""
        account = self.table.get(tenant)
        return 0 if account is None else account.running

    def waiting(self, tenant: str | None) -> int:
        """Jobs of this tenant in all queues."""
        account = self.table.get(tenant)
        return 0 if account is None else account.waiting

    def total_running(self) -> int:
        """Claims that have not ended; looks at every tenant."""
        return sum(account.running for account in self.table.values())

    def tenants(self) -> list[str | None]:
        """Those that have jobs, running or waiting."""
        return [tenant for tenant, account in self.table.items() if account.running or account.waiting]

    @property
    def paused(self) -> frozenset[str | None]:
        """Tenants of which nothing is claimed."""
        return frozenset(self._paused)

    def recap(self, tenant: str | None, cap: int) -> tuple[int, ...]:
        """Let a tenant run `cap` jobs at once (0 = no limit); what runs above that ends as it would.

        Returns the lanes that may take jobs of it that they could not take before. A tenant without jobs has no cap
        to change: its next `push` brings one. Jobs without a tenant have none.
        """
        account = self.table.get(tenant)
        if account is None or tenant is None:
            return NOWHERE
        return account.change(cap or inf, 0 if tenant in self._paused else cap or inf)

    def pause(self, tenant: str | None) -> None:
        """Let nothing more of this tenant be claimed (None: of the jobs without one); what runs goes on."""
        self._paused.add(tenant)
        account = self.table.get(tenant)
        if account is not None:
            account.limit = 0

    def resume(self, tenant: str | None) -> tuple[int, ...]:
        """End a pause. Returns the lanes that may take jobs of it now."""
        self._paused.discard(tenant)
        account = self.table.get(tenant)
        return NOWHERE if account is None else account.change(account.cap, account.cap)

"""The pools of a resource's tenants: made on demand, at most `maximum`, evicted by CLOCK.

Being present in the resource's fast table is the reference bit: the hand takes the entry out, the tenant's next call
brings it back through the slow path, so a hit writes nothing. A tenant's first call publishes nothing there, so a scan
of made-up ids passes by without pushing out the tenants in use. A pool goes only if every ticket was in it, and only
while the table still maps its tenant to this very pool. If none of the pools the hand looks at can go, the new tenant
shares one pool with others in the same place, of the limit that holds for no tenant in particular: a cap is never
exceeded, and memory never grows. Its tickets say who holds them, so that nobody has a pool of his own besides.

Everything here runs under the lock of the resource.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from bulkhead.tickets.pool import Pool, Ticket

HAND_STEPS = 64  # per insertion; a step that clears a reference bit was paid for by the call that set it


class TenantPools:
    """Tenant -> Pool. Invariant: every pool in the table is known to the hand exactly once."""

    __slots__ = ("_hand", "_maximum", "overflow", "table")

    def __init__(self, maximum: int) -> None:
        self.table: dict[str | None, Pool] = {}
        self._hand: deque[Pool] = deque()
        self._maximum = maximum
        self.overflow: Pool | None = None
        """What late tenants share, once it was needed."""

    def __len__(self) -> int:
        return len(self.table)

    def obtain(
        self,
        tenant: str | None,
        make: Callable[[str | None], Pool],
        referenced: MutableMapping[Any, Any],
        idle: Callable[[Pool], bool],
    ) -> tuple[Pool, bool]:
        """The tenant's pool, and whether it was there before. Evicts one that `idle` lets go if the table is full."""
        pool = self.table.get(tenant)
        if pool is not None:
            return pool, True
        # In this order: once there is room, a nested call of this tenant makes a pool of its own, which is found below.
        if (len(self.table) >= self._maximum and not self._sweep(referenced, idle)) or self._held(tenant):
            if self.overflow is None:
                self.overflow = make(None)
            return self.overflow, False
        pool = make(tenant)
        self._hand.append(pool)  # in this order: a pool in the table that the hand does not know would stay for ever
        return self.table.setdefault(tenant, pool), False  # a nested call (a signal handler's) may have been here

    def take(self, pool: Pool, tenant: str | None, limit: float) -> Ticket:
        """A ticket of this pool; IndexError if there is none, or the tenant has `limit` of the shared ones already."""
        if pool is self.overflow and limit < pool.limit and self._held(tenant) >= limit:
            raise IndexError
        ticket = pool.pop()
        if pool is self.overflow:
            ticket.since[:] = [(0.0, tenant, None)]
        return ticket

    def held(self, tenant: str | None) -> int:
        """Tickets that this tenant has out."""
        pool = self.table.get(tenant)
        return self._held(tenant) if pool is None else pool.in_use

    def _held(self, tenant: str | None) -> int:
        """Tickets of the shared pool that this tenant holds. With a pool of its own besides it had its limit twice."""
        shared = self.overflow
        if shared is None or not shared.in_use:
            return 0
        return sum(
            ticket is not None and bool(ticket.since) and ticket.since[0][1] == tenant and ticket not in shared
            for ticket in [known() for known in shared.watch.copy()]
        )

    def _sweep(self, referenced: MutableMapping[Any, Any], idle: Callable[[Pool], bool]) -> bool:
        hand, table = self._hand, self.table
        for _ in range(HAND_STEPS):
            if len(table) < self._maximum:
                return True
            if not hand:
                return False
            pool = hand[0]
            if table.get(pool.tenant) is not pool:  # an insertion, or a removal, that was interrupted
                if hand and hand[0] is pool:  # still: the lock is re-entrant, see Pool.fill
                    hand.popleft()
            elif referenced.pop(pool.tenant, None) is None and idle(pool) and pool.drain():
                # `draining`: no nested call filled it meanwhile, and has its tickets now, or left them in.
                gone = table.get(pool.tenant) is pool and pool.draining and table.pop(pool.tenant, None) is pool
                if gone and hand and hand[0] is pool:
                    hand.popleft()
            else:
                hand.rotate(-1)
        return len(table) < self._maximum

    def everything(self) -> list[Pool]:
        """A snapshot, with the pool that late tenants share."""
        pools = list(self.table.values())
        return pools if self.overflow is None else [*pools, self.overflow]

    def of(self, tenant: str | None) -> Pool | None:
        """The pool that a tenant's tickets are in now, for reading."""
        pool = self.table.get(tenant)
        return self.overflow if pool is None and len(self.table) >= self._maximum else pool

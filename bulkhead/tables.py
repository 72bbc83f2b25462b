"""The tables of a gate: the entry and the pool of a tenant, found or made, and what takes entries out again.

Part of the gate (admission.py), which asks here once a look-up failed. What is special, and the rules for a change, are
told there; an entry is built by entries.py, and tickets/tenants.py keeps the pools. Nothing here admits or refuses a
call: the answer is what its permit can be made of, or the limit that is reached.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from bulkhead import events, nesting, tenancy
from bulkhead.circuit.epochs import Closed
from bulkhead.circuit.machine import Circuit
from bulkhead.entries import Off, all_closed, build, doors, ignore
from bulkhead.refusals import Refusals
from bulkhead.tickets.pool import AT_ONCE_PER_TENANT, Pool, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.admission import Gate
    from bulkhead.circuit.epochs import Epoch
    from bulkhead.entries import Entry
    from bulkhead.probes import Pairs

ENFORCE, SHADOW, OFF = "enforce", "shadow", "off"


class Tables(Refusals):
    """The fast table, the one beside it and the pools of tenants.

    Invariant: an entry is in the fast table only while a call of its tenant may pass without a question.
    """

    __slots__ = ("aside", "fast", "mode", "successor")

    fast: dict[Any, Entry]
    aside: dict[Any, Entry]  # entries that would be in the fast table, were it not for the mode or a subscriber
    mode: str
    successor: Callable[[], Gate] | None  # set: who still holds this resource is sent on

    def _full(self, tenant: str | None) -> str | None:
        """The limit of which is known, without a lock, that it is reached. A new tenant's pool is looked for first."""
        if self.per_tenant and (tenant is not None or tenancy.policy() == "share"):
            pool = self.tenants.table.get(tenant)
            if pool is None:
                return None
            if pool.full():
                return "tenant"
        return "resource" if (whole := self.shared) is not None and whole.full() else None

    def _find(self, tenant: str | None, *, plain: bool) -> Any:
        """`(raw, entry, pairs, pool)`, with a free ticket in each pool if the limits allow; the limit reached; or None.

        raw: a call that reports by itself, a probe or a connect.
        """
        per_tenant = self.per_tenant and (tenant is not None or tenancy.policy() == "share")
        options, limit, new = self.options, inf, per_tenant and tenant not in self.tenants.table
        if new:
            answer = self._ask_for_limit(tenant)  # may call the user's function: before the lock
            if answer is None:
                per_tenant = new = plain = False
            elif answer <= 0:
                return "tenant"
            else:
                limit = answer
        with self.lock:
            pool, known = None, True
            fast = self.fast if self.mode == ENFORCE and not events.endings_wanted() else self.aside
            if self.options is not options or (per_tenant and not new and tenant not in self.tenants.table):
                return None  # the options changed meanwhile, or the tenant's pool went: its limit has to be asked for
            if per_tenant:
                pool, known = self.tenants.obtain(
                    tenant,
                    lambda whose: Pool(
                        whose, limit if whose == tenant else self._limit_of(None), self._circuit_of(whose)
                    ),
                    fast,
                    self._idle,
                )
                pool.fill(AT_ONCE_PER_TENANT if known else 1)  # a scan of made-up ids gets no stock
                if pool.owing:  # what comes back from now on is not to be taken
                    return "tenant"
            shared = self.shared
            if shared is not None and (not shared or shared.lost or shared.owing):
                shared.fill()
                if shared.owing:
                    return "resource"
            pairs = self._pairs(pool)
            if pool is not None and pool is self.tenants.overflow:
                return self._of_shared_pool(pool, tenant, limit, pairs, plain=plain)
            if not plain or not all_closed(pairs):
                return True, (*doors(self, pool), *doors(self, self.shared), ignore), pairs, pool
            key = tenant if self.per_tenant else ""
            entry = fast.get(key)
            if entry is not None and pool is not None and getattr(entry[0], "__self__", pool) is not pool:
                entry = None  # of a pool that went while it was put there, by a nested call (of a signal handler)
            if entry is None:
                entry = build(self, tenant, pool, pairs, known=known)
                if (
                    known
                    and self.successor is None
                    and not self.queue.lines
                    and not (tenant is None and tenancy.policy() == "reject")
                ):
                    # In the table from the beginning of this block: one that a nested call started meanwhile knows
                    # more than we do.
                    fast[key] = entry
                    if any(circuit.epoch is not epoch for circuit, epoch in pairs):
                        fast.pop(key, None)
            return False, entry, pairs, pool

    def _of_shared_pool(self, pool: Pool, tenant: str | None, limit: float, pairs: Pairs, *, plain: bool) -> Any:
        """As `_find`, for a tenant without an entry of its own. Lock held.

        The ticket is taken here: a moment later this tenant might have a pool of its own, and its limit twice.
        """
        try:
            ticket = self.tenants.take(pool, tenant, limit)
        except IndexError:
            return "tenant"
        if plain and all(isinstance(epoch, Closed) for _, epoch in pairs):
            return False, (lambda: ticket, *build(self, tenant, pool, pairs, known=False)[1:]), pairs, pool
        return True, (lambda: ticket, doors(self, pool)[1], *doors(self, self.shared), ignore), pairs, pool

    def _circuit_of(self, tenant: str | None) -> Circuit | None:
        o = self.options
        if tenant is None or not (o.tenant_circuit and o.circuit_breaker):
            return None
        return Circuit(o, self.clock(), self._switch, tenant)

    def _ask_for_limit(self, tenant: str | None) -> float | None:
        """The limit of a new tenant; None for a call within the user's function that is asked for this very limit.

        It may look the tier up by a client of this resource. Such a call is held to the resource's limits only.
        """
        if tenant is None or not callable(self.options.tenant_limits):
            return self._limit_of(tenant)
        asking = f"limit {self.identifier} {tenant}"
        if nesting.inside(asking):
            return None
        mark = nesting.mark(asking)
        try:
            return self._limit_of(tenant)
        finally:
            nesting.unmark(mark)

    def _limit_of(self, tenant: str | None) -> float:
        limit = self.options.tenant_limit(tenant)
        return inf if limit is None else limit

    def _idle(self, pool: Pool) -> bool:
        if pool.tenant in self.queue.lines:
            return False
        return pool.circuit is None or not pool.circuit.says_something(self.clock())

    def _switch(self, circuit: Circuit, epoch: Epoch) -> None:
        """Make an epoch current: first no new call may get an entry of the old one. Lock held.

        Once more afterwards: the call of a signal handler in between may have brought an entry back.
        """
        self._withdraw(circuit.tenant)
        circuit.epoch = epoch
        self._withdraw(circuit.tenant)

    def _withdraw(self, tenant: str | None) -> None:
        if tenant is None:
            self.special()
        else:
            self.fast.pop(tenant, None)
            self.aside.pop(tenant, None)

    def special(self) -> None:
        """Let no call pass without a question."""
        self.aside = {}
        self.fast = Off() if self.mode == OFF and self.successor is None else {}

    def _put_back(self, tenant: str | None, ticket: Any) -> None:
        """A tenant's ticket that was taken and not used."""
        if ticket.__class__ is Ticket and (pool := self.tenants.of(tenant)) is not None:
            pool.append(ticket)  # not `give`: serving waiters from here would never end; `_join` serves them

"""A protected resource: the tickets and the circuit of one identifier, as users and adapters see them.

The guarded call itself is admission.py; this file is what is said to it from outside: permits for direct use, manual
control, changes at run time, checkouts, and what can be asked about its state.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from bulkhead import events, nesting, tenancy
from bulkhead.admission import Gate
from bulkhead.circuit.epochs import Open
from bulkhead.counting import Tally
from bulkhead.errors import ConfigurationError
from bulkhead.outcomes import DIRECT, IGNORED, SUCCESS, Outcome, Site, verdict
from bulkhead.probes import is_probe, tell_ending
from bulkhead.refusals import kind_of
from bulkhead.sessions import Checkout, PermitContext
from bulkhead.tables import ENFORCE, OFF
from bulkhead.tickets.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bulkhead.circuit.machine import Change
    from bulkhead.option_set import Options

F = TypeVar("F", bound="Callable[..., Any]")


class TenantUse(NamedTuple):
    """One line of `top_tenants`: tickets in use and their limit (None: none), connections checked out."""

    tenant: str | None
    in_use: int
    limit: int | None
    connections: int = 0


class Resource(Gate):
    """One dependency. Get it from `bulkhead.resource(name, …)` or `bulkhead.find(identifier)`; never made directly.

    `resource.permit()` guards a block in `with` and `async with`; `@resource` guards a function: plain, coroutine,
    generator or async generator.
    """

    __slots__ = ()

    # ---- direct use

    def permit(self) -> PermitContext:
        """`with resource.permit():` or `async with`: the block is one guarded call.

        Raises CircuitOpenError, ResourceBusyError or UnknownTenantError instead of entering. Inside another permit of
        the same identifier it takes nothing. One block at a time; another may follow.
        """
        return PermitContext(self)

    def __call__(self, function: F) -> F:
        """Guard a function; its calls may raise what `permit()` raises. ConfigurationError for what is no function."""
        from bulkhead.guard import guarded  # noqa: PLC0415  guard builds on resources

        return cast("F", guarded(self, function))

    # ---- what adapters ask beside permits

    def guarded_by(self, driver: str) -> Resource:
        """Note that this driver guards calls by it. `nests`: more than one does, so marks of nesting are needed."""
        if driver not in self.drivers:
            self.drivers = (*self.drivers, driver)
            self.nests = len(self.drivers) > 1
            self.marked = self.marked or self.nests
        return self

    def mark(self) -> nesting.Mark:
        """Begin to be inside a call of this resource: nested ones are part of it. `nesting.unmark` ends it."""
        self.marked = True
        return nesting.mark(self.identifier)

    def check(self, site: Site) -> None:
        """Raise the site's open error while the circuit is open and its time not over; takes nothing, asks no probe."""
        if self.successor is not None:
            self._now().check(site)
        if self.successor is not None or self.mode != ENFORCE:
            return
        tenant = tenancy.current.get()
        pool = self.tenants.table.get(tenant)
        for circuit in (self.circuit, None if pool is None else pool.circuit):
            epoch = None if circuit is None else circuit.epoch
            if isinstance(epoch, Open) and (left := epoch.until - self.clock()) > 0:
                raise self._refusal(tenant, site, left)

    def report(self, error: BaseException | None, site: Site) -> Outcome:
        """The outcome of work that took no permit: a pool's own connect, a commit. Success while half-open: ignored.

        An error is also told as an event, with wait and duration 0.
        """
        if self.successor is not None:
            return self._now().report(error, site)
        if self.mode == OFF:
            return IGNORED
        outcome = SUCCESS if error is None else verdict(error, site, self.options, None, self.cancel_after)
        tenant = tenancy.current.get()
        self.report_to(self._pairs(self.tenants.table.get(tenant)), None, outcome, error, site, tenant)
        if error is not None and events.endings_wanted():
            tell_ending(outcome, (self.identifier, tenant, site.driver, site.scope, 0.0, 0.0), error)
        return outcome

    def _now(self) -> Resource:
        """The resource that is registered in the place of this one."""
        successor = self.successor
        return self if successor is None else cast("Resource", successor())

    def time_limit(self, ticket: Any) -> float | None:
        """Seconds that the attempt with this permit may last: call_timeout; for a probe the shorter of the two.

        None in the modes "shadow" and "off", which never end a call.
        """
        if self.mode != ENFORCE:
            return None
        limit, shorter = self.options.call_timeout, self.options.half_open_resource_timeout
        if shorter is not None and is_probe(ticket):
            return shorter if limit is None else min(limit, shorter)
        return limit

    def checkout(self, site: Site) -> Checkout:
        """A connection ticket (tenant_connections) of the tenant, or ResourceBusyError "connections" at once."""
        if self.successor is not None:
            return self._now().checkout(site)
        limit, tenant = self.options.tenant_connections, tenancy.current.get()
        if limit is None or tenant is None or self.mode == OFF:
            return Checkout(None, None)
        with self.lock:
            pool, _ = self.connections.obtain(
                tenant, lambda whose: Pool(whose, limit), {}, lambda pool: not pool.in_use
            )
            pool.limit = limit
            pool.fill()
            try:
                return Checkout(pool, self.connections.take(pool, tenant, limit))
            except IndexError:
                pass
        if self.mode == ENFORCE:
            raise self._refusal(tenant, site, "connections")
        self.would_reject(tenant, site, "connections")
        return Checkout(None, None)

    # ---- control

    def open(self, reason: str = "opened by hand") -> None:
        """Open the circuit until `close()` or `reset()`; announced."""
        self._control("open_by_hand", reason)

    def close(self, reason: str = "closed by hand") -> None:
        """Close the circuit and forget its failures; announced if it was not closed."""
        self._control("close", reason)

    def reset(self) -> None:
        """Close every circuit, the tenants' own too, and forget failures, back-off and counts of rejections."""
        if self.successor is not None:
            self._now().reset()
            return
        with self.lock:
            pools = self.tenants.everything()
            self.count_refusals_anew()
        for pool in pools:
            if (own := pool.circuit) is not None:
                with self.lock:
                    changes = own.close(self.clock(), "reset")
                self.announce(own, changes, DIRECT)
        self._control("close", "reset")

    def _control(self, what: str, reason: str) -> None:
        if self.successor is not None:
            self._now()._control(what, reason)  # noqa: SLF001  one of us
            return
        now = self.clock()
        with self.lock:
            changes = getattr(self.circuit, what)(now, reason)
        self.announce(self.circuit, changes, DIRECT)

    def update(self, **changes: Any) -> None:
        """Change options at run time, validated as at construction; ConfigurationError changes nothing.

        Limits and modes hold from the next call. A lowered limit is paid as tickets come back. A closed circuit counts
        anew by the new rule; an open one keeps its time (circuit_breaker=False closes it).
        name, identifier and maximum_tenants cannot change.
        """
        fixed = {"name", "identifier", "maximum_tenants", "dynamic"} & changes.keys()
        if fixed:
            raise ConfigurationError(f"{self.identifier}: {', '.join(sorted(fixed))} cannot change at run time")
        if self.successor is not None:
            self._now().update(**changes)
            return
        while not self.become((before := self.options).replace(**changes), changes, before=before):
            pass  # another thread changed other options meanwhile

    def become(
        self,
        options: Options,
        changed: Iterable[str],
        declared: Options | None = None,
        *,
        before: Options | None = None,
    ) -> bool:
        """Let these valid options hold, which differ from those before in `changed`.

        `declared`: what clients with this identifier may be built with from now on; None = as before. `before`: the
        options that were changed; False if they hold no more (None: whatever they are).
        """
        anew = not _CIRCUIT_OPTIONS.isdisjoint(changed)
        while True:
            # The user's function may be asked here: before the lock.
            limits = {tenant: self._of(options, tenant) for tenant in [None, *self.tenants.table.copy()]}
            with self.lock:
                if before is not None and self.options is not before:
                    return False
                if self.tenants.table.keys() <= limits.keys():
                    closed = self._adopt(options, limits, anew=anew)
                    self.declared = self.declared if declared is None else declared
                    break
        self.announce(self.circuit, closed, DIRECT)
        self.queue.serve_all()
        return True

    def _adopt(self, options: Options, limits: dict[str | None, float], *, anew: bool) -> tuple[Change, ...]:
        """Let new options hold. `anew`: closed circuits begin to count anew. Lock held."""
        pools, now = self.tenants.everything(), self.clock()
        self.options, self.mode = options, options.mode
        for pool in pools:
            pool.limit = limits[None if pool is self.tenants.overflow else pool.tenant]
            if not (options.tenant_circuit and options.circuit_breaker):
                pool.circuit = None
            elif pool.circuit is None and pool is not self.tenants.overflow:
                pool.circuit = self._circuit_of(pool.tenant)
        for circuit in [self.circuit, *(pool.circuit for pool in pools if pool.circuit is not None)]:
            if anew:
                circuit.adopt(options, now)
            else:
                circuit.options = options
        closed: tuple[Change, ...] = ()
        if not options.circuit_breaker and self.circuit.state != "closed":
            closed = self.circuit.close(now, "circuit_breaker was switched off")
        self.configure()
        return closed

    @staticmethod
    def _of(options: Any, tenant: str | None) -> float:
        limit = options.tenant_limit(tenant)
        return inf if limit is None else limit

    # ---- questions

    @property
    def state(self) -> str:
        """The shared circuit: "closed", "open" or "half_open". A period that is over shows as open until a call."""
        return self._now().circuit.state

    @property
    def in_use(self) -> int:
        """Resource tickets with callers; without `tickets` the sum of the tenants'."""
        if self.options.tickets is not None and (shared := self.shared) is not None:
            return shared.in_use
        return sum(pool.in_use for pool in self.tenants.everything())

    @property
    def limit(self) -> int | None:
        """The option `tickets`."""
        return self.options.tickets

    def top_tenants(self, n: int = 10) -> list[TenantUse]:
        """The n tenants that hold most now, most first: by tickets, then by connections (tenant_connections).

        Empty where no option makes the resource tell tenants apart. Tenants above maximum_tenants, which share their
        tickets, are told one by one too. Tenant None: calls without a tenant, where they are held to one limit.
        """
        with self.lock:
            pools, lent = self.tenants.table.copy(), self.connections.table.copy()
            late, late_lent = _holders(self.tenants.overflow), _holders(self.connections.overflow)
        in_use = {tenant: pool.in_use for tenant, pool in pools.items() if pool.in_use} | late
        connections = {tenant: pool.in_use for tenant, pool in lent.items() if pool.in_use} | late_lent
        used: list[TenantUse] = []
        for tenant in {**in_use, **connections}:
            limit = pools[tenant].limit if tenant in pools else self._limit_of(tenant)
            told = None if limit == inf else int(limit)
            used.append(TenantUse(tenant, in_use.get(tenant, 0), told, connections.get(tenant, 0)))
        return sorted(used, key=lambda one: (-one.in_use, -one.connections))[: max(0, n)]

    def explain(self) -> str:
        """In words: what is open or full, since when, because of what, and when the next probe may run."""
        from bulkhead.explaining import explain  # noqa: PLC0415  words, only needed when asked for

        return explain(self)

    # ---- what the registry asks

    def says_something(self) -> bool:
        """Would forgetting this resource forget something: tickets out, waiters, failures, an open period not over?"""
        now = self.clock()
        with self.lock:
            pools = [*self.tenants.everything(), *self.connections.everything()]
            if self.shared is not None:
                pools.append(self.shared)
            if self.queue.lines or self.circuit.says_something(now):
                return True
            return any(pool.in_use or (pool.circuit is not None and pool.circuit.says_something(now)) for pool in pools)

    def totals(self) -> dict[tuple[str, str], float]:
        """What was counted so far, for monitoring: it only grows.

        ("calls", outcome), ("rejections", reason), ("tenant_rejections", kind), ("waits", "count" | "seconds").
        """
        with self.lock:
            refused, waited = self.all_refusals(), tuple(self.waited)
            failures, ignored = self.failures.value, self.ignored.value
        found: dict[tuple[str, str], float] = {("calls", "failure"): failures, ("calls", "ignored"): ignored}
        for reason, number in refused.items():
            found["rejections", reason] = number
            if (kind := kind_of(self.identifier, reason)) is not None:
                found["tenant_rejections", kind] = found.get(("tenant_rejections", kind), 0) + number
        found |= {("waits", "count"): waited[0], ("waits", "seconds"): waited[1]}
        if self.successes is not None:
            found["calls", "success"] = self.successes.value
        return found

    def take_totals(self) -> dict[tuple[str, str], float]:
        """`totals`, and begin to count from 0."""
        with self.lock:
            found = self.totals()
            self.failures, self.ignored = Tally(), Tally()
            self.forget_refusals()
            self.waited = [0, 0.0]
            if self.successes is not None:
                self.successes = Tally()
            self.special()
        return found

    def retire(self, successor: Callable[[], Gate]) -> None:
        """Unregistered: whoever still holds this object is sent on to the one that is registered now."""
        with self.lock:
            self.successor = successor
            self.marked = True  # marks are seen by the successor only
            self.configure()
            self.special()

    def restore(self) -> None:
        """Registered again."""
        with self.lock:
            self.successor = None
            self.configure()

    def __repr__(self) -> str:
        limit = "no limit" if self.limit is None else f"{self.in_use} of {self.limit} tickets"
        mode = "" if self.mode == ENFORCE else f", mode {self.mode}"
        return f"<Resource {self.identifier} {self.state}, {limit}{mode}>"


def _holders(shared: Pool | None) -> dict[str | None, int]:
    """Who holds how many tickets of a pool that late tenants share: its tickets say so. Lock held."""
    found: dict[str | None, int] = {}
    for ticket in () if shared is None else [known() for known in shared.watch.copy()]:
        if ticket is not None and ticket.since and ticket not in shared:  # type: ignore[operator]
            tenant = ticket.since[0][1]
            found[tenant] = found.get(tenant, 0) + 1
    return found


_CIRCUIT_OPTIONS = {
    "circuit_breaker",
    "error_tenants",
    "error_threshold",
    "error_threshold_timeout",
    "error_threshold_timeout_enabled",
    "error_timeout",
    "lumping_interval",
}

"""The slow path: everything a call has to be asked when it is not in the fast table.

`Gate.fast` maps a tenant to its entry `(take, give, take_shared, give_shared, failed)`. It holds an entry only while
a call of that tenant may pass without a question. Whatever is special is expressed by absence: an unknown or evicted
tenant, an open or half-open circuit, somebody waiting, a limit lowered and not yet paid, shadow mode, a subscriber, a
forked child. The look-up fails, or a pool is empty: both are a LookupError, and the call comes here. To make something
special is one store, `fast = {}`; entries come back one by one.

Rules: locks only by `with`, no loop directly in its block (see tickets/waiting.py); under the lock nothing but our own
bookkeeping runs; no lock is held across a driver call, user code, an await or a subscriber. What is stored last is what
makes a change true, so an exception between any two instructions leaves the state before or after it.
"""

from __future__ import annotations

import threading
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from bulkhead import events, nesting, tenancy
from bulkhead.circuit.epochs import Closed
from bulkhead.circuit.machine import Circuit
from bulkhead.counting import GIL, Tally
from bulkhead.entries import GHOST_PERMIT, Due, nothing
from bulkhead.outcomes import DIRECT, Site
from bulkhead.patience import patience
from bulkhead.probes import Probe, Watched
from bulkhead.refusals import UNKNOWN
from bulkhead.tables import ENFORCE, OFF, Tables
from bulkhead.tickets.pool import Pool, Ticket
from bulkhead.tickets.tenants import TenantPools
from bulkhead.tickets.waiting import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.entries import Permit
    from bulkhead.option_set import Options

current_tenant = tenancy.current.get

AGAIN = -1.0  # a circuit changed while it was asked
Answer = Any  # a permit; the limit that is reached, or UNKNOWN; seconds until the next probe
CANCEL_AFTER = 5.0  # seconds, where neither an option nor the driver says more


class Gate(Tables):
    """Tickets and circuit of one identifier, and the fast table in front of both.

    Invariant: a ticket that is out belongs to exactly one call; a cap is never exceeded, not even for an instant.
    """

    __slots__ = (
        "__weakref__",
        "at_once",
        "busy_at_once",
        "connections",
        "declared",
        "drivers",
        "key",
        "late",
        "limits_time",
        "marked",
        "nests",
        "read_timeout",
        "waited",
    )

    def __init__(
        self,
        identifier: str,
        options: Options,
        clock: Callable[[], float] = monotonic,
        read_timeout: float | None = None,
        declared: Options | None = None,
    ) -> None:
        self.declared = options if declared is None else declared
        self.drivers: tuple[str, ...] = ()  # who guards calls by it; several: one may be called inside another
        self.nests = False
        # May the current code be inside a call of this resource? Looking for a mark costs more than this attribute.
        self.marked = nesting.may_be_inside(identifier)
        self.touched = False
        # A Late stands for a resource that is not known yet. A slot: found faster than an attribute of the class.
        self.late = False
        self.identifier, self.options, self.clock, self.read_timeout = identifier, options, clock, read_timeout
        self.mode = options.mode
        self.successor = None
        self.successes: Tally | None = None
        self.fast = {}
        self.aside = {}
        self.fresh()

    def fresh(self) -> None:
        """Begin with nothing held and a closed circuit. Also in a forked child, where nothing of the parent counts."""
        self.lock = threading.RLock()
        self.tenants = TenantPools(self.options.maximum_tenants)
        self.connections = TenantPools(self.options.maximum_tenants)
        self.shared: Pool | None = None
        self.queue = Queue(self)
        self.circuit = Circuit(self.options, self.clock(), self._switch)
        self.due = inf
        self.failures, self.ignored = Tally(), Tally()
        self.forget_refusals()
        self.waited = [0, 0.0]  # calls that waited for a ticket, seconds they waited
        if self.successes is not None:
            self.successes = Tally()
        self.configure()

    def configure(self) -> None:
        """What follows from the options, at the start and whenever they change. Lock held, or nobody else knows us."""
        o = self.options
        self.limits_time = o.limits_time and self.mode == ENFORCE  # else nothing is ended
        self.timed = o.call_timeout is not None and o.circuit_breaker
        # Does a success say more than that tickets are back? Else an early verdict of success says nothing.
        self.settles = self.timed or not o.error_threshold_timeout_enabled or o.error_tenants > 1
        self.per_tenant = o.counts_tenants or (o.tenant_circuit and o.circuit_breaker) or tenancy.policy() == "reject"
        limit = inf if o.tickets is None and self.timed else o.tickets  # call_timeout needs tickets to write times on
        if limit is None:
            self.shared = None
        elif self.shared is None:
            self.shared = Pool(None, limit)
        else:
            self.shared.limit = limit
        if o.cancel_counts_after != "auto":
            self.cancel_after = o.cancel_counts_after
        elif o.call_timeout is not None:
            self.cancel_after = o.call_timeout
        else:
            self.cancel_after = CANCEL_AFTER if self.read_timeout is None else self.read_timeout / 2
        self.key: Callable[[], str | None] = tenancy.current.get if self.per_tenant else nothing
        # Refusals that nobody else has to hear of; of "no ticket", those that depend on nothing else either.
        self.at_once = self.mode == ENFORCE and self.successor is None and not events.anybody()
        special = self.timed or o.timeout or o.circuit_counts_busy or o.tenant_circuit
        self.busy_at_once = self.at_once and not special
        self.due = -inf if self.timed else inf  # call_timeout may be shorter now: look at the next call
        self.special()

    # ---- what adapters call

    def begin(self, site: Site) -> Permit:
        """Take a permit: `(ticket, give, shared, give_shared, failed)`. Raises the site's rejection."""
        ticket = None
        try:
            take, give, take_shared, give_shared, failed = self.fast[self.key()]
            ticket = take()
            return ticket, give, take_shared(), give_shared, failed
        except LookupError:
            return self.enter(site, ticket)

    async def abegin(self, site: Site) -> Permit:
        """The same where waiting for a ticket must not block the event loop."""
        ticket = None
        try:
            take, give, take_shared, give_shared, failed = self.fast[self.key()]
            ticket = take()
            return ticket, give, take_shared(), give_shared, failed
        except LookupError:
            return await self.aenter(site, ticket)

    def enter(self, site: Site, ticket: Any = None) -> Permit:
        """The slow path of a plain call. `ticket`: the tenant's, taken already, while the resource's pool was empty."""
        if ticket is not None:
            self._put_back(tenancy.current.get(), ticket)
        epoch = self.circuit.epoch
        # The refusal that has to be cheapest. Raised here: each frame that an exception leaves costs a lot.
        if (
            (cause := epoch.plain) is not None and self.at_once and (left := epoch.until - self.clock()) > 0  # type: ignore[operator]  # it is open
        ):
            tally = self.refused_open
            if GIL:
                number = tally.value = tally.value + 1
            else:
                number = tally.add()
            if not number & (number - 1):
                self._log_refusal("open", number)
            raise site.open_error(self.identifier, current_tenant(), left) from cause()
        if self.busy_at_once and (refusal := self._busy_at_once(site)):
            raise refusal.pop()
        if (successor := self.successor) is not None:  # read once, here and below: it may be unset at any moment
            return successor().enter(site)
        answer = self._decide(site)
        if answer.__class__ is tuple:
            return answer
        tenant = tenancy.current.get()
        if answer.__class__ is str and (seconds := patience(self, tenant, answer)) is not None:
            began = monotonic()
            answer = self._granted(tenant, began, self.queue.wait(tenant, site, seconds))
            if answer.__class__ is tuple:
                return answer
        raise self._refusal(tenant, site, answer)

    async def aenter(self, site: Site, ticket: Any = None) -> Permit:
        """The slow path of a coroutine."""
        if not self.options.timeout and not self.queue.lines and self.successor is None:
            return self.enter(site, ticket)  # nobody waits here
        if ticket is not None:
            self._put_back(tenancy.current.get(), ticket)
        if (successor := self.successor) is not None:
            return await successor().aenter(site)
        answer = self._decide(site)
        if answer.__class__ is tuple:
            return answer
        tenant = tenancy.current.get()
        if answer.__class__ is str and (seconds := patience(self, tenant, answer, in_loop=True)) is not None:
            began = monotonic()
            if seconds:
                said = await self.queue.wait_async(tenant, site, seconds)
            else:
                said = self.queue.wait(tenant, site, seconds)
            answer = self._granted(tenant, began, said)
            if answer.__class__ is tuple:
                return answer
        raise self._refusal(tenant, site, answer)

    # ---- decisions

    def _decide(self, site: Site) -> Answer:
        """A permit, or what stands against it. Never waits."""
        if not self.at_once and events.anybody():
            events.next_call()
        tenant = tenancy.current.get()
        self.touched = True
        if self.timed and self.clock() >= self.due:
            self._find_overdue()
        if self.mode != ENFORCE:
            return self._unenforced(tenant, site)
        epoch = self.circuit.epoch
        if epoch.until is not None and (left := epoch.until - self.clock()) > 0:
            self.circuit.asked_while_open(tenant)
            return left
        if tenant is None and tenancy.policy() == "reject":
            return UNKNOWN
        if self.queue.lines:
            return self._full(tenant) or "resource"  # who asks now must not overtake
        return self.attempt(tenant, site)

    def attempt(self, tenant: str | None, site: Site) -> Answer:
        """A permit, the limit that is reached, or seconds until the next probe."""
        while True:
            if self.aside and not site.connects and (known := self._by_known_entry(tenant, site)) is not None:
                return known
            if (left := self._ask(tenant)) is not None:
                return left
            if (full := self._full(tenant)) is not None:
                if self.timed and self.clock() >= self.due:  # if all hang and the others wait, nobody else asks
                    self._find_overdue()
                    continue
                return full
            found = self._find(tenant, plain=not site.connects)
            if found is None:
                continue
            if found.__class__ is str:
                return found
            raw, entry, pairs, pool = found
            ticket = None
            try:
                ticket = entry[0]()
                shared = entry[2]()
            except IndexError:
                if ticket.__class__ is Ticket:
                    pool.append(ticket)
                elif pool is not None and pool.full():
                    return "tenant"
                if (whole := self.shared) is not None and whole.full():
                    return "resource"
                continue  # one came back, or may be made: look again
            except Due:
                if ticket.__class__ is Ticket:
                    pool.append(ticket)
                self._find_overdue()
                continue
            permit: Permit = (ticket, entry[1], shared, entry[3], entry[4])
            if raw:
                probe = Probe(self, permit, pairs, site, tenant)
                if (left := self._probe(probe)) is not None:
                    permit[3](shared)
                    permit[1](ticket)
                    if left is AGAIN:
                        continue
                    return left
                permit = probe.permit()
            if events.endings_wanted():
                permit = Watched(self, permit, site, tenant).permit()
            return permit

    def _by_known_entry(self, tenant: str | None, site: Site) -> Permit | None:
        """A permit by an entry that would be in the fast table, were it not for the mode or a subscriber."""
        entry = self.aside.get(tenant if self.per_tenant else "")
        if entry is None:
            return None
        ticket = None
        try:
            ticket = entry[0]()
            permit: Permit = (ticket, entry[1], entry[2](), entry[3], entry[4])
        except LookupError:
            self._put_back(tenant, ticket)
            return None
        return Watched(self, permit, site, tenant).permit() if events.endings_wanted() else permit

    def _ask(self, tenant: str | None) -> float | None:
        """Ask the shared circuit, then the tenant's own."""
        if self.circuit.epoch.state != "closed" and (left := self._ask_one(self.circuit, tenant)) is not None:
            return left
        if not (self.per_tenant and self.options.tenant_circuit):
            return None
        pool = self.tenants.table.get(tenant)
        own = None if pool is None else pool.circuit
        return None if own is None or own.epoch.state == "closed" else self._ask_one(own, tenant)

    def _ask_one(self, circuit: Circuit, tenant: str | None) -> float | None:
        now = self.clock()
        with self.lock:
            left, changes = circuit.ask(now)
            circuit.asked_while_open(tenant)
        self.announce(circuit, changes, DIRECT)
        return left

    def _probe(self, probe: Probe) -> float | None:
        """A place in each half-open circuit for this probe, or the seconds until there may be one, or AGAIN."""
        now = self.clock()
        with self.lock:
            return self._places(probe, now)

    @staticmethod
    def _places(probe: Probe, now: float) -> float | None:
        """As `_probe`. Lock held."""
        for circuit, epoch in probe.pairs:
            if isinstance(epoch, Closed):
                continue
            # Another epoch has begun since the circuits were asked: ask them again.
            left = AGAIN if circuit.epoch is not epoch else circuit.probe(probe, now, probe.tenant)
            if left is not None:
                for other, begun in probe.pairs:
                    other.give_place_back(begun, probe)
                return left
        return None

    # ---- modes

    def _unenforced(self, tenant: str | None, site: Site) -> Answer:
        if self.mode == OFF:
            return GHOST_PERMIT
        answer = UNKNOWN if tenant is None and tenancy.policy() == "reject" else self.attempt(tenant, site)
        if answer.__class__ is tuple:
            return answer
        self.would_reject(tenant, site, answer)
        return GHOST_PERMIT

    # ---- waiting

    def _granted(self, tenant: str | None, began: float, said: Any) -> Answer:
        """What waiting led to."""
        waited = monotonic() - began
        with self.lock:
            self.waited[0] += 1
            self.waited[1] += waited
        if said is None:
            return self._full(tenant) or "resource"
        if said.__class__ is tuple and said[0].__class__ is Watched:
            said[0].waited = waited
        return said

    def pass_on(self, permit: Permit) -> None:
        """Give a permit back that nobody used: no outcome."""
        if permit[0].__class__ is Watched:  # no call that ended: nobody shall hear of it
            permit = permit[0].inner
        ticket, _, shared, _, failed = permit
        failed(ticket, shared, GeneratorExit(), DIRECT, None)

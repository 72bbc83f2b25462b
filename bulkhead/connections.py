"""max_db_connections: how many database connections of this process one tenant may have checked out at once.

One limit over all SQLAlchemy engines and psycopg pools of the process, configured or not, beside the
`tenant_connections` of each. A checkout at the limit is refused at once, whatever time-outs there are: a handler that
holds one connection and waits for its second would wait for others that do the same. The adapters call `checkout`
and keep what it returns with the connection; this file knows no driver and no request.

`caps.on` is all that a hook looks at while there is no limit. Rules for a change: what is known of a tenant is the
pool of its tickets, in a table that is bounded; the user's function is asked outside the lock; giving a ticket back
needs no lock, and one that is lost with its connection comes back by itself (tickets/pool.py).
"""

from __future__ import annotations

import logging
import os
import threading
from math import inf
from typing import TYPE_CHECKING, cast

from bulkhead import events, tenancy
from bulkhead.counting import Tallies
from bulkhead.errors import ConfigurationError
from bulkhead.log_lines import say
from bulkhead.nesting import inside, mark, unmark
from bulkhead.option_rows import MAXIMUM_COUNT, Refused, is_limit, limits, shown
from bulkhead.option_set import DEFAULTS
from bulkhead.process_values import disabled
from bulkhead.sessions import Checkout
from bulkhead.tickets.pool import Pool
from bulkhead.tickets.tenants import TenantPools

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bulkhead.errors import Rejected
    from bulkhead.outcomes import Site

__all__ = ["IDENTIFIER", "LENDING", "caps", "checkout", "held", "limit", "set_limit", "totals"]

log = logging.getLogger("bulkhead")

IDENTIFIER = "server:connections"
"""What refusals, events and `bulkhead.bypass` call this limit. It is no registered resource."""
LENDING = "server:connections:lending"
"""The mark inside one engine's checkout: a psycopg pool that makes the engine's connections lends the same one."""
REASON = "connections"

Limit = int | None


class Rule:
    """What `set_limit` was given: tenant -> limit. Replaced as a whole, never changed."""

    __slots__ = ("_ask", "_default", "_said", "_table", "off")

    def __init__(self, value: object) -> None:
        self._ask: Callable[[str], object] | None = None
        self._table: Mapping[str, Limit] = {}
        self._default: Limit = None
        self._said = False
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAXIMUM_COUNT:
            self._default = value
        else:
            try:
                kept = limits(value)
            except Refused as refused:
                raise ConfigurationError(
                    f"max_db_connections must be a whole number from 0 to {MAXIMUM_COUNT:,} (0 = no limit), a mapping "
                    "tenant -> such a number with the key 'default' for the others, or a callable that takes the "
                    f"tenant, not {shown(value)}{refused}"
                ) from None
            if callable(kept):
                self._ask = cast("Callable[[str], object]", kept)
            elif kept is not None:
                self._table = cast("Mapping[str, Limit]", kept)
                self._default = self._table.get("default")
        self.off = not (self._ask or self._table or self._default)

    def of(self, tenant: str | None) -> float:
        """The tenant's limit; inf = none. For no tenant: what a tenant that is not named gets. Never raises."""
        if tenant is None or self._ask is None:
            found = self._default if tenant is None else self._table.get(tenant, self._default)
            return found or inf
        around = mark(IDENTIFIER)  # a connection that it looks the limit up with is not counted: no end of asking
        try:
            answer = self._ask(tenant)
        except Exception as error:  # noqa: BLE001  the user's code: accounting must not raise into a checkout
            return self._complain(f"raised {type(error).__name__}")
        finally:
            unmark(around)
        if not is_limit(answer):
            return self._complain(f"answered {shown(answer)}, no limit")
        return cast("Limit", answer) or inf

    def _complain(self, what: str) -> float:
        if not self._said:
            self._said = True
            log.warning("[BULKHEAD] max_db_connections: the callable %s; no limit holds then (said once)", what)
        return inf


class Caps:
    """The connections that each tenant of this process has checked out.

    Invariant: a tenant's tickets that are out are never more than its limit was when the last of them was taken.
    """

    __slots__ = ("_lock", "_maximum", "_pools", "_refused", "on", "rule")

    def __init__(self, maximum_tenants: int) -> None:
        self.rule = Rule(None)
        self.on = False
        """Is there a limit? What every hook tests first."""
        self._maximum = maximum_tenants
        self.fresh()

    def fresh(self) -> None:
        """Nothing is held and nothing counted. Also in a forked child, where nothing of the parent counts."""
        self._lock = threading.RLock()  # a signal handler or a finalizer may check out a connection, too
        self._pools = TenantPools(self._maximum)
        self._refused = Tallies()

    def adopt(self, rule: Rule) -> None:
        """Let another rule hold from the next checkout."""
        with self._lock:
            self.rule = rule
            self.on = not rule.off and not disabled("tickets")

    def checkout(self, site: Site) -> Checkout | None:
        """A ticket of the current tenant; None: this checkout is not counted. Raises the site's rejection."""
        tenant = tenancy.current.get()
        policy = tenancy.policy() if tenant is None else None
        if policy == "allow" or inside(IDENTIFIER):
            return None
        if policy == "reject":
            raise self._unknown_tenant(site)
        while True:
            rule = self.rule
            limit = rule.of(tenant)
            with self._lock:
                answer = self._take(tenant, limit) if rule is self.rule else -1
            if isinstance(answer, Checkout):
                return answer
            if answer >= limit:
                raise self._refusal(tenant, site, answer, limit)
            # Another rule holds by now, one came back this moment, or a nested call took what was free: look again.

    def _take(self, tenant: str | None, limit: float) -> Checkout | int:
        """The ticket, or how many the tenant holds. Lock held."""
        pools = self._pools
        # What late tenants share has no limit of its own, so each of them has its own limit there.
        pool, _ = pools.obtain(tenant, lambda whose: Pool(whose, inf), {}, lambda pool: not pool.in_use)
        if pool is not pools.overflow:
            pool.limit = limit
        pool.fill()
        try:
            return Checkout(pool, pools.take(pool, tenant, limit))
        except IndexError:
            return pools.held(tenant)

    def held(self, tenant: str | None) -> int:
        """Connections that this tenant has checked out."""
        with self._lock:
            return self._pools.held(tenant)

    def numbers(self) -> dict[str, int]:
        """Refusals by reason, those above 0."""
        return self._refused.numbers()

    # ---- refusals: the caller raises what it gets at once, see refusals.py

    def _refusal(self, tenant: str | None, site: Site, held: int, limit: float) -> Rejected:
        self._announce(tenant, site, REASON)
        return site.errors.busy(IDENTIFIER, tenant, REASON, _in_words(tenant, held, limit))

    def _unknown_tenant(self, site: Site) -> Rejected:
        self._announce(None, site, "unknown_tenant")
        return site.errors.unknown_tenant(IDENTIFIER, None)

    def _announce(self, tenant: str | None, site: Site, reason: str) -> None:
        number = self._refused[reason].add()
        if not number & (number - 1):  # only the 1st, 2nd, 4th, 8th …: rate-limited without reading a clock
            say("rejected", identifier=IDENTIFIER, reason=reason, count=number)
        if events.anybody():
            events.tell(events.Busy(IDENTIFIER, tenant, site.driver, site.scope, reason))


def _in_words(tenant: str | None, held: int, limit: float) -> str:
    whose = "the tenant holds" if tenant is not None else "work outside any tenant holds"
    what = "1 database connection" if held == 1 else f"{held} database connections"
    return (
        f"{whose} {what} of this process, max_db_connections is {limit:.0f}; a nested second Session or connection "
        "is a second connection: max_db_connections must be at least what one handler holds"
    )


caps = Caps(cast("int", DEFAULTS["maximum_tenants"]))
os.register_at_fork(after_in_child=caps.fresh)
_hooks: list[Callable[[], object]] = []


def set_limit(value: int | Mapping[str, Limit] | Callable[[str], Limit] | None) -> None:
    """Cap the database connections that one tenant may have checked out in this process; 0 or None: no cap.

    A number for every tenant, a mapping tenant -> number (copied; the key "default" is for tenants not named, without
    it they have no cap), or a plain callable(tenant) -> number, which is asked at each checkout and must be quick; in
    all of them 0 and None mean no cap. A callable that raises caps nothing, said once in the log; connections that it
    checks out itself are not counted. Holds from the next checkout: what is out above a lowered limit stays out. What
    was checked out while there was no cap is not counted.

    At least what one handler holds at a time. Patches SQLAlchemy and psycopg if `bulkhead.install()` has not.
    ConfigurationError for other values, and where `adapters` is somebody else's package; nothing changes then.
    Without effect where BULKHEAD_DISABLED or BULKHEAD_TICKETS_DISABLED is set.

    Not counted: plain `psycopg.connect`; SQLAlchemy's StaticPool and SingletonThreadPool, which lend one connection
    several times; pool classes of others with a `connect` of their own that does not call SQLAlchemy's; a bound
    `pool.connect` or `pool.getconn` that was kept from before the drivers were patched.
    """
    rule = Rule(value)
    if not rule.off:
        for hook in tuple(_hooks):
            hook()
    caps.adopt(rule)


def limit(tenant: str | None) -> int | None:
    """The cap that holds for this tenant now; None: it has none."""
    found = caps.rule.of(tenant) if caps.on else inf
    return None if found == inf else int(found)


def held(tenant: str | None) -> int:
    """Connections that this tenant has checked out now, of those that are counted."""
    return caps.held(tenant)


def totals() -> dict[tuple[str, str], float]:
    """Refusals so far, as in `Resource.totals`: ("rejections", "connections" | "unknown_tenant") -> number above 0."""
    return {("rejections", reason): number for reason, number in caps.numbers().items()}


def checkout(site: Site) -> Checkout | None:
    """For adapters, where `caps.on`: a connection ticket of the current tenant, to be ended at check-in.

    None: nothing is counted (no tenant and policy "allow"; `bypass`). Raises the site's ResourceBusyError with the
    limit "connections", or its UnknownTenantError, at once.
    """
    return caps.checkout(site)


def before_limiting(hook: Callable[[], object]) -> None:
    """Call this before a limit is set; for the core (set-up patches the drivers), for the life of the process."""
    if hook not in _hooks:
        _hooks.append(hook)

"""Refusals: the rejection that a caller gets, counted, logged and announced."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from bulkhead import events, tenancy
from bulkhead.accounting import Account
from bulkhead.circuit.epochs import Closed
from bulkhead.counting import Tallies, Tally
from bulkhead.log_lines import say
from bulkhead.outcomes import FAILURE, Site

if TYPE_CHECKING:
    from bulkhead.errors import Rejected
    from bulkhead.tickets.tenants import TenantPools

UNKNOWN = "unknown_tenant"
_SHADOW = "shadow_"
_ADMISSION = "server:"  # resources that stand for requests and websockets, not for a dependency


def kind_of(identifier: str, reason: str) -> str | None:
    """Whose limit a refusal found reached: "request" or "db" if it was that of one tenant, else None."""
    if reason == "requests" or (reason == "tenant" and identifier.startswith(_ADMISSION)):
        return "request"
    return "db" if reason in ("tenant", "connections") else None


class Refusals(Account):
    """The other half of the books: calls that were not let through. None of them is an outcome of the resource."""

    __slots__ = ("refused", "refused_at", "refused_earlier", "refused_open", "tenants", "touched")

    refused: Tallies  # by reason
    refused_at: dict[str, tuple[float, int, float]]  # reason -> when the first was, the last that was logged, and when
    refused_earlier: dict[str, int]  # before `reset()`: counters of a monitoring system must not go back
    refused_open: Tally
    tenants: TenantPools
    touched: bool  # asked since the hand that collects resources came by

    def forget_refusals(self) -> None:
        """Count refusals from zero."""
        self.refused_open = Tally()
        self.refused = Tallies({"open": self.refused_open})  # by reason
        self.refused_at = {}
        self.refused_earlier = {}

    def count_refusals_anew(self) -> None:
        """Count refusals from zero for people; `all_refusals` goes on."""
        earlier = self.all_refusals()
        self.forget_refusals()
        self.refused_earlier = earlier

    def all_refusals(self) -> dict[str, int]:
        """Refusals by reason, those before `reset()` included."""
        numbers, earlier = self.refused.numbers(), self.refused_earlier
        return {reason: numbers.get(reason, 0) + earlier.get(reason, 0) for reason in {**earlier, **numbers}}

    def _busy_at_once(self, site: Site) -> list[Rejected] | None:
        """The refusal "no ticket" where nothing special is to be asked. None: ask the gate, which knows everything.

        In a list, which the caller empties as it raises: an error that a local name keeps is a cycle with the frame
        that its traceback holds, garbage at each refusal.
        """
        tenant = tenancy.current.get()
        if self.per_tenant:
            if tenant is None or (pool := self.tenants.table.get(tenant)) is None:
                return None
            limit = "tenant" if pool.full() else "resource"
        else:
            limit = "resource"
        if limit == "resource" and ((whole := self.shared) is None or not whole.full()):
            return None
        if self.circuit.epoch.state != "closed" or self.queue.lines:
            return None
        self.touched = True
        number = self.refused[limit].add()
        if not number & (number - 1):
            self._log_refusal(limit, number)
        error = site.errors.busy(self.identifier, tenant, limit)
        error.__cause__ = None
        return [error]

    def would_reject(self, tenant: str | None, site: Site, answer: Any) -> None:
        """Announce what mode "enforce" would have refused."""
        reason = _SHADOW + (answer if answer.__class__ is str else "open")
        self._log_refusal(reason, self.refused[reason].add())
        if events.anybody():
            error = self._rejection(tenant, site, answer)
            events.tell(events.WouldReject(self.identifier, tenant, site.driver, site.scope, error))

    def _refusal(self, tenant: str | None, site: Site, answer: Any) -> Rejected:
        """The error for a refusal, announced.

        The caller raises it at once: few frames are unwound, and no local name keeps it, which would be a cycle with
        the frame that its traceback holds.
        """
        reason = answer if answer.__class__ is str else "open"
        number = self.refused[reason].add()
        if not number & (number - 1):
            self._log_refusal(reason, number)
        if self.options.circuit_counts_busy and answer.__class__ is str and answer != UNKNOWN:
            busy = site.errors.busy(self.identifier, tenant, answer)
            self.report_to(self._pairs(self.tenants.of(tenant)), None, FAILURE, busy, site, tenant)
        if events.anybody():
            if not isinstance(answer, str):
                after: float | None = None if answer == inf else answer
                events.tell(events.CircuitOpen(self.identifier, tenant, site.driver, site.scope, after))
            else:
                events.tell(events.Busy(self.identifier, tenant, site.driver, site.scope, answer))
        return self._rejection(tenant, site, answer)

    def _rejection(self, tenant: str | None, site: Site, answer: Any) -> Rejected:
        error: Rejected
        if not isinstance(answer, str):
            after: float | None = None if answer == inf else answer
            error = site.errors.open(self.identifier, tenant, after)
            error.__cause__ = self._why(tenant)
        elif answer == UNKNOWN:
            error = site.errors.unknown_tenant(self.identifier, None)
            error.__cause__ = None
        else:
            error = site.errors.busy(self.identifier, tenant, answer)
            error.__cause__ = None
        return error

    def _why(self, tenant: str | None) -> BaseException | None:
        epoch = self.circuit.epoch
        if isinstance(epoch, Closed) and (pool := self.tenants.table.get(tenant)) is not None and (own := pool.circuit):
            epoch = own.epoch
        cause = None if isinstance(epoch, Closed) else epoch.cause
        return None if cause is None else cause.fresh()

    def _log_refusal(self, reason: str, number: int) -> None:
        if number & (number - 1):
            return  # only the 1st, 2nd, 4th, 8th …: rate-limited without reading a clock
        now = self.clock()
        first = now if number == 1 else self.refused_at.get(reason, (now,))[0]
        self.refused_at[reason] = first, number, now
        event, why = (
            ("would_reject", reason.removeprefix(_SHADOW)) if reason.startswith(_SHADOW) else ("rejected", reason)
        )
        say(event, identifier=self.identifier, reason=why, count=number)

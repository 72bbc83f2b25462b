"""Calls that need more than giving tickets back: probes and connects, and calls that a subscriber watches.

Each stands in a permit in the place of the tenant's ticket. Nothing else holds it strongly: one that is dropped on the
floor takes its tickets with it, which return by themselves, and a probe's place, known weakly, is free again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from bulkhead import events
from bulkhead.entries import ignore
from bulkhead.outcomes import Outcome, Site, overrun, verdict

if TYPE_CHECKING:
    from bulkhead.admission import Gate
    from bulkhead.circuit.epochs import Epoch
    from bulkhead.circuit.machine import Circuit
    from bulkhead.entries import Permit

    Pairs = tuple[tuple[Circuit, Epoch], ...]

log = logging.getLogger("bulkhead")


class Probe:
    """A call that reports to its circuits itself: while half-open, and every connect."""

    __slots__ = ("__weakref__", "dated", "gate", "inner", "pairs", "settled", "site", "started", "tenant")

    def __init__(self, gate: Gate, inner: Permit, pairs: Pairs, site: Site, tenant: str | None) -> None:
        self.gate, self.inner, self.pairs, self.site, self.tenant = gate, inner, pairs, site, tenant
        self.settled = False
        self.started = gate.clock()
        # A probe has a lease. Any other call is found by its ticket if it hangs, as in entries.
        self.dated = hasattr(inner[2], "since") and gate.timed and all(epoch.state == "closed" for _, epoch in pairs)
        if self.dated:
            inner[2].since.append((self.started, tenant, pairs))

    def permit(self) -> Permit:
        """A permit with this call in the place of the tenant's ticket."""
        return self, _probe_ended, None, ignore, _probe_failed

    def _counted(self) -> bool:
        """Did it hang, and was that counted while it did?"""
        if not self.dated:
            return False
        try:
            self.inner[2].since.pop()  # pyright: ignore[reportOptionalMemberAccess]  a dated call has a ticket
        except IndexError:
            return True
        return False

    def end(self) -> None:
        """It ended well."""
        try:
            if not self.settled and not self._counted():
                limit = self.gate.options.call_timeout
                late = limit is not None and self.gate.clock() - self.started > limit
                outcome = Outcome.FAILURE if late else Outcome.SUCCESS
                self._report(outcome, overrun(limit or 0.0) if late else None)
        finally:
            self._give_back()

    def fail(self, error: BaseException, site: Site, started: float | None) -> Outcome:
        """It raised. Returns what it counted as."""
        gate = self.gate
        try:
            if not self.settled and self._counted():
                return Outcome.FAILURE
            lasted = gate.clock() - (self.started if started is None else started)
            outcome = verdict(error, site, gate.options, lasted, gate.cancel_after)
            self._report(outcome, error)
            return outcome
        finally:
            self._give_back()

    def settle(self, error: BaseException | None, site: Site, started: float | None, rest: str) -> Permit:
        """The verdict is given now. `rest`: "tickets" stay out, or only the "epoch" is kept."""
        try:
            if not self.settled and not self._counted():
                gate = self.gate
                now, limit = gate.clock(), gate.options.call_timeout
                if error is not None:
                    lasted = now - (self.started if started is None else started)
                    self._report(verdict(error, site, gate.options, lasted, gate.cancel_after), error)
                elif limit is not None and now - self.started > limit:
                    self._report(Outcome.FAILURE, overrun(limit))
                else:
                    self._report(Outcome.SUCCESS, None)
        finally:
            self.settled = True
            if rest == "epoch":
                self._give_back()
        return self.permit()

    def _report(self, outcome: Outcome, error: BaseException | None) -> None:
        try:
            self.gate.report_to(self.pairs, self, outcome, error, self.site, self.tenant)
        except Exception:
            log.exception("[BULKHEAD] the outcome of a call of %s could not be noted", self.gate.identifier)

    def _give_back(self) -> None:
        ticket, give, shared, give_shared, _ = self.inner
        self.inner = (None, ignore, None, ignore, ignore)
        give_shared(shared)
        give(ticket)


def _probe_ended(probe: Probe) -> None:
    probe.end()


def _probe_failed(
    probe: Probe, _: Any, error: BaseException | None, site: Site, started: float | None, rest: str | None = None
) -> Permit | Outcome:
    if error is None or rest:
        return probe.settle(error, site, started, rest or "tickets")
    return probe.fail(error, site, started)


def tell_ending(outcome: Any, facts: tuple[str, str | None, str, str, float, float], error: BaseException) -> None:
    """Deliver the event of a call that raised; `facts`: all fields but the error."""
    if outcome is Outcome.FAILURE:
        events.tell(events.Failure(*facts, error))
    elif outcome is Outcome.SUCCESS:
        events.tell(events.Success(*facts))
    else:
        events.tell(events.Ignored(*facts, error))


class Watched:
    """Any permit, and the event that tells how the call ended."""

    __slots__ = ("__weakref__", "began", "gate", "inner", "settled", "site", "tenant", "verdict", "waited")

    def __init__(self, gate: Gate, inner: Permit, site: Site, tenant: str | None) -> None:
        self.gate, self.inner, self.site, self.tenant = gate, inner, site, tenant
        self.waited = 0.0
        self.settled = False
        self.began = gate.clock()
        self.verdict: BaseException | None = None  # given before the end, of a call that did not raise

    def permit(self) -> Permit:
        """A permit with this call in the place of the tenant's ticket."""
        return self, _watched_ended, None, ignore, _watched_failed

    def end(self) -> None:
        """It ended well: tell, after the tickets are back."""
        ticket, give, shared, give_shared, _ = self.inner
        del self.inner
        give_shared(shared)
        give(ticket)
        gate, facts = self.gate, self._facts()
        limit = gate.options.call_timeout
        if self.verdict is not None:
            self._tell(self.verdict, verdict(self.verdict, self.site, gate.options, None, gate.cancel_after))
        elif gate.timed and not self.settled and limit is not None and facts[-1] > limit:
            events.tell(events.Failure(*facts, overrun(limit)))
        else:
            events.tell(events.Success(*facts))

    def fail(self, error: BaseException, site: Site, started: float | None) -> None:
        """It raised: tell what that counted as."""
        ticket, _, shared, _, failed = self.inner
        del self.inner
        self._tell(error, failed(ticket, shared, error, site, started))

    def _tell(self, error: BaseException, outcome: Any) -> None:
        tell_ending(outcome, self._facts(), error)

    def settle(self, error: BaseException | None, site: Site, started: float | None, rest: str) -> Permit:
        """Its verdict is given early."""
        ticket, _, shared, _, failed = self.inner
        self.inner = failed(ticket, shared, error, site, started, rest) or self.inner
        self.verdict, self.settled = error, True
        return self.permit()

    def _facts(self) -> tuple[str, str | None, str, str, float, float]:
        gate, site = self.gate, self.site
        return gate.identifier, self.tenant, site.driver, site.scope, self.waited, gate.clock() - self.began


def _watched_ended(watched: Watched) -> None:
    watched.end()


def _watched_failed(
    watched: Watched,
    _: Any,
    error: BaseException | None,
    site: Site,
    started: float | None,
    rest: str | None = None,
) -> Permit | None:
    if error is None or rest:
        return watched.settle(error, site, started, rest or "tickets")
    watched.fail(error, site, started)
    return None


def is_probe(ticket: Any) -> bool:
    """Was the permit with this ticket given by a half-open circuit?"""
    if ticket.__class__ is Watched:
        ticket = ticket.inner[0]
    return ticket.__class__ is Probe and any(epoch.state == "half_open" for _, epoch in ticket.pairs)

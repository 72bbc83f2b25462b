"""What calls told: outcomes go to the circuits that admitted them, are counted, and changes are announced.

Part of the gate (admission.py), which decides who comes in. A result only touches the epoch that admitted its call.
Accounting never raises into a call: what goes wrong here is logged.
"""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from bulkhead import events, tenancy
from bulkhead.causes import Cause
from bulkhead.circuit.epochs import Closed
from bulkhead.entries import ignore
from bulkhead.log_lines import say, without_secrets
from bulkhead.outcomes import DIRECT, FAILURE, IGNORED, SUCCESS, Outcome, Site, overrun, verdict
from bulkhead.tickets.pool import Pool, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from bulkhead.circuit.machine import Change, Circuit
    from bulkhead.counting import Tally
    from bulkhead.entries import Permit
    from bulkhead.option_set import Options
    from bulkhead.probes import Pairs, Probe
    from bulkhead.tickets.waiting import Queue

log = logging.getLogger("bulkhead")


class Account:
    """The books of one identifier. Invariant: each call is counted once, by whoever ends it or finds it hanging."""

    __slots__ = (
        "cancel_after",
        "circuit",
        "clock",
        "due",
        "failures",
        "identifier",
        "ignored",
        "lock",
        "options",
        "per_tenant",
        "queue",
        "settles",
        "shared",
        "successes",
        "timed",
    )

    identifier: str
    options: Options
    clock: Callable[[], float]
    lock: AbstractContextManager[Any]  # re-entrant
    circuit: Circuit
    queue: Queue
    shared: Pool | None
    per_tenant: bool
    settles: bool  # does an early verdict of success say more than that tickets are back?
    cancel_after: float | None  # seconds from which on a cancelled call is a failure
    timed: bool  # does call_timeout write start times on tickets?
    due: float  # when a call in flight may have outlived it
    failures: Tally
    ignored: Tally
    successes: Tally | None  # counted once a collector is registered

    def failed(  # noqa: PLR0913  bound to most of them when the entry is made
        self,
        tenant: str | None,
        give: Callable[[Any], object],
        give_shared: Callable[[Any], object],
        pairs: Pairs,
        ticket: Any,
        shared: Any,
        error: BaseException | None,
        site: Site,
        started: float | None,
        rest: str | None = None,
        *,
        besides: bool = False,
    ) -> Permit | Outcome | None:
        """End a call of a closed circuit that raised; returns what it counted as.

        With `rest`, and with error None (success), only the verdict is given; what is left of the permit is returned
        (None: the permit as it is): "tickets": they stay out; "epoch": they are back, and a later failure still
        reports to this epoch. `besides`: of a permit whose verdict was given already.
        """
        if error is None:
            if rest != "epoch" and not self.settles:
                return None
            rest = rest or "tickets"
        outcome: Outcome | None = None
        try:
            began: float | None = None
            if self.timed and shared.__class__ is Ticket and not besides:
                try:
                    began = shared.since.pop()[0]
                except IndexError:  # it hung, and that was counted while it did
                    return self._rest(tenant, give, give_shared, pairs, ticket, shared, rest) if rest else FAILURE
                started = began if started is None else started
            whose = tenant if self.per_tenant else tenancy.current.get()
            if error is not None:
                lasted = None if started is None else self.clock() - started
                outcome = verdict(error, site, self.options, lasted, self.cancel_after)
                self.report_to(pairs, None, outcome, error, site, whose)
            elif began is not None and self.clock() - began > (self.options.call_timeout or inf):
                self.overran(pairs, whose)
            elif not besides:
                self.report_to(pairs, None, SUCCESS, None, site, whose)
        except Exception:
            log.exception("[BULKHEAD] the outcome of a call of %s could not be noted", self.identifier)
        finally:
            if rest != "tickets":
                give_shared(shared)
                give(ticket)
        return self._rest(tenant, give, give_shared, pairs, ticket, shared, rest) if rest else outcome

    def _rest(
        self,
        tenant: str | None,
        give: Callable[[Any], object],
        give_shared: Callable[[Any], object],
        pairs: Pairs,
        ticket: Any,
        shared: Any,
        rest: str,
    ) -> Permit:
        """What is left of a permit after its verdict."""
        if rest == "epoch":
            return None, ignore, None, ignore, partial(self.failed, tenant, ignore, ignore, pairs, besides=True)
        later = partial(self.failed, tenant, give, give_shared, pairs, besides=True)
        return ticket, give, shared, give_shared, later

    def report_to(
        self,
        pairs: Pairs,
        probe: Probe | None,
        outcome: Outcome,
        error: BaseException | None,
        site: Site,
        tenant: str | None,
    ) -> None:
        """Tell each circuit, and count."""
        if outcome is SUCCESS:
            if self.successes is not None:
                self.successes.add()
            self._report_success(pairs, probe, site, tenant)
            return
        if outcome is IGNORED:
            self.ignored.add()
            if probe is not None:
                self._report_nothing(pairs, probe, site)
            return
        now = self.clock()
        self.failures.add()
        with self.lock:
            tripping = tuple(
                (circuit, epoch)
                for circuit, epoch in pairs
                if not isinstance(epoch, Closed) or circuit.wants_to_open(epoch, now, tenant, anonymous=site.connects)
            )
        cause = Cause(error) if tripping and error is not None else None
        if error is not None:
            try:
                error.bulkhead_identifier = self.identifier  # type: ignore[attr-defined]
            except AttributeError:
                pass
        if tripping:
            self.trip(tripping, probe, now, cause, site, tenant)

    def _report_success(self, pairs: Pairs, probe: Probe | None, site: Site, tenant: str | None) -> None:
        for circuit, epoch in pairs:
            if isinstance(epoch, Closed):
                success = epoch.rule.success
                if success is not None and not site.connects:
                    success(self.clock(), tenant)
                continue
            if probe is None:
                continue
            now = self.clock()
            with self.lock:
                if site.connects:
                    changes = circuit.probe_ignored(epoch, probe, now)
                else:
                    changes = circuit.probe_succeeded(epoch, probe, now)
            self.announce(circuit, changes, site)

    def _report_nothing(self, pairs: Pairs, probe: Probe, site: Site) -> None:
        for circuit, epoch in pairs:
            with self.lock:
                changes = circuit.probe_ignored(epoch, probe, self.clock())
            self.announce(circuit, changes, site)

    def trip(
        self,
        tripping: Pairs,
        probe: Probe | None,
        now: float,
        cause: Cause | None,
        site: Site,
        tenant: str | None,
    ) -> None:
        """Open what has to open, and announce it."""
        for circuit, epoch in tripping:
            with self.lock:
                if isinstance(epoch, Closed):
                    changes = circuit.trip(epoch, now, cause, "failures reached the threshold")
                elif probe is not None and not probe.settled:
                    whose = None if site.connects else tenant  # a connect that fails is nobody's fault
                    changes = circuit.probe_failed(epoch, probe, now, cause, whose)
                elif circuit.epoch is epoch:
                    changes = circuit.background_failed(now, cause)
                else:
                    changes = ()
            self.announce(circuit, changes, site)

    def _find_overdue(self) -> None:
        """Count the calls in flight for longer than call_timeout, each once, and say when to look again."""
        limit, whole, now = self.options.call_timeout, self.shared, self.clock()
        if limit is None or whole is None:
            self.due = inf
            return
        with self.lock:
            hung = self._overdue(whole, limit, now)
        for tenant, pairs in hung:
            self.report_to(pairs, None, FAILURE, overrun(limit), DIRECT, tenant)

    def _overdue(self, whole: Pool, limit: float, now: float) -> list[tuple[str | None, Pairs]]:
        """Lock held. Those that are counted now, and when it is time for the next."""
        hung: list[tuple[str | None, Pairs]] = []
        oldest = now
        for known in whole.watch.copy():
            ticket = known()
            if ticket is None or not ticket.since:
                continue
            try:
                call = ticket.since[0]
                if now < call[0] + limit:  # as `due` is worked out: rounded otherwise, we would be asked for ever
                    oldest = min(oldest, call[0])
                    continue
                ticket.since.remove(call)
            except (IndexError, ValueError):  # it ended meanwhile
                continue
            hung.append(call[1:])
        self.due = oldest + limit
        return hung

    def overran(self, pairs: Pairs, tenant: str | None) -> None:
        """A call ended well, but after more than call_timeout: one failure."""
        limit = self.options.call_timeout
        if limit is not None:
            self.report_to(pairs, None, FAILURE, overrun(limit), DIRECT, tenant)

    def announce(self, circuit: Circuit, changes: tuple[Change, ...], site: Site) -> None:
        """After a change, outside the lock: one log line, one event, and those who wait are looked at again."""
        if circuit.tenant is None and circuit is not self.circuit:  # a parent's, in a forked child
            return
        for change in changes:
            say(
                "state_change",
                identifier=self.identifier,
                circuit="shared" if circuit.tenant is None else "tenant",  # whose is not told: ids are personal
                old=change.old,
                state=change.new,
                reason=change.reason,
                driver=site.driver,
                scope=site.scope,
                error=None if change.cause is None else without_secrets(change.cause.text),
            )
            if events.anybody():
                events.tell(
                    events.StateChange(
                        self.identifier, circuit.tenant, site.driver, site.scope, change.old, change.new, change.reason
                    )
                )
        if changes and self.queue.lines:
            self.queue.serve_all()

    def _pairs(self, pool: Pool | None) -> Pairs:
        """The circuits that hear of a call, each with the epoch that admits it."""
        shared = (self.circuit, self.circuit.epoch)
        if not self.options.circuit_breaker:
            return () if isinstance(shared[1], Closed) else (shared,)
        own = None if pool is None else pool.circuit
        return (shared,) if own is None else (shared, (own, own.epoch))

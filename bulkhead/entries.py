"""Entries of the fast table: the few callables that a call of one tenant needs while nothing is special.

Where nothing else was asked for they are C methods: `list.pop` and `list.append` of the two pools, or C functions
without effect where a level has no limit. What varies (waking waiters, breaking a run of failures, start times,
counting successes) is a closure in the place of the C method: paid for only by who uses it.
"""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from bulkhead import tenancy
from bulkhead.causes import Cause
from bulkhead.circuit.epochs import Closed
from bulkhead.circuit.rules import Run
from bulkhead.counting import GIL, Tally
from bulkhead.outcomes import FAILURE, ORDINARY, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.outcomes import Outcome, Site
    from bulkhead.probes import Pairs
    from bulkhead.tables import Tables
    from bulkhead.tickets.pool import Pool

log = logging.getLogger("bulkhead")

Entry = tuple[
    "Callable[[], Any]", "Callable[[Any], object]", "Callable[[], Any]", "Callable[[Any], object]", "Callable[..., Any]"
]
Permit = tuple[Any, "Callable[[Any], object]", Any, "Callable[[Any], object]", "Callable[..., Any]"]

# Two C functions without effect, of the kinds whose calls CPython 3.11 specialises (no argument; one object).
nothing: Callable[[], str] = "".strip
ignore: Callable[[Any], object] = ().count


def _ghost_failed(
    ticket: Any,  # noqa: ARG001
    shared: Any,  # noqa: ARG001
    error: BaseException | None,
    site: Any,  # noqa: ARG001
    started: Any,  # noqa: ARG001
    rest: str | None = None,
) -> Any:
    """Of a call that was let through without being asked: it reports nothing and gives nothing back."""
    return GHOST_PERMIT if error is None or rest else None


GHOST: Entry = (nothing, ignore, nothing, ignore, _ghost_failed)
GHOST_PERMIT: Permit = (None, ignore, None, ignore, _ghost_failed)


class Off(dict[Any, Entry]):
    """The fast table in mode "off": everybody passes, nothing is taken."""

    def __missing__(self, key: object) -> Entry:
        return GHOST


class Due(LookupError):
    """Calls in flight may have outlived call_timeout: ask before this one passes."""


def doors(gate: Tables, pool: Pool | None) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """How a pool's tickets are taken and given back."""
    if pool is None:
        return nothing, ignore
    if not gate.options.timeout:
        return pool.pop, pool.append
    put, lines, serve, whose = pool.append, gate.queue.lines, gate.queue.serve, pool.tenant
    table = gate.tenants.table

    def give(ticket: Any) -> None:
        put(ticket)
        if lines:
            if pool is gate.shared:
                serve()
            elif table.get(whose) is pool:
                serve(whose)
            else:
                gate.queue.serve_all()

    return pool.pop, give


def all_closed(pairs: Pairs) -> bool:
    """May a call that reports to these epochs pass without a question?"""
    for _, epoch in pairs:  # noqa: SIM110  on the way of each new tenant, and three times as fast
        if epoch.__class__ is not Closed:
            return False
    return True


def build(gate: Tables, tenant: str | None, pool: Pool | None, pairs: Pairs, *, known: bool) -> Entry:
    """The entry of a tenant in these epochs, all of them closed. `known`: it will be used more than once."""
    take, give = doors(gate, pool)
    take_shared, give_shared = doors(gate, gate.shared)
    if known and not gate.timed and len(pairs) == 1 and pairs[0][1].rule.plain:  # type: ignore[union-attr]
        failed = _failed(gate, tenant, give, give_shared, pairs)
    else:
        failed = partial(gate.failed, tenant, give, give_shared, pairs)
    after = _after_success(gate, tenant, pairs) if gate.settles or gate.successes is not None else []
    if gate.timed:
        take_shared, give_shared = _timed(gate, tenant, pairs, take_shared, give_shared, after)
    elif after:
        give = _with(give, after)
    return take, give, take_shared, give_shared, failed


def _failed(
    gate: Tables,
    tenant: str | None,
    give: Callable[[Any], object],
    give_shared: Callable[[Any], object],
    pairs: Pairs,
) -> Callable[..., Any]:
    """`gate.failed` in short, for one circuit with a plain rule."""
    general = partial(gate.failed, tenant, give, give_shared, pairs)
    clock, identifier, failures, options = gate.clock, gate.identifier, gate.failures, gate.options
    note = pairs[0][1].rule.note  # type: ignore[union-attr]  # all are closed
    ordinary = ORDINARY if options.is_failure is None else frozenset[type[BaseException]]()

    def failed(
        ticket: Any,
        shared: Any,
        error: BaseException | None,
        site: Site,
        started: float | None,
        rest: str | None = None,
    ) -> Permit | Outcome | None:
        if error is None or rest is not None:
            return general(ticket, shared, error, site, started, rest)
        outcome = None
        try:
            if error.__class__ in ordinary:
                try:
                    outcome = site.outcome(error, options)  # type: ignore[arg-type]  # an Exception
                except Exception:  # noqa: BLE001  `verdict` asks again, and says so
                    outcome = verdict(error, site, options, None, None)
            else:
                lasted = None if started is None else clock() - started
                outcome = verdict(error, site, options, lasted, gate.cancel_after)
            if outcome is FAILURE:
                if GIL:
                    failures.value += 1
                else:
                    failures.add()
                now = clock()
                if note(now):
                    gate.trip(pairs, None, now, Cause(error), site, tenant)
                try:
                    error.bulkhead_identifier = identifier  # type: ignore[attr-defined]
                except AttributeError:
                    pass
            else:
                gate.report_to(pairs, None, outcome, error, site, tenant if gate.per_tenant else tenancy.current.get())
        except Exception:
            log.exception("[BULKHEAD] the outcome of a call of %s could not be noted", identifier)
        finally:
            give_shared(shared)
            give(ticket)
        return outcome

    return failed


def _after_success(gate: Tables, tenant: str | None, pairs: Pairs) -> list[Callable[[], object]]:
    """What a success has to do besides giving its tickets back: most often nothing."""
    after: list[Callable[[], object]] = []
    for _, epoch in pairs:
        if not isinstance(epoch, Closed) or (success := epoch.rule.success) is None:
            continue
        if isinstance(epoch.rule, Run):
            after.append(epoch.rule.times.clear)  # what its `success` does, in C
        else:
            after.append(_noting(success, gate.clock, (lambda: tenant) if gate.per_tenant else tenancy.current.get))
    if gate.successes is not None:
        after.append(gate.successes.add)
    return after


def _noting(
    success: Callable[[float, str | None], object], clock: Callable[[], float], tenant: Callable[[], str | None]
) -> Callable[[], object]:
    return lambda: success(clock(), tenant())


def _with(give: Callable[[Any], object], after: list[Callable[[], object]]) -> Callable[[Any], object]:
    if len(after) == 1:
        (only,) = after
        if GIL and isinstance(tally := getattr(only, "__self__", None), Tally):

            def give_and_count(ticket: Any) -> None:
                give(ticket)
                tally.value += 1

            return give_and_count

        def give_and(ticket: Any) -> None:
            give(ticket)
            only()

        return give_and

    def give_and_all(ticket: Any) -> None:
        give(ticket)
        for one in after:
            one()

    return give_and_all


def _timed(
    gate: Tables,
    tenant: str | None,
    pairs: Pairs,
    take: Callable[[], Any],
    give: Callable[[Any], object],
    after: list[Callable[[], object]],
) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """With call_timeout: write the start on the resource's ticket, and notice calls that hang or took too long.

    Whoever pops the start reports the call: itself when it ends, or the admission that found it hanging.
    """
    clock, limit = gate.clock, gate.options.call_timeout or inf
    per_tenant, current = gate.per_tenant, tenancy.current.get

    def take_timed() -> Any:
        now = clock()
        if now >= gate.due:
            raise Due
        ticket = take()
        ticket.since.append((now, tenant if per_tenant else current(), pairs))
        if gate.due == inf:
            gate.due = now + limit
        return ticket

    def give_timed(ticket: Any) -> None:
        try:
            began, owner, _ = ticket.since.pop()
        except IndexError:  # it hung, and that was counted while it did; or its verdict came earlier
            give(ticket)
            return
        late = clock() - began > limit
        give(ticket)
        if late:
            gate.overran(pairs, owner)
        else:
            for one in after:
                one()

    return take_timed, give_timed

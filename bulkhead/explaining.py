"""The state of a resource in words, for a person at a console."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from bulkhead.circuit.epochs import Closed, Open

if TYPE_CHECKING:
    from bulkhead.circuit.machine import Circuit
    from bulkhead.resources import Resource

MOST_TENANTS = 3


def explain(resource: Resource) -> str:
    """Why it is open or full, since when, by which failures, when the next probe may run."""
    now = resource.clock()
    lines = [f"{resource.identifier}: {_mode(resource)}"]
    if resource.options.circuit_breaker or resource.state != "closed":
        lines.append(_circuit(resource.circuit, now, "the circuit"))
    else:
        lines.append("it has no circuit, tickets only")
    with resource.lock:
        pools = list(resource.tenants.table.values())
        ignored, failures = resource.ignored.value, resource.failures.value
        rejections, refused_at = resource.refused.numbers(), dict(resource.refused_at)
    lines += [
        _circuit(pool.circuit, now, f"the circuit of tenant {pool.tenant!r}")
        for pool in pools
        if pool.circuit is not None and pool.circuit.state != "closed"
    ]
    lines.append(_tickets(resource, now))
    full = [pool for pool in pools if pool.limit != inf and pool.in_use >= pool.limit]
    if full:
        named = ", ".join(repr(pool.tenant) for pool in full[:MOST_TENANTS])
        more = f" and {len(full) - MOST_TENANTS} more" if len(full) > MOST_TENANTS else ""
        lines.append(f"at their own limit: {named}{more}")
    if waiting := len(resource.queue):
        lines.append(f"{waiting} callers wait for tickets")
    if rejections:
        told = [f"{count} {reason}{_when(refused_at.get(reason), now)}" for reason, count in rejections.items()]
        lines.append("rejected so far: " + ", ".join(told))
    if ignored and not failures:
        lines.append(f"{ignored} calls ended without saying anything about the resource (cancelled, or local errors)")
    return "\n".join(lines)


def _mode(resource: Resource) -> str:
    return {
        "enforce": "rejections are enforced",
        "shadow": "shadow mode: what would be rejected runs, and is announced",
        "off": "off: nothing is taken, asked or reported",
    }[resource.mode]


def _circuit(circuit: Circuit, now: float, what: str) -> str:
    epoch, options = circuit.epoch, circuit.options
    if isinstance(epoch, Closed):
        noted = epoch.rule.noted(now)
        if options.error_threshold_timeout_enabled:
            return f"{what} is closed; {noted} of {options.error_threshold} failures within {options.window:g} s"
        return f"{what} is closed; {noted} of {options.error_threshold} failures in a row"
    because = f" because {epoch.reason}" + ("" if epoch.cause is None else f", the last one {epoch.cause.text}")
    since = f"{what} is {epoch.state.replace('_', '-')} since {now - epoch.since:.3g} s"
    if isinstance(epoch, Open):
        left = epoch.until - now
        if left == inf:
            return f"{since}{because}; until close() or reset()"
        if left <= 0:
            return f"{since}{because}; its time is over, the next call is a probe"
        return f"{since}{because}; the next probe may run in {left:.3g} s"
    out = len([place for place in epoch.places if place.call() is not None])
    silent = f", {epoch.ignored} probes ended without saying anything about the resource" if epoch.ignored else ""
    return (
        f"{since}{because}; {out} of {options.half_open_max_probes} probes under way, "
        f"{epoch.successes} of {options.success_threshold} successes{silent}"
    )


def _tickets(resource: Resource, now: float) -> str:
    oldest = min((began for known in _watched(resource) for began, *_ in known), default=None)
    longest = "" if oldest is None else f", the longest for {now - oldest:.3g} s"
    if resource.limit is None:
        return f"{resource.in_use} calls in flight hold tickets{longest}; the resource as a whole has no limit"
    return f"{resource.in_use} of {resource.limit} tickets are in use{longest}"


def _watched(resource: Resource) -> list[list[Any]]:
    """Where call_timeout notes on tickets when their calls began; those that are overdue are not among them."""
    if not resource.timed or resource.shared is None:
        return []
    return [ticket.since.copy() for known in resource.shared.watch.copy() if (ticket := known()) is not None]


def _when(noted: tuple[float, int, float] | None, now: float) -> str:
    """Times are noted at refusals that are logged: the 1st, 2nd, 4th … So this costs the others nothing."""
    if noted is None:
        return ""
    first, number, latest = noted
    if number == 1:
        return f" ({now - first:.3g} s ago)"
    return f" (the first {now - first:.3g} s ago, no. {number} {now - latest:.3g} s ago)"

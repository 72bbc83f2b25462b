"""What is measured: the metrics by name, and where their numbers are read. Knows nothing of Prometheus.

A number is identified by `(what, which)`, as in `Resource.totals`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bulkhead import connections, measures
from bulkhead.process_values import process
from bulkhead.refusals import kind_of

if TYPE_CHECKING:
    from bulkhead.resources import Resource

Totals = dict[tuple[str, str], float]

STATES: tuple[str, ...] = ("closed", "open", "half_open")
EVICTED = "(evicted)"
OTHER = "(other)"
SERVER = frozenset({"server:requests", "server:websockets", connections.IDENTIFIER})  # there is one of each


class Row(NamedTuple):
    """A metric. `name` without the suffix that its type adds."""

    name: str
    help: str
    labels: tuple[str, ...]


CALLS = Row("bulkhead_calls", "Calls let through, by outcome", ("identifier", "outcome"))
REJECTIONS = Row("bulkhead_rejections", "Calls refused, by reason", ("identifier", "reason"))
IN_USE = Row("bulkhead_tickets_in_use", "Tickets with callers", ("identifier",))
LIMIT = Row("bulkhead_tickets_limit", "The option tickets", ("identifier",))
STATE = Row("bulkhead_circuit_state", "State of the circuit", ("identifier", "bulkhead_circuit_state"))
WAITS = Row("bulkhead_wait_seconds", "Waiting for tickets", ("identifier",))
TENANT_REJECTIONS = Row(
    "bulkhead_tenant_rejections", "Refusals at the limit of one tenant, all tenants together", ("kind",)
)
CALL_SECONDS = Row("bulkhead_call_seconds", "How long calls lasted", ("identifier", "outcome"))


def caps() -> dict[str, Totals]:
    """Totals of limits that are no resource, by the identifier that their refusals carry."""
    found: Totals = dict(connections.totals())
    for (what, reason), number in connections.totals().items():
        if what == "rejections" and (kind := kind_of(connections.IDENTIFIER, reason)) is not None:
            found["tenant_rejections", kind] = number
    others: dict[str, Totals] = {
        f"({kind})": {("tenant_rejections", kind): number} for kind, number in measures.rejections().items()
    }
    return others | ({connections.IDENTIFIER: found} if found else {})


class Gauges:
    """What can be seen now of the resources that share a label."""

    __slots__ = ("in_use", "limit", "states")

    def __init__(self) -> None:
        self.in_use = 0
        self.limit = 0
        self.states = dict.fromkeys(STATES, 0)

    def add(self, resource: Resource) -> None:
        """Add one."""
        self.in_use += resource.in_use
        self.limit += resource.limit or 0
        self.states[resource.state] += 1


class Names:
    """Identifiers as labels that stay: at most maximum_resources of them, later ones share "(other)"."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of(self, identifier: str) -> str:
        """The label."""
        if identifier not in self._known and identifier not in SERVER:
            if len(self._known) >= process.maximum_resources:
                return OTHER
            self._known.add(identifier)
        return identifier

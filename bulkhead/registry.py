"""identifier -> Resource, bounded.

The table keeps resources alive that were used lately; beside it all living ones are known weakly, so an identifier
never has two resources while a client still holds the first: forgetting one and asking again brings the same object
back. Nothing is written on a hit: a resource that was used shows it by its fast table, which the collecting hand
empties as it goes by. Collection happens on insert, a bounded number of steps each.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Literal, cast
from weakref import WeakValueDictionary

from bulkhead import definitions, events, tenancy
from bulkhead.counting import Tally
from bulkhead.errors import ConfigurationError
from bulkhead.log_lines import say
from bulkhead.option_arguments import taking_options
from bulkhead.option_set import KINDS, Options
from bulkhead.process_values import disabled, process
from bulkhead.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("bulkhead")
HAND_STEPS = 16
OVERFLOW = "(overflow)"


class Slot:
    """A registered resource, and when the hand last saw it used."""

    __slots__ = ("resource", "seen")

    def __init__(self, resource: Resource, seen: float) -> None:
        self.resource, self.seen = resource, seen


class Registry:
    """All resources of this process. `clock` in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.table: dict[str, Slot] = {}
        """Used lately, or too young to go."""
        self.alive: WeakValueDictionary[str, Resource] = WeakValueDictionary()
        self._hand: deque[Slot] = deque()
        self._lock = threading.RLock()
        self.counting = False
        self._overflowed: set[str] = set()
        self.evicted: dict[tuple[str, str], float] = {}  # what totals() said of those that went
        self.departed: dict[str, dict[tuple[str, str], float]] | None = None
        """The same by identifier, for whoever takes it regularly; None: nobody does."""

    # ---- get or create

    def get(self, identifier: str, options: Options, read_timeout: float | None = None) -> Resource:
        """The resource of that identifier, made with `options` if there is none.

        ConfigurationError if it is registered with different options (lax: logged, the first hold).
        """
        resource = self._look_up(identifier, options, read_timeout)
        if resource.declared is not options and resource.identifier == identifier and resource.declared != options:
            self._compare(resource, options)
        return resource

    def _look_up(self, identifier: str, options: Options, read_timeout: float | None) -> Resource:
        """The resource, made if need be. What was collected, or that the bound is reached, is told outside the lock."""
        slot = self.table.get(identifier)
        if slot is None:
            slot, cleared = self._insert(identifier, options, read_timeout)
            if cleared is not None and events.anybody():
                events.tell(cleared)
            shared = slot.resource.identifier
            if shared != identifier and shared not in self._overflowed:
                self._overflowed.add(shared)
                say(
                    "overflow",
                    f"all are in use, further identifiers share {shared}; are identifiers made from user input?",
                    logging.ERROR,
                    identifier=shared,
                    resources=len(self._hand),
                )
        return slot.resource

    def _insert(
        self, identifier: str, options: Options, read_timeout: float | None
    ) -> tuple[Slot, events.LruGc | None]:
        now = self.clock()
        effective = options_in_force(options, identifier)
        with self._lock:
            slot = self.table.get(identifier)
            if slot is not None:
                return slot, None
            cleared, full = self._collect(now)
            resource = self.alive.get(identifier)  # forgotten while somebody held it: the same again
            if resource is None:
                if full:
                    return self._overflow(identifier, now), cleared
                resource = Resource(identifier, effective, self.clock, read_timeout, declared=options)
                resource.successes = Tally() if self.counting else None
                self.alive[identifier] = resource
            slot = Slot(resource, now)
            if resource.successor is not None:  # before it is found: by then it must not send anybody on to itself
                resource.restore()
            self._hand.append(slot)
            self.table[identifier] = slot
            return slot, cleared

    @staticmethod
    def _compare(resource: Resource, options: Options) -> None:
        different = resource.declared.differences(options)
        if not different or not resource.options.differences(options):
            return
        if definitions.superseded(options) or definitions.superseded(resource.declared):
            return  # a reload of the settings is under way
        shared = resource.identifier.startswith("cell:")  # its name is that of the cell, nobody can give another
        advice = "Use one set of options, another name="
        if shared:
            advice = "Give all clients of cells in a process the same options"
        told = ", ".join(f"{name}: {old!r} and {new!r}" for name, (old, new) in sorted(different.items()))
        options.complain(
            f"{resource.identifier} is registered with other options ({told}); the first hold. "
            f"{advice}, or resource.update(…)"
        )

    def _overflow(self, identifier: str, now: float) -> Slot:
        """No resource may go and the bound is reached: new identifiers of a kind share one."""
        kind = identifier.partition(":")[0]
        kind = kind if kind in KINDS else "other"
        shared = f"{kind}:{OVERFLOW}"
        slot = self.table.get(shared)
        if slot is None:
            mode: Literal["off", "enforce"] = "off" if disabled("circuit_breaker") else "enforce"  # it has no tickets
            resource = Resource(shared, Options(name=OVERFLOW, mode=mode), self.clock)
            resource.successes = Tally() if self.counting else None
            slot = self.table[shared] = Slot(resource, now)
            self.alive[shared] = resource
        return slot

    # ---- collection

    def _collect(self, now: float) -> tuple[events.LruGc | None, bool]:
        """Let idle resources go. Returns the event, and whether nothing could go although the bound is reached."""
        size, goal, most = len(self._hand), process.maximum_lru_size, process.maximum_resources
        if size < goal and size < most:
            return None, False
        began, examined, cleared = self.clock(), 0, 0
        met: list[Slot] = []
        for _ in range(min(HAND_STEPS, len(self._hand))):
            slot = self._hand[0]
            if self.table.get(slot.resource.identifier) is not slot:  # an insertion that was interrupted
                self._hand.popleft()
                continue
            examined += 1
            if self._goes(slot, now, urgent=len(self._hand) >= most):
                self._forget(slot)
                cleared += 1
            else:
                met.append(slot)
                self._hand.rotate(-1)
        if not cleared and size >= most:  # all were used since the hand met them last; one that is idle now has to go
            for slot in met:
                if not slot.resource.says_something():
                    self._forget(slot)
                    cleared += 1
                    break
        event = events.LruGc(None, None, "", "", size, examined, cleared, self.clock() - began)
        return event, len(self._hand) >= most

    def _goes(self, slot: Slot, now: float, *, urgent: bool) -> bool:
        resource = slot.resource
        if resource.fast or resource.touched:
            resource.touched = False
            with resource.lock:
                resource.special()
            slot.seen = now
            return False
        if not urgent and now - slot.seen < process.minimum_lru_time:
            return False
        return not resource.says_something()

    def _forget(self, slot: Slot) -> None:
        """Out of the table. Whoever still holds the resource brings it back by the next call that it answers."""
        resource = slot.resource
        del self.table[resource.identifier]
        self._hand.remove(slot)  # one of the first, or of the last
        resource.retire(self._again(resource))
        self._sum_up(resource)

    def _sum_up(self, resource: Resource) -> None:
        """Keep what a resource that goes has counted. Lock held."""
        totals = resource.take_totals()
        sums = [self.evicted]
        if self.departed is not None:
            sums.append(self.departed.setdefault(resource.identifier, {}))
        for what, count in totals.items():
            for numbers in sums:
                numbers[what] = numbers.get(what, 0) + count

    def take_departed(self) -> dict[str, dict[tuple[str, str], float]]:
        """What those had counted that went since the last time, by identifier. From the first time on it is kept."""
        with self._lock:
            departed, self.departed = self.departed, {}
        return departed or {}

    def _again(self, resource: Resource) -> Callable[[], Resource]:
        """What leads from a resource that was forgotten or unregistered to the one in its place."""
        return partial(
            self._for_drivers,
            resource.drivers,
            resource.marked,
            resource.identifier,
            resource.declared,
            resource.read_timeout,
        )

    def _for_drivers(
        self,
        drivers: tuple[str, ...],
        marked: bool,  # noqa: FBT001  passed by partial
        identifier: str,
        options: Options,
        read_timeout: float | None,
    ) -> Resource:
        found = self._look_up(identifier, options, read_timeout)
        found.marked = found.marked or marked
        for driver in drivers:
            found.guarded_by(driver)
        return found

    # ---- everything else

    def find(self, identifier: str) -> Resource | None:
        """The registered resource, or None."""
        slot = self.table.get(identifier)
        return None if slot is None else slot.resource

    def resources(self) -> dict[str, Resource]:
        """A snapshot: identifier -> Resource."""
        return {identifier: slot.resource for identifier, slot in self.table.copy().items()}

    def unregister(self, identifier: str) -> bool:
        """Forget a resource at once, tickets out or not; who still holds it is sent on to its successor.

        True if there was one. Calls in flight end as they began.
        """
        with self._lock:
            slot = self.table.pop(identifier, None)
            if slot is None:
                return False
            self.alive.pop(identifier, None)
            if slot in self._hand:
                self._hand.remove(slot)
            self._sum_up(slot.resource)
        slot.resource.retire(self._again(slot.resource))
        return True

    def everything(self) -> list[Resource]:
        """All that live, registered or held by somebody."""
        # Not `values()`: it iterates in Python, and raises if another thread registers something meanwhile.
        return [resource for known in self.alive.valuerefs() if (resource := known()) is not None]

    def refresh(self) -> None:
        """Subscribers or the tenant policy changed: ask each resource's next calls again."""
        for resource in self.everything():
            with resource.lock:
                resource.configure()

    def count_successes(self) -> None:
        """A collector is registered: from now on successes are counted."""
        self.counting = True
        for resource in self.everything():
            with resource.lock:
                if resource.successes is None:
                    resource.successes = Tally()
                resource.special()

    def after_fork(self) -> None:
        """In the child: nothing is held, no lock is taken, every circuit is closed."""
        self._lock = threading.RLock()
        self.evicted, self.departed = {}, None
        events.fresh_in_child()
        for resource in self.everything():
            resource.fresh()


registry = Registry()
os.register_at_fork(after_in_child=registry.after_fork)
events.on_change(registry.refresh)
tenancy.on_policy_change(registry.refresh)


def options_in_force(options: Options, identifier: str) -> Options:
    """The options, less what the environment switches off. Read when the resource is made."""
    if disabled("all"):
        return options.replace(mode="off")
    changes: dict[str, object] = {}
    if disabled("circuit_breaker"):
        changes["circuit_breaker"] = False
    if disabled("tickets"):
        per_tenant = ("tenant_tickets", "tenant_limits", "tenant_quota", "tenant_connections")
        changes |= dict.fromkeys(("tickets", *per_tenant, "max_waiting"))
        changes["timeout"] = 0.0
    if not changes:
        return options
    try:
        return options.replace(**changes)
    except ConfigurationError:
        log.warning("[BULKHEAD] %s: the environment switches off all that it would enforce", identifier)
        return options.replace(mode="off")


def registered(
    options: Options, kind: str, default_name: str, read_timeout: float | None = None, driver: str = "call"
) -> Resource:
    """The resource that these options describe for a client of this kind."""
    found = registry.get(options.identify(kind, default_name), options.for_kind(kind), read_timeout)
    return found.guarded_by(driver)


unprotected = Resource("off:unprotected", Options(name="unprotected", mode="off"))
"""What a callable that answers None for a call leads to: nothing is taken, asked or reported."""


def find(identifier: str) -> Resource | None:
    """The registered resource of that identifier (`redis:inventory`), or None."""
    return registry.find(identifier)


def resources() -> dict[str, Resource]:
    """A snapshot of all registered resources: identifier -> Resource."""
    return registry.resources()


def unregister(identifier: str) -> bool:
    """Forget a resource now; clients that use it get a new one at their next call. True if there was one."""
    return registry.unregister(identifier)


@taking_options
def resource(name: str, options: Options | None) -> Resource:
    """Get or create the resource `call:<name>` for direct use.

    Without options the one that is registered or defined under that name, else ConfigurationError that lists the
    known ones.
    """
    if not isinstance(cast("object", name), str):
        raise ConfigurationError(
            f'the first argument is the resource\'s name, not {name!r}: bulkhead.resource("payments", tickets=8)'
        )
    if options is not None:
        return registered(options, "call", name)
    found = registry.find(f"call:{name}")
    return registered(definitions.defined(name), "call", name) if found is None else found


__all__ = ["ConfigurationError", "find", "registered", "registry", "resource", "resources", "unregister"]

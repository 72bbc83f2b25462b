"""How the core follows the settings: process values, unknown tenants, the cap of connections, named options.

A plan is made and checked before anything changes (`plan`), then settings are in force and the rest follows (`apply`).
Options of a resource that code changed by `Resource.update` stay as code left them, unless the reload changes the very
option. What needs a restart keeps the value that it had.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import asdict, dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from bulkhead import connections, definitions
from bulkhead.errors import ConfigurationError
from bulkhead.log_lines import say
from bulkhead.option_rows import rows_of
from bulkhead.option_set import Options
from bulkhead.process_values import defaults, process
from bulkhead.registry import options_in_force, registry
from bulkhead.settings.effective import DEFAULT, Settings, brief
from bulkhead.settings.sections import OWN, RESOURCES, Policy, process_rules, sections
from bulkhead.settings.sources import Fault
from bulkhead.tenancy import unknown_tenant

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.resources import Resource
    from bulkhead.settings.kinds import PerTenant


class Pending(NamedTuple):
    """What a reload cannot change: the key, and in words what holds until a restart."""

    key: str
    says: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done for settings to hold: `faults` = why they cannot."""

    settings: Settings
    process: dict[str, Any]
    policy: Policy | None
    connections: PerTenant | None
    """For `connections.set_limit`; None: nothing to be done."""
    definitions: dict[str, Options]
    """Those that are new or different."""
    pending: list[Pending] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def plan(wanted: Settings, before: Settings | None, *, restarted: bool) -> Plan:
    """What follows from these settings. `restarted`: also what needs a restart takes its new value."""
    pending: list[Pending] = []
    settings = wanted if before is None or restarted else _held_back(wanted, before, pending)
    faults: list[Fault] = []
    values = _touched(settings, before)
    policy = values.pop("unknown_tenant", None)
    together = asdict(process.values) | values
    faults += [
        Fault(_where(settings, f"bulkhead.{key}"), f"bulkhead.{key} {says}") for key, says in process_rules(together)
    ]
    changed: dict[str, Options] = {}
    ours = {} if before is None else before.resources
    for name, options in settings.resources.items():
        first, known = ours.get(name), definitions.known(name)
        if known == options and first in (None, options):  # else that is about to be replaced, by a reload before
            continue
        if known is not None and first is None:
            says = "is also defined in code by bulkhead.define(), with other options; leave one of them out"
            faults.append(Fault(_where(settings, f"{RESOURCES}.{name}.name"), f"{RESOURCES}.{name} {says}"))
            continue
        changed[name] = options
        faults += _misfits(name, known, options, _where(settings, f"{RESOURCES}.{name}.name"))
    cap, cap_before = _cap(settings), 0 if before is None else _cap(before)
    return Plan(settings, values, policy, None if cap == cap_before else cap, changed, pending, faults)


def apply(one: Plan) -> None:
    """Do it. Resources first, so that no client built meanwhile finds its resource with other options."""
    if one.process:
        _attempt("bulkhead", partial(defaults, **one.process))
    if one.policy is not None:
        unknown_tenant(one.policy)
    if one.connections is not None:
        _attempt("tenancy.max_db_connections", partial(connections.set_limit, one.connections))
    for name, after in one.definitions.items():
        before = definitions.known(name)  # not what it was when the plan was made: another may have been applied since
        if before is None:
            definitions.redefine(name, after)
            continue
        definitions.supersede(name)
        _move(before, after)
        definitions.redefine(name, after)
        _move(before, after)  # one that was made in between


def _cap(settings: Settings) -> PerTenant:
    return settings.tenancy.max_db_connections if settings.tenancy.enabled else 0


def _attempt(setting: str, step: Callable[[], object]) -> None:
    """What can still fail: code changed other process values meanwhile, or drivers cannot be patched."""
    try:
        step()
    except ConfigurationError as error:
        say("settings_not_followed", str(error), logging.ERROR, setting=setting)


def followers(definition: Options) -> list[Resource]:
    """The living resources that were made by this definition."""
    found: list[Resource] = []
    for resource in registry.everything():
        declared = resource.declared
        if declared.name != definition.name or declared.identifier != definition.identifier:
            continue  # there may be thousands of others, and comparing all options takes its time
        if declared is definition or declared == definition or declared == _for_kind(definition, resource):
            found.append(resource)
    return found


def _for_kind(definition: Options, resource: Resource) -> Options | None:
    try:
        return definition.for_kind(resource.identifier.partition(":")[0])
    except ConfigurationError:
        return None


def _move(before: Options, after: Options) -> None:
    for resource in followers(before):
        declared = _for_kind(after, resource) or after
        now, then = (options_in_force(options, resource.identifier) for options in (resource.declared, declared))
        changes = now.differences(then)
        try:
            options = resource.options.moved(now, then)
        except ConfigurationError as error:
            say(
                "settings_override",
                f"what code changed by update() does not go with the new settings, which hold: {error}",
                identifier=resource.identifier,
            )
            options, changes = then, resource.options.differences(then)
        resource.become(options, changes, declared)


def _misfits(name: str, before: Options | None, after: Options, where: str) -> list[Fault]:
    """Options that drivers which use this definition do not have."""
    faults: list[Fault] = []
    for resource in [] if before is None else followers(before):
        try:
            after.for_kind(resource.identifier.partition(":")[0])
        except ConfigurationError as error:
            faults.append(Fault(where, f"{RESOURCES}.{name} is used by {resource.identifier}: {error}"))
    return faults


def _touched(settings: Settings, before: Settings | None) -> dict[str, Any]:
    """The values of [bulkhead] that are set, or were set before: others belong to code."""
    found: dict[str, Any] = {}
    for key in rows_of(type(settings.bulkhead)):
        origins = [one.origin(f"bulkhead.{key}") for one in (settings, before) if one is not None]
        if any(origin != DEFAULT for origin in origins):
            found[key] = getattr(settings.bulkhead, key)
    return found


def _held_back(wanted: Settings, before: Settings, pending: list[Pending]) -> Settings:
    """The wanted settings with the old values of all that needs a restart, and of the keys that go with it."""
    made = {name: _hold(name, before.section(name), wanted.section(name), pending) for name in sections()}
    resources = dict(wanted.resources)
    for name, old in before.resources.items():
        key = f"{RESOURCES}.{name}"
        if name in resources:
            resources[name] = _hold(key, old, resources[name], pending)
        else:  # what uses it goes on with it
            resources[name] = old
            pending.append(Pending(key, "it is gone, what uses it goes on with it until then"))
    origins = dict(wanted.origins)
    for one in pending:
        mine = {key: origin for key, origin in before.origins.items() if f"{key}.".startswith(f"{one.key}.")}
        origins.pop(one.key, None)
        origins |= mine
    own = {name: made.pop(name) for name in OWN}
    return dataclasses.replace(
        wanted,
        **own,
        others=MappingProxyType(made),
        resources=MappingProxyType(resources),
        origins=MappingProxyType(origins),
    )


def _hold(name: str, old: Any, new: Any, pending: list[Pending]) -> Any:
    """The new section (or options) with what needs a restart as it was."""
    rows = rows_of(type(new))
    different = [key for key in rows if getattr(old, key) != getattr(new, key)]
    fixed = [key for key in different if "restart" in rows[key].marks]
    parts = set() if isinstance(new, Options) else {rows[key].part for key in fixed}
    held = [key for key in different if key in fixed or (rows[key].part and rows[key].part in parts)]
    if "source" in parts and "enabled" in different and getattr(new, "enabled", False):
        # It would be on with a source of before.
        held.append("enabled")
    for key in held:
        then, now = (brief(getattr(one, key), rows[key]) for one in (new, old))
        pending.append(Pending(f"{name}.{key}", f"{now} holds until then, {then} is in the settings"))
    kept = {key: getattr(old, key) for key in held}
    if not kept:
        return new
    return new.replace(**kept) if isinstance(new, Options) else dataclasses.replace(new, **kept)


def _where(settings: Settings, key: str) -> str:
    origin = settings.origins.get(key)
    return origin or settings.file or "environment"

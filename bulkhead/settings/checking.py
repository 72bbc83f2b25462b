"""From what stands in file and environment to valid settings, or to all that is wrong with it.

It changes nothing in the process: `bulkhead config` and tests use it as `load` does. A text of the environment is
understood by the row of its key: as it is where the row accepts it, else as a TOML or JSON value. Settings are always
checked strictly, whatever `force_config_validation` says: a file that cannot be used is refused as a whole.
"""

from __future__ import annotations

import json
import tomllib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import Refused, defaults_of, keep, nearest, rows_of, shown
from bulkhead.option_set import Options
from bulkhead.settings import sources
from bulkhead.settings.effective import Settings
from bulkhead.settings.sections import OWN, RESOURCES, Section, sections
from bulkhead.settings.sources import Fault, Place, Variables, named
from bulkhead.tenancy import text_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bulkhead.option_rows import Row


class Checked(NamedTuple):
    """What reading led to: settings that can be used, or faults (then the settings are the defaults)."""

    settings: Settings
    faults: list[Fault]
    label: str | None
    """The file that was read, for texts."""


def read(place: Place) -> Checked:
    """Read and check everything; all faults, not only the first. ConfigurationError where the extra is missing."""
    file = place.find()
    label = None if file is None else place.label(file)
    found = sources.variables()
    tables: dict[str, Any] = {}
    faults = list(found.faults)
    if file is not None and label is not None:
        raw = sources.read_file(file, label)
        if isinstance(raw, Fault):
            return Checked(Settings(), [raw, *faults], label)
        tables, wrong = _shaped(raw, label)
        faults += wrong
    settings, wrong = _Check(tables, found, label).run()
    faults += wrong
    return Checked(Settings() if faults else settings, faults, label)


def refusal(faults: Iterable[Fault]) -> ConfigurationError:
    """All faults as one error."""
    lines = [str(fault) for fault in faults]
    if len(lines) == 1:
        return ConfigurationError(lines[0])
    return ConfigurationError("\n  ".join([f"{len(lines)} settings cannot be used:", *lines]))


def _shaped(raw: Mapping[str, Any], label: str) -> tuple[dict[str, Any], list[Fault]]:
    """The parts of the file that have the form [section] or [resources.NAME], and faults for the others."""
    known = [*sections(), RESOURCES]
    good: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, table in raw.items():
        if name not in known:
            faults.append(Fault(label, _no_section(name, known)))
        elif not isinstance(table, dict):
            faults.append(Fault(label, f"{name} must be a table, [{name}], not {shown(table)}"))
        else:
            good[name] = table
    resources = good.get(RESOURCES, {})
    faults += [
        Fault(label, f"{RESOURCES}.{named(name)} must be a table, [{RESOURCES}.NAME], not {shown(options)}")
        for name, options in resources.items()
        if not isinstance(options, dict)
    ]
    good[RESOURCES] = {name: options for name, options in resources.items() if isinstance(options, dict)}
    return good, faults


def _no_section(name: str, known: list[str]) -> str:
    at_home = [one for one, section in sections().items() if name in rows_of(section.kind)]
    if at_home:
        return f"{name} stands outside any section; it is a key of [{'], ['.join(at_home)}]"
    return f"there is no section [{named(name)}]: {nearest(name, known)}"


class _Check:
    """One pass over the tables of the file and of the environment."""

    def __init__(self, tables: dict[str, Any], found: Variables, label: str | None) -> None:
        self.file, self.label = tables, label
        self.environment, self.variables, self.faults = sources.exploded(found, tables.get(RESOURCES, {}))
        self.origins: dict[str, str] = {}

    def run(self) -> tuple[Settings, list[Fault]]:
        """The settings, and everything that is wrong."""
        for name, known in sections().items():
            _understand(self.environment.get(name, {}), rows_of(known.kind))
        for table in self.environment.get(RESOURCES, {}).values():
            _understand(table, rows_of(Options))
        together = sources.merged(self.file, self.environment)
        made = {name: self._section(name, known, together.get(name, {})) for name, known in sections().items()}
        options = {name: self._resource(name, table) for name, table in together.get(RESOURCES, {}).items()}
        own: dict[str, Any] = {name: made.pop(name) for name in OWN}
        settings = Settings(
            **own,
            resources=MappingProxyType({name: one for name, one in options.items() if one is not None}),
            file=self.label,
            others=MappingProxyType(made),
            origins=MappingProxyType(self.origins),
        )
        return settings, self.faults

    def _section(self, name: str, known: Section, table: Mapping[str, Any]) -> object:
        before = len(self.faults)
        kept = self._rows(name, table, rows_of(known.kind))
        if len(self.faults) == before:
            together = defaults_of(known.kind) | kept
            for rule in known.rules:
                for key, says in rule(together):
                    self._complain((name, key), f"{name}.{key} {says}")
        return known.kind() if len(self.faults) > before else known.kind(**kept)

    def _resource(self, name: str, table: Mapping[str, Any]) -> Options | None:
        before = len(self.faults)
        path = (RESOURCES, name)
        wrong = text_fault(name)
        if wrong is not None:
            self._complain(path, f"{RESOURCES}.{shown(name)} is no name of a resource: {wrong}")
            return None
        kept = self._rows(f"{RESOURCES}.{name}", table, rows_of(Options))
        self.origins[f"{RESOURCES}.{name}.name"] = self._origin((*path, "name")) or self._section_of(path)
        if len(self.faults) > before:
            return None
        named: dict[str, Any] = kept if "identifier" in kept else {"name": name} | kept
        strict: dict[str, Any] = named | {"force_config_validation": True}
        try:
            Options(**strict)
            return Options(**named)
        except ConfigurationError as error:
            says = str(error).removeprefix(f"{named.get('identifier') or named['name']}: ")
            self._complain(path, f"{RESOURCES}.{name}: {says}")
            return None

    def _rows(self, name: str, table: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[str, Any]:
        """The checked values of a table; origins and faults are noted."""
        kept: dict[str, Any] = {}
        for key, value in table.items():
            path = (*name.split(".", 1), key)
            if key not in rows:
                self._complain(path, f"{name} has no key {shown(key)}: {nearest(key, rows)}")
                continue
            one = rows[key]
            if "code" in one.marks:
                self._complain(path, f"{name}.{key} can only be given in code")
                continue
            try:
                kept[key] = keep(f"{name}.{key}", _none(value, one), one)
            except Refused as refused:
                self._complain(path, str(refused))
            self.origins[f"{name}.{key}"] = self._origin(path) or ""
        return kept

    def _complain(self, path: tuple[str, ...], says: str) -> None:
        self.faults.append(Fault(self._origin(path) or self._section_of(path), says))

    def _origin(self, path: tuple[str, ...]) -> str | None:
        """Where this value stands; None = nowhere. Of a table, file and environment can each have a part."""
        in_file, over = _value(self.file, path), _value(self.environment, path)
        told = [f"environment {name}" for one, name in sorted(self.variables.items()) if one[: len(path)] == path]
        if in_file is not None and self.label is not None and (isinstance(over, dict) or not told):
            told.insert(0, self.label)
        return " and ".join(told) or None

    def _section_of(self, path: tuple[str, ...]) -> str:
        """Where something about a section belongs that stands nowhere itself."""
        return self._origin(path[:-1]) or self._origin(path[:1]) or self.label or "settings"


def _value(table: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        table = table.get(name) if isinstance(table, dict) else None
    return table


def _understand(table: dict[str, Any], rows: Mapping[str, Row]) -> None:
    """Replace the texts of environment variables by the values that they mean."""
    for key, value in table.items():
        if isinstance(value, dict):
            table[key] = {inner: _literal(text) for inner, text in value.items()}
        elif key in rows and not _accepts(rows[key], value):
            table[key] = _literal(value)


def _literal(value: Any) -> Any:
    """The TOML or JSON value that a text is, else the text."""
    return next(_readings(value), value) if isinstance(value, str) else value


def _readings(text: str) -> Iterator[Any]:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        pass
    else:
        if len(found) == 1:
            yield found["value"]
    try:
        yield json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text.lower() in ("true", "false"):
        yield text.lower() == "true"


def _none(value: object, one: Row) -> object:
    """The word "none" means None where the row takes no such text: TOML has no word for it."""
    unsaid = isinstance(value, str) and value.lower() == "none" and not _accepts(one, value) and _accepts(one, None)
    return None if unsaid else value


def _accepts(one: Row, value: object) -> bool:
    try:
        one.values.keep(value)
    except Refused:
        return False
    return True

"""Settings in force: one immutable object, replaced as a whole by a reload.

It says of each value where it came from, and shows no secret. How values are read, checked and applied is elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar, cast

from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import Row, nearest, rows_of, shown
from bulkhead.option_set import Options
from bulkhead.settings.parts import Jobs, Memory
from bulkhead.settings.sections import OWN, RESOURCES, Bulkhead, Server, Tenancy, sections

S = TypeVar("S")

DEFAULT = "default"
HIDDEN = "(hidden)"
_CREDENTIALS = re.compile(r"(://)[^\s'\"]*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings in force; `bulkhead.settings.current()` returns them. One attribute per section, one per row."""

    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    tenancy: Tenancy = field(default_factory=Tenancy)
    server: Server = field(default_factory=Server)
    memory: Memory = field(default_factory=Memory)
    jobs: Jobs = field(default_factory=Jobs)
    resources: Mapping[str, Options] = field(default_factory=lambda: MappingProxyType({}))
    """[resources.NAME]: the options defined under that name."""
    file: str | None = None
    """The file that was read; None = there is none."""
    others: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Sections registered by other parts, by name; `of(…)` finds them typed."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """Key -> origin, of the keys that are set."""

    def of(self, kind: type[S]) -> S:
        """The section with this dataclass; ConfigurationError if it is not registered."""
        for name, known in sections().items():
            if known.kind is kind:
                return cast("S", self.section(name))
        raise ConfigurationError(f"no section of the settings is a {kind.__name__}")

    def section(self, name: str) -> Any:
        """The section with this name, with its defaults if it was registered after the settings were read."""
        if name in OWN:
            return getattr(self, name)
        return self.others[name] if name in self.others else sections()[name].kind()

    def origin(self, key: str) -> str:
        """Where the value of a key (`tenancy.header`, `resources.inventory.tickets`) came from.

        The file's name, "environment BULKHEAD_…", both (a table of which each has a part), or "default".
        ConfigurationError for a key that does not exist.
        """
        if key not in self.origins and key not in self.rows():
            raise ConfigurationError(f"there is no setting {shown(key)}: {nearest(key, self.rows())}")
        return self.origins.get(key, DEFAULT)

    def rows(self) -> dict[str, Row]:
        """The row of each key."""
        found = {f"{name}.{key}": one for name, known in sections().items() for key, one in rows_of(known.kind).items()}
        options = rows_of(Options)
        found |= {f"{RESOURCES}.{name}.{key}": one for name in self.resources for key, one in options.items()}
        return found

    def values(self) -> dict[str, Any]:
        """The value of each key in force, secrets included."""
        found: dict[str, Any] = {}
        for key in self.rows():
            name, _, option = key.partition(".")
            if name != RESOURCES:
                found[key] = getattr(self.section(name), option)
        for name, options in self.resources.items():
            found |= {f"{RESOURCES}.{name}.{key}": getattr(options, key) for key in rows_of(Options)}
        return found

    def told(self) -> dict[str, Any]:
        """The value of each key, fit to be shown: no secret, nothing but plain data."""
        rows = self.rows()
        return {key: presentable(value, rows[key]) for key, value in self.values().items()}


def presentable(value: object, one: Row) -> object:
    """The value as plain data (for JSON), without what must not be shown."""
    if "secret" in one.marks and value is not None:
        return HIDDEN
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, str):
        return without_credentials(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)


def brief(value: object, one: Row) -> str:
    """The value for a log line: as `presentable`, and of a table only its size (it holds tenant ids)."""
    if isinstance(value, Mapping):
        return f"<a table of {len(value)}>"
    plain = presentable(value, one)
    return str(plain) if plain == HIDDEN else shown(plain)


def without_credentials(text: str) -> str:
    """The text with what stands between :// and @ of URLs left out."""
    return _CREDENTIALS.sub(rf"\1{HIDDEN}@", text)

"""`bulkhead config`: what a settings file says, before and beside a running process. It changes nothing.

`check` finds all that is wrong with a file; `show` prints the values that would be in force here and where each comes
from. Both read the environment over the file, as the application would. Secrets are never printed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bulkhead.settings.checking import read
from bulkhead.settings.effective import DEFAULT, HIDDEN
from bulkhead.settings.reference import changes, written
from bulkhead.settings.sections import RESOURCES
from bulkhead.settings.sources import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bulkhead.settings.effective import Settings


def check(path: str | None) -> tuple[str, bool]:
    """The report, and whether the settings can be used."""
    checked = read(Place.of(path))
    file = checked.label or "no settings file here"
    if checked.faults:
        lines = [f"!! {fault}" for fault in checked.faults]
        return "\n".join([*lines, f"   {file}: {len(lines)} to be put right"]), False
    return f"   {file}: all is well, keys set: {len(_set_keys(checked.settings))}", True


def show(path: str | None, *, as_json: bool = False) -> tuple[str, bool]:
    """The values in force and their origins, and whether there are any; else what is wrong."""
    checked = read(Place.of(path))
    if checked.faults:
        return "\n".join(f"!! {fault}" for fault in checked.faults), False
    settings = checked.settings
    return (_as_json(settings) if as_json else "\n".join(_lines(settings))), True


def _as_json(settings: Settings) -> str:
    rows = settings.rows()
    told = {
        key: {"value": value, "origin": settings.origin(key), "changes_at": changes(rows[key])}
        for key, value in settings.told().items()
    }
    return json.dumps({"file": settings.file, "settings": told}, indent=2, ensure_ascii=False)


def _lines(settings: Settings) -> Iterator[str]:
    rows = settings.rows()
    yield f"# {settings.file or 'no settings file'}"
    table = ""
    for key, value in settings.told().items():
        section, _, option = key.rpartition(".")
        origin = settings.origin(key)
        if section.startswith(f"{RESOURCES}.") and origin == DEFAULT:
            continue
        if section != table:
            table = section
            yield f"\n[{_quoted(section)}]"
        mark = ", needs a restart" if changes(rows[key]) == "restart" else ""
        text = HIDDEN if value == HIDDEN else written(value)
        yield f"{f'{option} = {text}':<48} # {origin}{mark}"
    if settings.resources:
        yield "\n# Options of resources that have their defaults are left out; --json lists them."


def _set_keys(settings: Settings) -> list[str]:
    return [key for key in settings.rows() if settings.origin(key) != DEFAULT]


def _quoted(section: str) -> str:
    """The header of a table; names of resources that TOML wants quoted are."""
    start, _, name = section.partition(".")
    plain = name.replace("-", "").replace("_", "")
    return section if not name or (plain.isascii() and plain.isalnum()) else f"{start}.{json.dumps(name)}"

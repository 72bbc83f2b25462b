"""The reference of all settings, from their rows (docs/settings.md), and values as TOML writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bulkhead.option_rows import defaults_of, rows_of
from bulkhead.option_set import Options
from bulkhead.settings.sections import RESOURCES, sections

if TYPE_CHECKING:
    from bulkhead.option_rows import Row


def reference() -> str:
    """One Markdown table per section: key, default, unit, whether a reload changes it, what is accepted, meaning."""
    parts = [_table(f"[{name}]", known.kind) for name, known in sections().items()]
    return "\n".join([*parts, _table(f"[{RESOURCES}.NAME]", Options)])


def written(value: object) -> str:
    """The value as TOML writes it; none for None, for which TOML has no word."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{json.dumps(str(key), ensure_ascii=False)} = {written(one)}" for key, one in value.items())
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(written, value))}]"
    return str(value)


def changes(one: Row) -> str:
    """When another value holds: "reload" or "restart"."""
    return "restart" if "restart" in one.marks else "reload"


def _table(heading: str, kind: type) -> str:
    defaults = defaults_of(kind)
    lines = [
        f"### {heading}",
        "",
        "| key | default | unit | changes at | accepted | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for key, one in rows_of(kind).items():
        if "code" in one.marks:
            continue
        meaning = one.meaning + (" (secret)" if "secret" in one.marks else "")
        cells = (key, written(defaults[key]), one.unit, changes(one), one.values.says, meaning)
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines) + "\n"

"""Writes the tables of options and settings into the pages, between their markers: `python tests/docs/write_tables.py`.

A program of its own and not a test: tests compare what stands there with what this would write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bulkhead.option_set import process_table, table
from bulkhead.settings.reference import reference

ROOT = Path(__file__).parents[2]
PAGES = {
    ROOT / "README.md": {"options": table, "defaults": process_table},
    ROOT / "docs" / "settings.md": {"settings": reference},
}


def written(page: Path) -> str:
    """The text of the page with the tables between its markers as the code has them now."""
    text = page.read_text(encoding="utf-8")
    for name, rows in PAGES[page].items():
        between = re.compile(rf"(<!-- {name}:begin [^>]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text, count = between.subn(lambda found, rows=rows: found[1] + rows() + found[2], text)  # type: ignore[misc]
        if count != 1:
            sys.exit(f"{page.name} has {count} pairs of the markers {name}:begin and {name}:end; there must be one")
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page), encoding="utf-8")

"""Writes the tables of options into README.md, between their markers: `python tests/docs/write_tables.py`.

A program of its own and not a test: test_options.py compares what stands there with what this would write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bulkhead.option_set import process_table, table

README = Path(__file__).parents[2] / "README.md"


def written(text: str) -> str:
    """The text with the tables between its markers as the code has them now."""
    for name, rows in (("options", table()), ("defaults", process_table())):
        between = re.compile(rf"(<!-- {name}:begin [^>]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text, count = between.subn(lambda found, rows=rows: found[1] + rows + found[2], text)  # type: ignore[misc]
        if count != 1:
            sys.exit(f"README.md has {count} pairs of the markers {name}:begin and {name}:end; there must be one")
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")

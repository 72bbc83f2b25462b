"""Tables for a terminal, by rich where it is installed and somebody looks; plain columns for pipes and files."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """The rows below their heads; `right`: the columns that are aligned to the right."""
    if sys.stdout.isatty():
        try:
            return _rich(heads, rows, right)
        except ImportError:
            pass
    return _plain(heads, rows, right)


def _plain(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    every = [heads, *rows]
    widths = [max(len(row[place]) for row in every) for place in range(len(heads))]
    lines: list[str] = []
    for row in every:
        texts = [
            text.rjust(width) if place in right else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(texts).rstrip())
    return "\n".join(lines)


def _rich(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    from rich.console import Console  # noqa: PLC0415  an extra
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    made = Table()
    for place, head in enumerate(heads):
        made.add_column(head, justify="right" if place in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))  # an id is no markup
    console = Console(file=io.StringIO(), force_terminal=True, width=Console().width)
    with console.capture() as caught:
        console.print(made)
    return caught.get().rstrip("\n")

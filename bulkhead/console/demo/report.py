"""What the demonstration says at its end: one table, and the options as they were used."""

from __future__ import annotations

import json
from math import inf, isnan
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from bulkhead.console.demo.scene import Played, Story

PLAYED = {False: "without protection", True: "with protection"}


def table(scenes: list[Played]) -> Table:
    """Everything side by side; 80 columns are enough."""
    made = Table(title="The same load twice, measured in this run", title_justify="left", title_style="bold")
    made.add_column("")
    made.add_column("without\nprotection", justify="right", no_wrap=True)
    made.add_column("with\nprotection", justify="right", no_wrap=True)
    for scene in scenes:
        made.add_section()
        made.add_row(f"[bold]{scene.story.title}[/]", "", "")
        for figure in scene.figures:
            first, second = written(figure.without, figure.form), written(figure.protected, figure.form)
            made.add_row("  " + figure.what, first, second)
    return made


def written(value: float, form: str) -> str:
    """A number in its unit."""
    if isnan(value):
        return "-"
    if form == "time":
        return milliseconds(value)
    return {"rate": f"{value:.0f}/s", "share": f"{value:.0%}", "count": f"{value:.0f}"}[form]


def milliseconds(seconds: float) -> str:
    """Seconds as text, in the unit that fits."""
    if isnan(seconds):
        return "-"
    if seconds == inf:
        return "never"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


def options(story: Story) -> str:
    """The call that made the protected client, as code; what both clients had is left out."""
    given = "".join(f"    {name}={json.dumps(value)},\n" for name, value in story.options.items())
    return f"{story.client}(..., **bulkhead.options(\n{given}))"

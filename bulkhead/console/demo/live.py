"""What is seen while the demonstration plays: a live view on a terminal, a line for each run in a pipe."""

from __future__ import annotations

from math import inf, log10
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bulkhead.console.demo.load import percentile
from bulkhead.console.demo.report import PLAYED, milliseconds
from bulkhead.console.demo.scene import QUIET

if TYPE_CHECKING:
    from rich.console import Console

    from bulkhead.console.demo.load import Run
    from bulkhead.console.demo.scene import Story

BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = 40
FASTEST, SLOWEST = 0.001, 5.0  # seconds; the lowest and the highest block, with equal ratios between them
GOOD, FAIR = 0.05, 0.5  # seconds; up to there a block is green, yellow


class View:
    """Shows runs. `scene` begins one, `watch` is called again and again, `end` leaves the last state on the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._live: Live | None = None
        self._story: Story | None = None
        self._lines: dict[bool, Text] = {}

    def scene(self, story: Story) -> None:
        """The next two runs are of this scene."""
        self.end()
        self._story, self._lines = story, {}
        self._console.print()
        self._console.print(Text(story.title, "bold"))
        for line in story.load:
            self._console.print(Text("  " + line, "dim"))
        if self._is_live:
            self._live = Live(console=self._console, refresh_per_second=10)
            self._live.start()

    def end(self) -> None:
        """The scene is over."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def watch(self, run: Run, *, protected: bool) -> None:
        """Show how a run is getting on."""
        if self._live is None:
            if protected not in self._lines:
                self._lines[protected] = Text()
                self._console.print(f"  playing {run.seconds:g} s {PLAYED[protected]}", highlight=False)
            return
        self._lines[protected] = _line(run)
        rows = Table.grid(padding=(0, 2))
        for each, line in self._lines.items():
            rows.add_row(Text(PLAYED[each], "green" if each else "red"), line, style="" if each == protected else "dim")
        if self._story is not None and self._story.trouble is not None:
            rows.add_row("", _band(*self._story.trouble))
        watched = "response" if self._story is None else self._story.watched
        says = f"block: slowest {watched} of {run.seconds / COLUMNS:.2g} s, 1 ms to 5 s, logarithmic"
        self._live.update(Group(rows, Text(says, "dim")))


def _line(run: Run) -> Text:
    """The run so far, a block for each stretch of it, and the last second in numbers."""
    now, worst = run.now, [0.0] * COLUMNS
    answers = [one for one in run.answers.copy() if one.arrival.tenant in QUIET]
    waiting = [one for one in run.waiting.copy().values() if one.tenant in QUIET]
    for arrival, took in [(one.arrival, one.took) for one in answers] + [(one, now - one.at) for one in waiting]:
        column = min(COLUMNS - 1, int(arrival.at / run.seconds * COLUMNS))
        worst[column] = max(worst[column], took)
    line = Text()
    for took in worst:
        line.append(*_block(took))
    recent = [one.took for one in answers if one.ended > now - 1.0]
    if now < run.seconds:
        line.append(f" {len(recent):3d}/s p50 {milliseconds(percentile(recent, 0.5)):>6}")
    elif waiting:
        line.append(f" {len(waiting)} still wait")
    return line


def _block(took: float) -> tuple[str, str]:
    """Character and colour of one stretch; a blank where nothing arrived."""
    if took == 0:
        return " ", ""
    height = 1.0 if took == inf else log10(max(took, FASTEST) / FASTEST) / log10(SLOWEST / FASTEST)
    return BLOCKS[min(len(BLOCKS) - 1, int(height * len(BLOCKS)))], (
        "green" if took <= GOOD else "yellow" if took <= FAIR else "red"
    )


def _band(begin: float, end: float, what: str) -> Text:
    """A ruler below the blocks that marks when the trouble was."""
    left, width = round(begin * COLUMNS), round((end - begin) * COLUMNS)
    return Text(" " * left + f" {what} ".center(width, "─")[:width], "magenta")

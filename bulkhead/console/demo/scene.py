"""A scene of the demonstration: one load, played without and with protection, and the figures that compare the two.

Both runs get the same schedule and the same time-outs; the only difference is `**bulkhead.options(…)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bulkhead.console.demo.load import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bulkhead.console.demo.load import Answer, Run

QUIET = ("acme", "globex", "initech", "hooli")
NOISY = "noisy"

Pair = tuple["list[Answer]", "list[Answer]"]


class Figure(NamedTuple):
    """One line of the table: what, without, with; and how the two numbers are written (time, rate, share, count)."""

    what: str
    without: float
    protected: float
    form: str


class Story(NamedTuple):
    """What is said of a scene before it is played.

    `trouble`: from, to (shares of the run) and what happens then. `watched`: what the live view shows the slowest of.
    """

    title: str
    load: tuple[str, ...]
    client: str
    options: Mapping[str, Any]
    trouble: tuple[float, float, str] | None
    watched: str


class Played(NamedTuple):
    """A scene that was played twice."""

    story: Story
    figures: list[Figure]
    without: Run
    protected: Run


class Watch(Protocol):
    """Told about ten times a second how a run is getting on."""

    def __call__(self, run: Run, *, protected: bool) -> None:
        """Show it."""


def figure(what: str, measure: Callable[[list[Answer]], float], answers: Pair, form: str) -> Figure:
    """The same measure of both runs."""
    return Figure(what, measure(answers[0]), measure(answers[1]), form)


def times(what: str, share: float, answers: Pair) -> Figure:
    """A percentile of response times."""
    return figure(
        f"{what}, p{share * 100:.0f}", lambda some: percentile([one.took for one in some], share), answers, "time"
    )


def counted(what: str, how: str, answers: Pair) -> Figure:
    """How many requests ended in this way."""
    return figure(what, lambda some: sum(one.how == how for one in some), answers, "count")


def shared(what: str, how: str, answers: Pair) -> Figure:
    """Which share of the requests ended in this way."""
    return figure(
        what, lambda some: sum(one.how == how for one in some) / len(some) if some else float("nan"), answers, "share"
    )


def chosen(runs: tuple[Run, Run], keep: Callable[[Answer], bool]) -> Pair:
    """The answers of both runs that are to be compared."""
    first, second = ([one for one in run.answers if keep(one)] for run in runs)
    return first, second

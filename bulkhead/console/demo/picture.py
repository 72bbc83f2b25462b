"""The picture of the demonstration: the response time of every request, without beside with protection."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.ticker import FuncFormatter, NullFormatter

from bulkhead.console.demo.report import PLAYED
from bulkhead.console.demo.scene import NOISY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bulkhead.console.demo.load import Answer, Run
    from bulkhead.console.demo.scene import Played

Group = tuple[str, str, str, int, "Callable[[Answer], bool]"]

COLOURS = {False: "#c0392b", True: "#1e8449"}
GREY = "#7f8c8d"
FASTEST = 0.0002  # seconds; the bottom of the axis
RISE = 1.4  # from there to the axis' ends


def draw(scenes: list[Played], path: Path) -> None:
    """Write the picture."""
    mpl.use("agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415  only after the backend is chosen

    style: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "path"}
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            len(scenes), 2, figsize=(11, 3.6 * len(scenes)), sharey="row", squeeze=False, layout="constrained"
        )
        for row, scene in zip(axes, scenes, strict=True):
            for axis, protected in zip(row, (False, True), strict=True):
                _panel(axis, scene, scene.protected if protected else scene.without, protected=protected)
            row[0].set_ylabel("response time")
        figure.suptitle("Every dot is a request; the same load in both columns", fontsize=12, x=0.01, ha="left")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _panel(axis: Any, scene: Played, run: Run, *, protected: bool) -> None:
    for label, colour, marker, size, belongs in _groups(run, COLOURS[protected]):
        dots = [one for one in run.answers if one.took != inf and belongs(one)]
        axis.scatter(
            [one.arrival.at for one in dots],
            [max(one.took, FASTEST) for one in dots],
            s=size,
            marker=marker,
            color=colour,
            alpha=0.7,
            linewidths=0.8 if marker == "x" else 0,
            label=label,
        )
    if scene.story.trouble is not None:
        begin, end, what = scene.story.trouble
        axis.axvspan(begin * run.seconds, end * run.seconds, color="#f4ecd8", zorder=0, linewidth=0)
        middle = (begin + end) / 2 * run.seconds
        axis.text(middle, 0.97, what, transform=axis.get_xaxis_transform(), ha="center", va="top", color="#7d6608")
    else:
        place = "upper right" if protected else "lower right"  # where this scene has no dots
        axis.legend(loc=place, framealpha=0.9, fontsize=9, markerscale=1.5)
    axis.set_yscale("log")
    axis.set_ylim(FASTEST / RISE, 10)
    axis.yaxis.set_major_formatter(FuncFormatter(_duration))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="y", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.set_xlim(0, run.seconds)
    axis.set_xlabel("arrival, seconds from the start")
    axis.set_title(f"{scene.story.title},\n{PLAYED[protected]}", fontsize=10.5, loc="left", color=COLOURS[protected])


def _groups(run: Run, colour: str) -> list[Group]:
    """Label, colour, marker, size and members; the noisy tenant's apart where there is one."""
    if not any(one.arrival.tenant == NOISY for one in run.answers):
        return [("requests", colour, "o", 9, lambda _: True)]

    def noisy(one: Answer) -> bool:
        return one.arrival.tenant == NOISY

    groups: list[Group] = [
        ("noisy tenant: answered", GREY, "o", 11, lambda one: noisy(one) and one.how == "answered"),
        ("noisy tenant: refused or failed", GREY, "x", 9, lambda one: noisy(one) and one.how != "answered"),
        ("quiet tenants", colour, "o", 9, lambda one: not noisy(one)),
    ]
    return [group for group in groups if any(map(group[4], run.answers))]


def _duration(seconds: float, _position: int) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"

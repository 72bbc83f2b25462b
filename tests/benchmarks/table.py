"""Lines of the result: what was measured, its ratio to a peer of the same run, and the budget it is held to."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from timing import over, paired

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Results = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Line:
    """One line of the table, as text; `holds`: is the budget kept? None: there is none."""

    row: str
    cost: str
    peer: str = ""
    ratio: str = ""
    budget: str = ""
    holds: bool | None = None

    @property
    def verdict(self) -> str:
        """ok, OVER, or nothing where there is no budget."""
        return "" if self.holds is None else "ok" if self.holds else "OVER"


def ratio_line(
    row: str, results: Results, peer: str, budget: float | None = None, *, bare: str | None = "bare call"
) -> Line:
    """A row against a peer, both over the bare call of the same group (`bare` None: as they are).

    A budget holds if the ratio of the medians or that of the minima is within it: noise spoils the one or the other,
    what is really too slow shows in both.
    """
    base = None if bare is None else results[bare]
    mid, low = over(results[row], base)
    peer_mid, peer_low = over(results[peer], base)
    ratio = (mid / peer_mid, low / peer_low)
    return Line(
        row,
        f"{mid:,.0f} / {low:,.0f} ns",
        peer,
        f"{ratio[0]:.2f} / {ratio[1]:.2f}",
        "" if budget is None else f"{budget:g}",
        None if budget is None else min(ratio) <= budget,
    )


def cost_line(row: str, results: Results, *, bare: str | None = "bare call") -> Line:
    """A row that is compared to nothing."""
    mid, low = over(results[row], None if bare is None or row == bare else results[bare])
    return Line(row, f"{mid:,.0f} / {low:,.0f} ns")


def paired_lines(
    title: str,
    both: tuple[Results, Results],
    row: str,
    plain: tuple[str, str],
    share: float,
    least: float,
) -> list[Line]:
    """What a row costs more than two plain clients: budget `share` of their time, or `least` ns where that is more.

    `both`: by wall clock and by CPU time. The CPU time is held against the budget; the wall clock too, less its bound.
    """
    usual = median([*both[0][plain[0]], *both[0][plain[1]]])
    most = max(share * usual, least)
    budget = f"{share:.1%}" if share * usual >= least else f"{least / 1000:g} us"
    lines: list[Line] = []
    for kind, results in zip(("wall", "CPU"), both, strict=True):
        more, bound = paired(results[row], results[plain[0]], results[plain[1]])
        cost, ratio = f"{more / 1000:+.2f} ± {bound / 1000:.2f} us", f"{more / usual:+.1%} ± {bound / usual:.1%}"
        holds = (more - bound if kind == "wall" else more) <= most
        lines.append(Line(title, cost, f"{kind}, plain {usual / 1000:,.1f} us", ratio, budget, holds))
    return lines


def control_line(title: str, both: tuple[Results, Results], plain: str, control: str) -> Line:
    """How far two clients that are the same seem apart: the noise of the run."""
    more, bound = paired(both[0][control], both[0][plain], None)
    usual = median(both[0][plain])
    cost = f"{more / 1000:+.2f} ± {bound / 1000:.2f} us"
    return Line(title, cost, f"wall, plain {usual / 1000:,.1f} us", f"{more / usual:+.1%} ± {bound / usual:.1%}")


def rendered(title: str, lines: Sequence[Line]) -> str:
    """One group as text."""
    out = [f"\n{title}", f"  {'row':46s} {'median / minimum':>22s}  {'to':28s} {'ratio':>15s} {'budget':>8s}"]
    before = cost_before = ""
    for line in lines:
        same = line.row == before
        name, cost = "" if same else line.row, "" if same and line.cost == cost_before else line.cost
        before, cost_before = line.row, line.cost
        text = f"  {name:46s} {cost:>22s}  {line.peer:28s} {line.ratio:>15s} {line.budget:>8s}  {line.verdict}"
        out.append(text.rstrip())
    return "\n".join(out)

"""What is made of the runs of isolation.py: percentiles, rates, ratios to the quiet tenants alone, and the budgets."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from callers import CREATE, LATEST, PATIENCE, REPORTED, TIMES
from table import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from callers import Outcome

ALONE, AT_ONCE, POLITE, BARE = VARIANTS = (
    "quiet tenants alone",
    "noisy, asks again at once",
    "noisy, honours Retry-After",
    "noisy, no protection",
)
P99, CONTROL, THROUGHPUT, CPU = 1.2, 10.0, 0.95, 0.60  # budgets
SUCCESS = (200, 201)


@dataclass(frozen=True)
class Run:
    """What was measured in one run, without its warm-up."""

    quiet: list[Outcome]
    noisy: list[Outcome]
    seconds: float
    cpu: float  # used by the application, of one core
    machine: float  # used by everybody, of all cores

    def percentile(self, share: float, kinds: tuple[str, ...] = (LATEST, CREATE, REPORTED)) -> float:
        """Seconds of the quiet requests of these kinds. One without success counts as not answered within PATIENCE."""
        took = sorted(
            seconds if status in SUCCESS else PATIENCE for kind, _, status, seconds in self.quiet if kind in kinds
        )
        return took[int(len(took) * share)]

    def p50(self) -> float:
        """Of all quiet requests."""
        return self.percentile(0.50)

    def p99(self) -> float:
        """Of all quiet requests."""
        return self.percentile(0.99)

    def p99_of_short(self) -> float:
        """Of those that are no reports: a few milliseconds each, so a millisecond more is seen."""
        return self.percentile(0.99, (LATEST, CREATE))

    def answered(self) -> float:
        """Quiet requests a second that were answered with success."""
        return sum(status in SUCCESS for _, _, status, _ in self.quiet) / self.seconds

    def failed(self) -> float:
        """Quiet requests that were not."""
        return sum(status not in SUCCESS for _, _, status, _ in self.quiet)

    def asked(self) -> float:
        """Requests a second of the noisy tenant that were answered, in whatever way."""
        return len(self.noisy) / self.seconds

    def served(self) -> float:
        """Those with success."""
        return sum(status in SUCCESS for _, _, status, _ in self.noisy) / self.seconds


def lines(runs: Mapping[str, Sequence[Run]], rate: float) -> list[Line]:
    """All variants. `rate`: of the quiet tenants, requests a second."""
    return [line for name in VARIANTS for line in _variant(name, runs[name], runs[ALONE], rate)]


def _variant(name: str, those: Sequence[Run], alone: Sequence[Run], rate: float) -> list[Line]:
    def typical(figure: Callable[[Run], float]) -> float:
        return median(map(figure, those))

    def ratio(figure: Callable[[Run], float]) -> float:
        return typical(figure) / median(map(figure, alone))

    found: list[Line] = []

    def say(
        what: str, shown: str, figure: Callable[[Run], float], budget: str = "", *, holds: bool | None = None
    ) -> None:
        if name is ALONE:
            found.append(Line(what, shown))
        else:
            found.append(Line(what, shown, ALONE, f"{ratio(figure):.3f}", budget, holds))

    p99, answered = ratio(Run.p99), ratio(Run.answered)
    shown = f"{_ms(typical(Run.p50))} / {_ms(typical(Run.p99))} ms"
    if name is BARE:
        say(f"{name}: p50 / p99", shown, Run.p99, f">= {CONTROL:g}", holds=p99 >= CONTROL)
    else:
        say(f"{name}: p50 / p99", shown, Run.p99, f"<= {P99:g}", holds=p99 <= P99)
    found.append(Line("  p99 of each run", " ".join(_ms(one.p99()) for one in those) + " ms"))
    say("  p99 without reports", f"{_ms(typical(Run.p99_of_short))} ms", Run.p99_of_short)
    shown = f"{typical(Run.answered):,.1f} /s"
    if name is BARE:
        say("  answered", shown, Run.answered)
    else:
        say("  answered", shown, Run.answered, f">= {THROUGHPUT:g}", holds=answered >= THROUGHPUT)
    found.append(
        Line("  not answered", f"{sum(map(Run.failed, those)):,.0f} of {sum(len(one.quiet) for one in those):,}")
    )
    cpu, everybody = typical(lambda run: run.cpu), typical(lambda run: run.machine)
    found.append(Line("  CPU of the application", f"{cpu:.0%}", "one core", "", f"<= {CPU:.0%}", cpu <= CPU))
    found.append(Line("  CPU of everything", f"{everybody:.0%}", "the machine"))
    if name is not ALONE:
        due, asked, served = TIMES * rate, typical(Run.asked), typical(Run.served)
        found.append(Line("  the noisy tenant: due", f"{due:,.0f} /s", "quiet ones", f"{due / rate:.1f}"))
        found.append(Line("  … answered, of these served", f"{asked:,.0f} /s, {served:,.0f} /s"))
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}"

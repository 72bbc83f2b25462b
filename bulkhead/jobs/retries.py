"""When a job that failed is tried again. No clock: a number of seconds."""

from __future__ import annotations

FIRST = 0.25
"""Seconds: the longest pause after the first attempt; each further one may be twice as long."""
LONGEST = 3600.0
_DOUBLINGS = 14  # 0.25 s x 2^14 is above an hour


def pause(attempt: int, chance: float) -> float:
    """Seconds before the next attempt after this one (1, 2, …) failed; `chance` uniform in 0..1.

    Full jitter (uniform from 0, not around a mean): jobs that failed together do not come back together.
    """
    return chance * min(LONGEST, FIRST * 2.0 ** min(attempt - 1, _DOUBLINGS))

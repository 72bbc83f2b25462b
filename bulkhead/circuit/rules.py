"""Trip rules of a closed circuit: when do failures open it?

Rules are asked under the lock of the resource. `success` is None where a success changes nothing; otherwise it is
called from the hot path without a lock, so it may only use single C calls or survive a race with itself.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Rule(Protocol):
    """One rule of one closed epoch."""

    success: Callable[[float, str | None], object] | None
    # May `note(now)` stand for `failure(…)`, without the lock? One append and two reads of a deque: nothing to protect.
    plain: bool

    def note(self, now: float) -> bool:
        """`failure(…)` of a plain rule."""
        ...

    def failure(self, now: float, tenant: str | None, *, anonymous: bool) -> bool:
        """Note a failure; True if the circuit has to open. `anonymous`: nobody's, e.g. a failed connect."""
        ...

    def noted(self, now: float) -> int:
        """Failures that still count at `now`."""
        ...


class Window:
    """`threshold` failures within `length` seconds; failures within `lumping` seconds of the last counted one are one.

    With `tenants` > 1 they must come from that many different tenants, or no other tenant had a success within the
    window. Anonymous failures are nobody's poison: they count without that rule. At most `tenants` ids are kept.
    """

    def __init__(self, threshold: int, length: float, lumping: float = 0.0, tenants: int = 1) -> None:
        self.threshold, self.length, self.lumping, self.tenants = threshold, length, lumping, tenants
        self.times: deque[float] = deque(maxlen=threshold)
        self.success: Callable[[float, str | None], object] | None = None
        if tenants > 1:
            self.success = self._succeeded
        self.plain = tenants == 1 and not lumping
        self._anonymous: deque[float] = deque(maxlen=threshold)
        # Apart from the failure times: a noisy tenant must not push the others out of the window.
        self._failing: dict[str | None, float] = {}
        self._succeeding: dict[str | None, float] = {}

    def note(self, now: float) -> bool:
        """As `failure`, of a plain rule."""
        times = self.times
        times.append(now)
        return len(times) == self.threshold and now - times[0] <= self.length

    def failure(self, now: float, tenant: str | None, *, anonymous: bool) -> bool:
        """Note a failure; True if the circuit has to open."""
        times, nobody = self.times, anonymous or tenant is None
        if self.tenants > 1 and not nobody:  # also of a failure that is lumped: it came from this tenant, too
            _remember(self._failing, tenant, now, self.tenants)
        if self.lumping and times and now - times[-1] < self.lumping:
            return False
        if self.tenants > 1 and nobody:
            self._anonymous.append(now)
        return self.note(now) and (self.tenants == 1 or self._poison_of_many(now))

    def _poison_of_many(self, now: float) -> bool:
        anonymous, since = self._anonymous, now - self.length
        if len(anonymous) == self.threshold and anonymous[0] >= since:
            return True
        failing = {tenant for tenant, at in self._failing.items() if at >= since}
        if len(failing) >= self.tenants:
            return True
        succeeding = self._succeeding.copy()
        return not any(at >= since and tenant not in failing for tenant, at in succeeding.items())

    def _succeeded(self, now: float, tenant: str | None) -> None:
        _remember(self._succeeding, tenant, now, self.tenants)

    def noted(self, now: float) -> int:
        """Failures within the window."""
        return sum(now - at <= self.length for at in _copy(self.times))


class Run:
    """`threshold` failures in a row, whatever the time between them; one success breaks the run.

    A run means that nobody had a success since it began, so `error_tenants` has nothing to add here.
    """

    def __init__(self, threshold: int, lumping: float = 0.0) -> None:
        self.threshold, self.lumping = threshold, lumping
        self.times: deque[float] = deque(maxlen=threshold)
        self.success: Callable[[float, str | None], object] | None = self._succeeded
        self.plain = not lumping

    def note(self, now: float) -> bool:
        """As `failure`, of a plain rule."""
        times = self.times
        times.append(now)
        return len(times) >= self.threshold

    def failure(self, now: float, tenant: str | None, *, anonymous: bool) -> bool:  # noqa: ARG002  a Rule
        """Note a failure; True if the run is long enough."""
        try:
            if self.lumping and now - self.times[-1] < self.lumping:
                return False
        except IndexError:  # the first, or a success was here just now: it takes no lock
            pass
        return self.note(now)

    def _succeeded(self, now: float, tenant: str | None) -> None:  # noqa: ARG002  a Rule
        if self.times:
            self.times.clear()

    def noted(self, now: float) -> int:  # noqa: ARG002  a Rule
        """Failures in a row so far."""
        return len(self.times)


def _copy(times: deque[float]) -> deque[float]:
    """A copy, although other threads append (without the GIL, copying raises then)."""
    while True:
        try:
            return times.copy()
        except RuntimeError:
            continue


def _remember(recent: dict[str | None, float], tenant: str | None, now: float, most: int) -> None:
    """Make `tenant` the newest of at most `most` keys. Safe against itself in another thread: a race keeps one more."""
    recent.pop(tenant, None)
    recent[tenant] = now
    while len(recent) > most:
        try:
            recent.pop(next(iter(recent)), None)
        except (RuntimeError, StopIteration):  # another thread changed it in between
            return

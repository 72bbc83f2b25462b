"""Look-ups that all who ask at a time share, and that get rarer while they find nothing. It knows no map.

A look-up runs in a thread of its own that all callers wait for: none of them loses it by being interrupted, and event
loops wait for it as well. One that does not come back is given up after a while and begun anew.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_PAUSE: Final = 30.0  # seconds that fruitless look-ups are apart at most


class LookUps:
    """`look()` says whether there was something new. It is taken for lost after `lost_after` seconds.

    From a fruitless look-up to the next one `least` seconds pass, doubled by each up to 30. No I/O under the lock.
    """

    def __init__(self, look: Callable[[], bool], least: float, lost_after: float) -> None:
        self._look, self._least, self._lost_after = look, least, lost_after
        self.begun = 0
        self.pause, self.open_at = least, 0.0
        """Seconds after the next fruitless look-up, and the earliest time of the next one."""
        self.again()

    def again(self) -> None:
        """In a forked child: no lock is taken, and nothing is under way."""
        self._lock = threading.Lock()
        self._flight: tuple[Future[None], float] | None = None

    def join(self) -> Future[None] | None:
        """The look-up that is under way, begun now if there is none; None while it is too early for another."""
        fresh: Future[None] = Future()
        fresh.set_running_or_notify_cancel()  # from here on nobody who waits can cancel it
        with self._lock:
            now = monotonic()
            if self._flight is not None and now < self._flight[1]:
                return self._flight[0]
            if now < self.open_at:
                return None
            self._flight = (fresh, now + self._lost_after)
            self.begun += 1
        try:
            threading.Thread(target=self._land, args=(fresh,), name="bulkhead-cells-refresh", daemon=True).start()
        except RuntimeError:  # no thread can be started, the interpreter is ending perhaps
            self._settle(fresh, fruitful=False)
        return fresh

    def _land(self, flight: Future[None]) -> None:
        fruitful = False
        try:
            fruitful = self._look()
        finally:
            self._settle(flight, fruitful=fruitful)

    def _settle(self, flight: Future[None], *, fruitful: bool) -> None:
        with self._lock:
            if self._flight is not None and self._flight[0] is flight:
                self._flight = None
                if fruitful:
                    self.pause, self.open_at = self._least, 0.0
                else:
                    self.open_at = monotonic() + self.pause
                    self.pause = min(2 * self.pause, max(LONGEST_PAUSE, self._least))
        flight.set_result(None)

"""Counters that threads share: exact, and without a lock where the interpreter needs none.

A lock taken and released costs as much as a whole guarded call. With the GIL, CPython (3.10 and later) lets another
thread run only at calls, at the start of functions and at backward jumps, so `value += 1` on a plain attribute cannot
be interrupted half-way. Without the GIL each counter has a lock. Where a call of `add` is too much, write
`if GIL: tally.value += 1` / `else: tally.add()`.
"""

from __future__ import annotations

import sys
import threading

GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class Tally:
    """A number that only grows."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self.value = 0
        if not GIL:
            self._lock = threading.RLock()  # a signal handler or a finalizer may count, too

    def add(self) -> int:
        """One more. The number now, others' additions included."""
        if GIL:
            self.value += 1
        else:
            with self._lock:
                self.value += 1
        return self.value

    def __repr__(self) -> str:
        return f"<Tally {self.value}>"


class Tallies(dict[str, Tally]):
    """Tallies by name, made when first asked for."""

    def __missing__(self, name: str) -> Tally:
        return self.setdefault(name, Tally())

    def numbers(self) -> dict[str, int]:
        """A snapshot of those above 0."""
        return {name: tally.value for name, tally in self.copy().items() if tally.value}

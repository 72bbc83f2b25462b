"""What ends a worker process: SIGTERM and SIGINT, which `run` has handlers for, and what becomes of these at a fork.

A child that a job forks (each pool of multiprocessing has some) would have them, too, and with them the pipe or the
socket that they write to: a signal to the child ended its parent's runner, and not the child. So a child has the
handlers of before, and nothing reaches it until it has.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Handlers:
    """Those that there were before `run`. One for the process, as signals are."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._masks = threading.local()

    def replace(self, put: Callable[[int], object]) -> None:
        """Remember the handlers of now, and `put` the new one of each number. In the main thread."""
        self._before = {number: signal.getsignal(number) for number in NUMBERS}
        for number in NUMBERS:
            put(number)

    def restore(self) -> None:
        """Set what was replaced. In the main thread."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not one of Python's

    def before_fork(self) -> None:
        """Let none come between the fork and `in_child`."""
        if self._before:
            self._masks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)

    def after_fork(self) -> None:
        """As before it. In the thread that forked."""
        mask = getattr(self._masks, "mask", None)
        if mask is not None:
            self._masks.mask = None
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def in_child(self) -> None:
        """Its signals are its own."""
        if self._before:
            with suppress(ValueError):  # forked by a thread of a subinterpreter
                signal.set_wakeup_fd(-1)  # an event loop shares that with the parent's
                self.restore()
        self.after_fork()


handlers = Handlers()
os.register_at_fork(before=handlers.before_fork, after_in_parent=handlers.after_fork, after_in_child=handlers.in_child)

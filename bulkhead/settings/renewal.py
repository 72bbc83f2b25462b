"""Reloading by itself: on SIGHUP, and when a file changes. Both only decide when; `live` reloads.

A signal handler runs between two instructions of the main thread, which may hold any lock. So it takes none: it starts
a bare thread, which needs no lock of Python's (`threading.Thread.start` does), and that one reloads. No thread exists
before a signal comes, so nothing is lost by a fork; a watching thread is started again in the child.
"""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Self

from bulkhead.errors import ConfigurationError
from bulkhead.log_lines import say
from bulkhead.settings.live import live
from bulkhead.settings.sources import Place, stamp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

log = logging.getLogger("bulkhead")

LOOK_AGAIN_MS = 2_000
"""Even without an event the files are looked at this often: network file systems send none."""


def quietly() -> None:
    """Reload. What is wrong with a file is in the log; there is nobody else to tell."""
    try:
        live.renew(None)
    except ConfigurationError:
        pass
    except Exception:
        log.exception("[BULKHEAD] settings_not_reloaded: those from before hold")


class _OnSignal:
    """The handler: reload in a thread, then what was there before.

    Invariant: while `_waiting`, a thread was started that has not begun to read; it will see every change up to now.
    """

    def __init__(self, before: Any) -> None:
        self._before = before if callable(before) else None
        self._waiting = False
        self._turn = threading.Lock()
        os.register_at_fork(after_in_child=self._fresh)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._waiting:
            self._waiting = True
            try:
                _thread.start_new_thread(self._reload, ())
            except RuntimeError:  # no thread can be started, the interpreter is ending perhaps
                self._waiting = False
        if self._before is not None:
            self._before(number, frame)

    def _reload(self) -> None:
        with self._turn:
            self._waiting = False
            quietly()

    def _fresh(self) -> None:
        self._turn, self._waiting = threading.Lock(), False


def reload_on_sighup() -> None:
    """Reload the settings on SIGHUP; a handler that was there before is called too. Idempotent.

    A handler set later replaces this one, as is the way of signals. ConfigurationError outside the main thread, and
    where a handler is there that is not Python's and could not be called any more.
    """
    before = signal.getsignal(signal.SIGHUP)
    if isinstance(before, _OnSignal):
        return
    if before is None:
        raise ConfigurationError(
            "SIGHUP has a handler that was not installed by Python and would be lost; call settings.reload() from it"
        )
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "reload_on_sighup() must be called in the main thread: Python sets handlers there only"
        )
    live.begin()
    signal.signal(signal.SIGHUP, _OnSignal(before))


class Watch:
    """What `watch()` returns: reloads when the settings file changes, until `stop()`. A context manager too."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=_look, args=(self._ended,), name="bulkhead-settings", daemon=True)
        self._thread.start()
        _watching.add(self)

    def stop(self, seconds: float = 5.0) -> None:
        """Stop watching, and wait at most this many seconds for the thread to end. Idempotent."""
        _watching.discard(self)
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    @property
    def alive(self) -> bool:
        """Whether its thread runs, in this process."""
        return self._thread.is_alive() and not self._ended.is_set()

    def again(self) -> None:
        """In a forked child, where the thread is not: start it there too."""
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_watching: set[Watch] = set()


def watch() -> Watch:
    """Reload the settings when their file is written, replaced, made or removed; `stop()` of the answer ends it.

    By a daemon thread, which forked children get too. The file is looked at half a second after a change at the
    earliest, and every two seconds in any case. ConfigurationError where the extra `watch` is not installed.
    """
    _library()
    live.begin()
    return Watch()


def _look(ended: threading.Event) -> None:
    complained = False
    while not ended.is_set():
        place = live.place or Place.of(None)
        try:
            _if_different(place)  # what changed before the watching began
            for _ in _events({one.parent for one in place.candidates()}, ended):
                _if_different(place)
                if live.place is not place:
                    break
        except (OSError, RuntimeError) as error:  # no inotify watches are left, or the folder is gone
            if not complained:
                complained = True
                say("settings_not_watched", f"{error}; the file is looked at every {LOOK_AGAIN_MS / 1000:g} s")
            ended.wait(LOOK_AGAIN_MS / 1000)


def _if_different(place: Place) -> None:
    if stamp(place) != live.seen:
        quietly()


def _events(folders: set[Path], ended: threading.Event) -> Iterator[object]:
    """Something happened in a folder, or it is time to look again. Folders: that is where a file is replaced."""
    happened: Iterator[object] = _library().watch(
        *folders,
        watch_filter=None,
        debounce=1_000,
        step=200,
        stop_event=ended,
        rust_timeout=LOOK_AGAIN_MS,
        yield_on_timeout=True,
        raise_interrupt=False,
        recursive=False,
    )
    return happened


def _library() -> Any:
    try:
        import watchfiles  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigurationError(
            'settings.watch() needs watchfiles, which is not installed; pip install "bulkhead-toolkit[watch]"'
        ) from error
    return watchfiles


def _after_fork() -> None:
    for one in tuple(_watching):
        one.again()


os.register_at_fork(after_in_child=_after_fork)

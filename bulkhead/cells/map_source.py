"""The one map that is in force while a process runs, and the look for a newer one, by whatever `fetch` asks.

Invariant: `current` is one immutable map that passed every check; it is replaced by one store, under the lock, and only
by a map with a higher stamp, however late a look-up ends. Whatever goes wrong with a source is logged, once until it
changes, and the map stays. No I/O happens under the lock.

Who looks at a time, and how often, is look_ups.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from bulkhead.cells.arguments import check, seconds_fault
from bulkhead.cells.errors import MapUnavailableError
from bulkhead.cells.look_ups import LookUps
from bulkhead.cells.map_files import parse, write_if_newer
from bulkhead.cells.maps import CellMap
from bulkhead.errors import ConfigurationError
from bulkhead.log_lines import say, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.cells.maps import MapVersion

log = logging.getLogger("bulkhead")

JITTER = 0.2  # of the interval, so that a fleet does not ask at the same moment


class MapSource:
    """A source by what it asks: `fetch()` gives the map that is there now, or None for one that it gave before.

    `fetch` raises ConfigurationError for a map that is no good, and MapUnavailableError where nobody answers; it is
    called from several threads. Callers of `refresh` wait for it at most `patience` seconds; after three times as long
    it is taken for lost. `keep`: a file for the last good map (written by us; None = none), which serves where the
    source does not, also at start-up. `minimum_interval`: seconds from a fruitless look-up of `refresh` to the next
    one, doubled by each up to 30.

    MapUnavailableError or ConfigurationError at construction: there is no map to begin with.
    """

    current: CellMap
    """The map in force. Take it once for each decision: it may be another one at any time."""

    def __init__(
        self,
        fetch: Callable[[], CellMap | None],
        label: str,
        keep: str | os.PathLike[str] | None = None,
        *,
        minimum_interval: float = 2.0,
        patience: float = 10.0,
    ) -> None:
        if not callable(fetch):
            raise ConfigurationError(f"fetch must be a function that gives a CellMap, not {type(fetch).__name__}")
        check("minimum_interval", seconds_fault(minimum_interval))
        check("patience", seconds_fault(patience, above=True))
        self.label = label
        self._ask, self._keep = fetch, None if keep is None else Path(keep).absolute()
        self._patience = patience
        self._look_ups = LookUps(self._look, minimum_interval, 3 * patience)
        self._said = ""
        self._interval: float | None = None
        self._fresh()
        self._begin()
        _sources.add(self)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def refreshes(self) -> int:
        """Look-ups that `refresh` began."""
        return self._look_ups.begun

    def _fetch(self) -> CellMap | None:
        """What the source has; ConfigurationError if that is anything else than a map."""
        fetched: object = self._ask()
        if fetched is None or isinstance(fetched, CellMap):
            return fetched
        raise ConfigurationError(f"{self.label}: fetch must give a CellMap or None, not {type(fetched).__name__}")

    def _begin(self) -> None:
        """The map to begin with: the source's or the kept one, whichever is higher."""
        kept = self._kept()
        try:
            fetched = self._fetch()
        except Exception as error:
            if kept is None:
                raise
            self.current = kept  # whatever is wrong with the source, also where `fetch` does not say it as it should
            self._complain(error)
            return
        first = kept or fetched
        if first is None:
            raise MapUnavailableError(f"{self.label}: there is no map")
        self.current = first
        if fetched is not None and kept is not None:
            try:
                self._accept(fetched)
            except ConfigurationError as error:
                self._complain(error)
        elif kept is None:
            self._save()

    # ---- looking for a newer one

    def refresh(self, not_older_than: MapVersion | None = None) -> CellMap:
        """The map in force, after a look for a newer one, unless that is not older than `not_older_than` already.

        Never raises because of the source. All who ask at a time share one look-up. While the source has nothing new,
        look-ups are `minimum_interval` and more apart, and whoever asks in between gets the map that is there.
        """
        for _ in range(2):  # a look-up that was under way may have begun before that map was published
            if self._satisfies(not_older_than) or (flight := self._look_ups.join()) is None:
                break
            try:
                flight.result(self._patience)
            except TimeoutError:
                break
            if not_older_than is None:
                break
        return self.current

    async def arefresh(self, not_older_than: MapVersion | None = None) -> CellMap:
        """`refresh` for asyncio: the loop goes on meanwhile."""
        for _ in range(2):
            if self._satisfies(not_older_than) or (flight := self._look_ups.join()) is None:
                break
            try:
                await asyncio.wait_for(asyncio.wrap_future(flight), self._patience)
            except TimeoutError:
                break
            if not_older_than is None:
                break
        return self.current

    def reload(self) -> CellMap:
        """Look for a newer map now, in this thread, whatever was before; the map in force.

        ConfigurationError: what is there is no good, or older than what is in force (which stays).
        MapUnavailableError: the source cannot be reached.
        """
        fetched = self._fetch()
        if fetched is not None:
            self._accept(fetched)
        return self.current

    def _satisfies(self, not_older_than: MapVersion | None) -> bool:
        return not_older_than is not None and self.current.stamp >= not_older_than

    def _look(self) -> bool:
        """Whether there was a newer map. What is wrong is in the log; there is nobody else to tell."""
        before = self.current
        try:
            now = self.reload()
        except (ConfigurationError, MapUnavailableError) as error:
            self._complain(error)
            return False
        except Exception:
            log.exception("[BULKHEAD] cell_map_refresh_raised: %s", self.label)
            return False
        self._said = ""
        return now is not before

    def _accept(self, new: CellMap) -> None:
        """Let a higher map be in force; the same one is fine; ConfigurationError for any other."""
        with self._lock:
            before = self.current
            accepted = new.stamp > before.stamp
            if accepted:
                self.current = new
        if accepted:
            self._save()
            say("cell_map_accepted", level=logging.INFO, source=self.label, version=str(new.stamp))
        elif new.stamp < before.stamp:
            raise ConfigurationError(f"{self.label}: map {new.stamp} is older than {before.stamp}, which is in force")
        elif new != before:
            raise ConfigurationError(
                f"{self.label}: map {new.stamp} is not the one of this version that is in force; raise the version"
            )

    def _complain(self, error: Exception) -> None:
        """One line, until something else is wrong or all is well again."""
        ours = isinstance(error, (ConfigurationError, MapUnavailableError))
        text = without_secrets(str(error).replace("\n", ";")) if ours else f"{self.label}: {type(error).__name__}"
        if text == self._said:
            return
        self._said = text
        event = "cell_map_refused" if isinstance(error, ConfigurationError) else "cell_map_unreachable"
        say(event, text, logging.ERROR, source=self.label, in_force=str(self.current.stamp))

    # ---- the copy on disk

    def _kept(self) -> CellMap | None:
        if self._keep is None:
            return None
        try:
            return parse(self._keep.read_bytes(), str(self._keep))
        except FileNotFoundError:
            return None
        except (ConfigurationError, OSError) as error:
            say("cell_map_copy_unreadable", without_secrets(str(error).replace("\n", ";")), file=str(self._keep))
            return None

    def _save(self) -> None:
        if self._keep is None:
            return
        try:
            write_if_newer(self._keep, self.current)
        except OSError as error:
            text = error.strerror or type(error).__name__
            say("cell_map_not_kept", text, logging.ERROR, file=str(self._keep))

    # ---- looking again and again

    def start(self, interval: float = 30.0) -> Self:
        """Look every `interval` seconds (0.05 or more; each time up to a fifth more or less), in a daemon thread.

        Idempotent; forked children have such a thread, too. `stop` ends it, as does the end of a `with` block.
        """
        check("interval", seconds_fault(interval, 0.05))
        self._interval = interval
        if self._thread is None or not self._thread.is_alive():
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._watch, args=(self._ended,), name="bulkhead-cells", daemon=True)
            self._thread.start()
        return self

    def stop(self, seconds: float = 5.0) -> None:
        """End the thread, waiting at most this many seconds for it. Idempotent; the map goes on to serve."""
        self._interval = None
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def _watch(self, ended: threading.Event) -> None:
        while (interval := self._interval) is not None:
            if ended.wait(interval * random.uniform(1 - JITTER, 1 + JITTER)):  # noqa: S311  no secret
                return
            self._look()

    def again(self) -> None:
        """In a forked child: no lock is taken, and no other thread is there."""
        self._fresh()
        self._look_ups.again()
        if self._interval is not None:
            self.start(self._interval)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}, map {self.current.stamp}>"


_sources: WeakSet[MapSource] = WeakSet()


def _after_fork() -> None:
    for one in tuple(_sources):
        one.again()


os.register_at_fork(after_in_child=_after_fork)

"""The settings of this process: read when first asked for, replaced as a whole, followed by whoever wants to.

Invariant: `now` is one immutable object that passed every check, so reading it needs no lock. Readings of the file are
serialised by `turn`; nothing of a user or of another part runs under it. Those who follow are told afterwards, in the
order of the reloads, by one thread at a time: a second one that reloads meanwhile leaves its news to the first. News
stay in line until they are followed, so what an exception cuts short is done again by the next reload; a fork waits for
them a moment, because a child does not have that thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from time import monotonic, sleep
from typing import TYPE_CHECKING
from weakref import WeakMethod

from bulkhead.log_lines import say
from bulkhead.settings import checking, following
from bulkhead.settings.effective import Settings, brief
from bulkhead.settings.sections import RESOURCES
from bulkhead.settings.sources import Place, stamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import MethodType

    from bulkhead.settings.checking import Checked
    from bulkhead.settings.following import Plan
    from bulkhead.settings.sources import Fault

    Follower = Callable[[Settings], object]

log = logging.getLogger("bulkhead")

PATIENCE = 1.0  # seconds that a fork waits for those who follow


class Following:
    """What `on_change` returns. `cancel()`: the function is not called any more."""

    __slots__ = ("_function", "_weak")

    def __init__(self, function: Follower) -> None:
        self._function: Follower | None = function
        self._weak: WeakMethod[MethodType] | None = None
        if hasattr(function, "__self__") and hasattr(function, "__func__"):
            self._function, self._weak = None, WeakMethod(function)  # type: ignore[arg-type]

    def function(self) -> Follower | None:
        """What to call; None = it is cancelled, or its object is gone."""
        weak = self._weak  # `cancel` may come at any time
        return self._function if weak is None else weak()

    def cancel(self) -> None:
        """Stop following. Idempotent."""
        self._function = self._weak = None


class Live:
    """The settings of this process, and those who follow them."""

    def __init__(self) -> None:
        self.now: Settings | None = None
        self.place: Place | None = None
        self.seen: tuple[object, ...] = ()
        """The stamp of the files when they were last read, well or not."""
        self.followers: tuple[Following, ...] = ()
        self._news: deque[tuple[Plan, Settings | None]] = deque()
        self._fresh()

    def _fresh(self) -> None:
        self._turn, self._lock = threading.RLock(), threading.Lock()
        self._teller: int | None = None  # the thread that tells

    def renew(self, place: Place | None, *, first: bool = False) -> Settings:
        """Read the settings of this place anew, all of them (None: of the same place, less what needs a restart).

        `first`: only if nobody has read them yet.
        """
        with self._turn:
            before = self.now
            if first and before is not None:
                return before
            where = place or self.place or Place.of(None)
            checked, plan = self._read(where, restarted=place is not None)
            faults = checked.faults or plan.faults
            if not faults:
                self.now, self.place = plan.settings, where
                self._news.append((plan, before))
        if faults:
            _say_refused(checked.label, faults, "nothing" if before is None else "the settings from before")
            raise checking.refusal(faults)
        _say(plan, before)
        self._tell()
        return plan.settings

    def begin(self) -> Settings:
        """The settings, read if they were not yet."""
        return self.renew(None, first=True) if self.now is None else self.now

    def _read(self, where: Place, *, restarted: bool) -> tuple[Checked, Plan]:
        self.seen = stamp(where)  # before reading: what is written meanwhile is another change
        checked = checking.read(where)
        return checked, following.plan(checked.settings, self.now, restarted=restarted)

    # ---- those who follow

    def on_change(self, function: Follower) -> Following:
        """Tell this function of changes."""
        one = Following(function)
        with self._lock:
            self.followers = (*filter(_alive, self.followers), one)
        return one

    def _tell(self) -> None:
        with self._lock:
            if self._teller is not None:
                return
            self._teller = threading.get_ident()
        try:
            while (news := self._next()) is not None:
                plan, before = news
                following.apply(plan)
                try:
                    if before != plan.settings:
                        self._tell_all(plan.settings)
                finally:
                    self._news.popleft()
        except BaseException:
            with self._lock:
                self._teller = None
            raise

    def _next(self) -> tuple[Plan, Settings | None] | None:
        with self._lock:
            if self._news:
                return self._news[0]
            self._teller = None
            return None

    def _tell_all(self, settings: Settings) -> None:
        for one in self.followers:
            function = one.function()
            if function is None:
                continue
            try:
                function(settings)
            except Exception:
                log.exception("[BULKHEAD] settings_follower_raised: %r was told of a change", function)

    # ---- around a fork

    def before_fork(self) -> None:
        """Wait a moment for a thread that is telling. Without a lock: a signal handler may fork."""
        until = monotonic() + PATIENCE
        while self._news and self._teller not in (None, threading.get_ident()) and monotonic() < until:
            sleep(0.01)

    def after_fork(self) -> None:
        """In the child: no lock is taken and nobody is telling. What is in line still is followed at a reload."""
        self._fresh()


live = Live()
os.register_at_fork(before=live.before_fork, after_in_child=live.after_fork)


def _alive(one: Following) -> bool:
    return one.function() is not None


def _say(plan: Plan, before: Settings | None) -> None:
    """One line of what changed, and one for each setting that waits for a restart."""
    file = plan.settings.file
    if before is None:
        say("settings_read", level=logging.INFO, file=file)
    else:
        say("settings_reloaded", changes(before, plan.settings), logging.INFO, file=file)
    for one in plan.pending:
        say("settings_need_restart", one.says, setting=one.key, file=file)


def _say_refused(file: str | None, faults: list[Fault], holds: str) -> None:
    say("settings_refused", "; ".join(map(str, faults)), logging.ERROR, file=file, faults=len(faults), in_force=holds)


def changes(before: Settings, after: Settings) -> str:
    """What is different, in words, without secrets."""
    old, new, rows = before.values(), after.values(), before.rows() | after.rows()
    told = [f"{RESOURCES}.{name} is new" for name in after.resources if name not in before.resources]
    told += [
        f"{key}: {brief(old[key], rows[key])} -> {brief(new[key], rows[key])}"
        for key in old.keys() & new.keys()
        if old[key] != new[key]
    ]
    return "; ".join(sorted(told)) or "nothing changed"

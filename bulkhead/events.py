"""What happened, as tuples, to whoever subscribed.

Without a subscriber nothing is built and the hot path is not even looked at. Events are delivered after the fact, in
the thread that caused them, outside every lock; a subscriber that raises is logged and the call goes on; it may call
the resource again: of the calls that it makes itself it is told nothing (there would be no end), of the circuits that
change by them it is.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple, Self
from weakref import ref

from bulkhead.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from bulkhead.errors import Rejected

__all__ = [
    "Busy",
    "Bypassed",
    "CircuitOpen",
    "Event",
    "Failure",
    "Ignored",
    "LruGc",
    "StateChange",
    "Subscription",
    "Success",
    "WouldReject",
]

log = logging.getLogger("bulkhead")


class Success(NamedTuple):
    """A call ended and the resource answered. `wait`: seconds waited for tickets; `duration`: seconds after that."""

    identifier: str
    tenant: str | None
    driver: str
    scope: str
    wait: float
    duration: float


class Failure(NamedTuple):
    """A call ended and counted as a failure. `error` is the driver's."""

    identifier: str
    tenant: str | None
    driver: str
    scope: str
    wait: float
    duration: float
    error: BaseException


class Ignored(NamedTuple):
    """A call ended without saying anything about the resource."""

    identifier: str
    tenant: str | None
    driver: str
    scope: str
    wait: float
    duration: float
    error: BaseException | None


class Busy(NamedTuple):
    """A call was refused: no ticket. `limit` as in ResourceBusyError."""

    identifier: str
    tenant: str | None
    driver: str
    scope: str
    limit: str


class CircuitOpen(NamedTuple):
    """A call was refused: the circuit is open, or half-open without a free probe. `retry_after` in seconds."""

    identifier: str
    tenant: str | None
    driver: str
    scope: str
    retry_after: float | None


class WouldReject(NamedTuple):
    """Mode "shadow": the call ran, though "enforce" would have refused it with `error`."""

    identifier: str
    tenant: str | None
    driver: str
    scope: str
    error: Rejected


class StateChange(NamedTuple):
    """A circuit changed. `tenant` is set for a tenant's own circuit; driver and scope name the call that caused it."""

    identifier: str
    tenant: str | None
    driver: str
    scope: str
    old: str
    new: str
    reason: str


class Bypassed(NamedTuple):
    """Somebody entered `bypass(identifier)`."""

    identifier: str
    tenant: str | None
    driver: str
    scope: str


class LruGc(NamedTuple):
    """The registry looked for idle resources. `elapsed` in seconds."""

    identifier: str | None
    tenant: str | None
    driver: str
    scope: str
    size: int
    examined: int
    cleared: int
    elapsed: float


Event = Success | Failure | Ignored | Busy | CircuitOpen | WouldReject | StateChange | Bypassed | LruGc
KINDS: tuple[type[Event], ...] = (
    Success,
    Failure,
    Ignored,
    Busy,
    CircuitOpen,
    WouldReject,
    StateChange,
    Bypassed,
    LruGc,
)
ENDINGS = frozenset({Success, Failure, Ignored})


class _Delivery:
    """One event being delivered. Known weakly: one that an exception cut short is not under way for ever."""

    __slots__ = ("__weakref__",)


class Subscription:
    """The handle of a subscription: `cancel()` it, or use it in `with`. Cancelling twice is harmless."""

    __slots__ = ("_function", "_kinds", "_under_way")

    def __init__(self, function: Callable[[Event], object], kinds: frozenset[type[Event]]) -> None:
        self._function, self._kinds = function, kinds
        self._under_way: dict[int, ref[_Delivery]] = {}  # by thread

    def cancel(self) -> None:
        """Deliver nothing more."""
        with _lock:
            kept = tuple(one for one in _state.subscriptions if one is not self)
            _state.replace(kept)
        _state.changed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def deliver(self, event: Event) -> None:
        """Call the subscriber if it asked for this kind."""
        kind = type(event)
        if kind not in self._kinds:
            return
        thread = threading.get_ident()
        outer = self._under_way.get(thread)
        if outer is not None and outer() is None:
            outer = None
        if outer is not None and kind is not StateChange:
            return  # its own doing
        delivery = _Delivery()
        self._under_way[thread] = ref(delivery)
        try:
            self._function(event)
        except Exception:
            log.exception("[BULKHEAD] a subscriber of %s raised", kind.__name__)
        finally:
            if outer is None:
                self._under_way.pop(thread, None)
            else:
                self._under_way[thread] = outer

    def fresh(self) -> None:
        """A forked child: threads that were told something are gone, and others may get their numbers."""
        self._under_way = {}

    def wants(self, kinds: frozenset[type[Event]]) -> bool:
        """Did it ask for any of these?"""
        return not self._kinds.isdisjoint(kinds)

    def __repr__(self) -> str:
        names = ", ".join(sorted(kind.__name__ for kind in self._kinds))
        return f"<Subscription of {self._function!r} to {names}>"


class _State:
    """All subscriptions, replaced as a whole; `endings`: does anybody want to know how calls end?"""

    def __init__(self) -> None:
        self.subscriptions: tuple[Subscription, ...] = ()
        self.endings = False
        self.next_call: Callable[[], object] | None = None
        self.listeners: list[Callable[[], object]] = []

    def replace(self, subscriptions: tuple[Subscription, ...]) -> None:
        self.endings = any(one.wants(ENDINGS) for one in subscriptions)
        self.subscriptions = subscriptions

    def changed(self) -> None:
        for listener in self.listeners:
            listener()


_state = _State()
_lock = threading.Lock()


def subscribe(function: Callable[[Event], object], *kinds: type[Event]) -> Subscription:
    """Call `function(event)` for each event of these kinds (none named: all kinds).

    It may make guarded calls; it is not told of those, except for what they do to circuits (StateChange).

    Raises ConfigurationError for something that is no event class or cannot be called.
    """
    if not callable(function):
        raise ConfigurationError(f"subscribe() takes a function first, not {function!r}")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise ConfigurationError(f"{unknown[0]!r} is no event class of bulkhead.events; there are: {known}")
    subscription = Subscription(function, frozenset(kinds or KINDS))
    with _lock:
        _state.replace((*_state.subscriptions, subscription))
    _state.changed()
    return subscription


def on_change(listener: Callable[[], object]) -> None:
    """Call `listener()` whenever the set of subscriptions changed (the registry opens new fast tables then)."""
    _state.listeners.append(listener)


def at_next_call(function: Callable[[], object]) -> None:
    """Call `function()` in the thread of the next guarded call, before that is admitted.

    For the core: what a process needs only if it makes guarded calls begins there. Two threads may call it at once.
    """
    _state.next_call = function
    _state.changed()


def next_call() -> None:
    """A guarded call begins, on the slow path: as long as somebody waits for it, all calls take that."""
    function = _state.next_call
    if function is None:
        return
    _state.next_call = None
    _state.changed()
    try:
        function()
    except Exception:
        log.exception("[BULKHEAD] what was to begin with the first guarded call could not begin")


def anybody() -> bool:
    """Is there any subscriber, or somebody who waits for the next call?"""
    return bool(_state.subscriptions) or _state.next_call is not None


def endings_wanted() -> bool:
    """Does anybody want to know how calls end? Then calls take the slow path."""
    return _state.endings


def tell(event: Event) -> None:
    """Deliver an event to all who asked for its kind."""
    if _state.next_call is not None and type(event) is not LruGc:  # not all that is counted passes a resource
        next_call()
    for subscription in _state.subscriptions:
        subscription.deliver(event)


def fresh_in_child() -> None:
    """A forked child: subscribers stay, the lock does not."""
    global _lock  # noqa: PLW0603  the one place that may replace it
    _lock = threading.Lock()
    for subscription in _state.subscriptions:
        subscription.fresh()

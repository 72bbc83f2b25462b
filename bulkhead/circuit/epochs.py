"""Epochs: one object for each stay in one state.

A call reports to the epoch that admitted it. An epoch that is over is nobody's current epoch any more, so late answers
need no flag and change nothing.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from weakref import ref

    from bulkhead.causes import Cause
    from bulkhead.circuit.rules import Rule


class Closed:
    """Calls pass; failures go to the rule."""

    state: ClassVar[str] = "closed"
    until: ClassVar[float | None] = None
    plain: ClassVar[None] = None
    __slots__ = ("rule", "since")

    def __init__(self, now: float, rule: Rule) -> None:
        self.since, self.rule = now, rule


class Open:
    """Calls are refused until `until`, which is fixed when the circuit opens; inf after `open()` by hand."""

    state: ClassVar[str] = "open"
    __slots__ = ("avoid", "cause", "others_asked", "plain", "reason", "since", "until")

    def __init__(self, now: float, seconds: float, cause: Cause | None, reason: str, avoid: str | None = None) -> None:
        self.since, self.until, self.cause, self.reason = now, now + seconds, cause, reason
        # The tenant whose probe failed: it does not get the next one while another tenant asks for it.
        self.avoid = avoid
        self.others_asked = False
        # A fresh copy of the cause, where a refusal has to look at nothing but the time: the circuit was opened by a
        # failure, and it does not matter who asks meanwhile. Else None.
        self.plain = None if cause is None or avoid is not None else cause.fresh


class Place(NamedTuple):
    """A probe's place: who has it, known weakly, and until when it is believed."""

    call: ref[object]
    expires: float
    tenant: str | None


class HalfOpen:
    """A few probes pass. A probe is a lease: one that has not ended when it expires counts as failed at that moment."""

    state: ClassVar[str] = "half_open"
    until: ClassVar[float | None] = None
    plain: ClassVar[None] = None
    __slots__ = ("avoid", "avoid_until", "cause", "ignored", "places", "reason", "since", "successes")

    def __init__(self, now: float, opened: Open) -> None:
        self.since, self.cause, self.reason = now, opened.cause, opened.reason
        self.places: list[Place] = []
        self.successes = 0
        self.ignored = 0  # probes that ended without a verdict
        # Bounded: if the others stay away, the avoided tenant gets its turn after one more open period.
        self.avoid = opened.avoid if opened.others_asked else None
        self.avoid_until = opened.until + (opened.until - opened.since)

    def free(self, most: int) -> bool:
        """Forget the places of probes that are gone without a verdict; is there room for one more?"""
        self.places = [place for place in self.places if place.call() is not None]
        return len(self.places) < most

    def expired(self, now: float) -> Place | None:
        """The first place whose probe is still out and over its time."""
        late = [place for place in self.places if place.expires <= now and place.call() is not None]
        return min(late, key=lambda place: place.expires) if late else None

    def leave(self, call: object) -> bool:
        """Give a probe's place back; False if it has none here."""
        for place in self.places:
            if place.call() is call:
                self.places.remove(place)
                return True
        return False

    def retry_after(self, now: float) -> float:
        """Seconds until the next place can be free for certain; 0.0 if one may be free at any moment."""
        return max(0.0, min((place.expires for place in self.places), default=now) - now)


Epoch = Closed | Open | HalfOpen
FOREVER = inf

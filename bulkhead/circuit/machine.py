"""The circuit: its epoch, its back-off step, and every transition.

closed -> open        the rule says so, or `open()` by hand
open -> half_open     the first call after the open period
half_open -> open     one failed probe, or one that outlives its lease
half_open -> closed   success_threshold successes
any -> closed         `close()`, `reset()`

Methods that may change the state return the changes, oldest first; the owner announces them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from bulkhead.circuit.epochs import FOREVER, Closed, Epoch, HalfOpen, Open, Place
from bulkhead.circuit.rules import Rule, Run, Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.causes import Cause
    from bulkhead.option_set import Options


class Change(NamedTuple):
    """A transition that happened."""

    old: str
    new: str
    reason: str
    cause: Cause | None


class Circuit:
    """One circuit of one resource, or of one of its tenants. `tenant` is None for the shared one.

    `switch` is the owner's store: it makes an epoch current, after it made everything that belongs to the old one
    unreachable for new calls. It is the last thing that a transition does, so an interrupted one did not happen.
    """

    __slots__ = ("__weakref__", "_switch", "epoch", "openings", "options", "tenant")

    def __init__(
        self, options: Options, now: float, switch: Callable[[Circuit, Epoch], None], tenant: str | None = None
    ) -> None:
        self.options, self.tenant, self._switch = options, tenant, switch
        self.openings = 0
        self.epoch: Epoch = Closed(now, self._rule())

    def _rule(self) -> Rule:
        o = self.options
        # A tenant's own circuit sees one tenant only.
        tenants = o.error_tenants if self.tenant is None else 1
        if not o.error_threshold_timeout_enabled:
            return Run(o.error_threshold, o.lumping_interval)
        return Window(o.error_threshold, o.window, o.lumping_interval, tenants)

    @property
    def state(self) -> str:
        """The state by name: "closed", "open" or "half_open"."""
        return self.epoch.state

    def ask(self, now: float) -> tuple[float | None, tuple[Change, ...]]:
        """May a call come in? None, or the seconds until the next probe. Ends an open period whose time is over."""
        changes: tuple[Change, ...] = ()
        while True:
            epoch = self.epoch
            if isinstance(epoch, Closed):
                return None, changes
            if isinstance(epoch, Open):
                if now < epoch.until:
                    return epoch.until - now, changes
                changes += self._become(HalfOpen(now, epoch), "its time is over", epoch.cause)
            elif (late := epoch.expired(now)) is not None:
                changes += self._reopen(epoch, late.expires, "a probe did not end in time", epoch.cause, late.tenant)
            else:
                return None, changes

    def probe(self, call: object, now: float, tenant: str | None) -> float | None:
        """A place among the probes for `call`, or the seconds until there may be one. Only while half-open."""
        epoch, o = self.epoch, self.options
        if not isinstance(epoch, HalfOpen):
            return 0.0
        if tenant is not None and tenant == epoch.avoid and now < epoch.avoid_until:
            return epoch.avoid_until - now
        if not epoch.free(o.half_open_max_probes):
            return epoch.retry_after(now)
        seconds = o.error_timeout if o.half_open_resource_timeout is None else o.half_open_resource_timeout
        if o.call_timeout is not None:  # longer than that is a failure of any call
            seconds = min(seconds, o.call_timeout)
        epoch.places.append(Place(ref(call), now + seconds, tenant))
        epoch.avoid = None
        return None

    def asked_while_open(self, tenant: str | None) -> None:
        """A call was refused; remember that somebody else than the tenant to avoid wants the next probe."""
        epoch = self.epoch
        if isinstance(epoch, Open) and epoch.avoid is not None and tenant != epoch.avoid:
            epoch.others_asked = True

    def wants_to_open(self, epoch: Epoch, now: float, tenant: str | None, *, anonymous: bool) -> bool:
        """Note a failure of a call that `epoch` admitted while closed. True: call `trip` with its cause."""
        return (
            epoch is self.epoch and isinstance(epoch, Closed) and epoch.rule.failure(now, tenant, anonymous=anonymous)
        )

    def trip(self, epoch: Epoch, now: float, cause: Cause | None, reason: str) -> tuple[Change, ...]:
        """Open, if `epoch` is still the current one."""
        return self._open(now, cause, reason) if epoch is self.epoch else ()

    def probe_failed(
        self, epoch: Epoch, call: object, now: float, cause: Cause | None, tenant: str | None
    ) -> tuple[Change, ...]:
        """A probe failed: open again, unless its lease was over (then that was said already)."""
        if epoch is not self.epoch or not isinstance(epoch, HalfOpen):
            return ()
        if (late := epoch.expired(now)) is not None:
            return self._reopen(epoch, late.expires, "a probe did not end in time", epoch.cause, late.tenant)
        if not epoch.leave(call):
            return ()
        return self._reopen(epoch, now, "a probe failed", cause, tenant)

    def probe_succeeded(self, epoch: Epoch, call: object, now: float) -> tuple[Change, ...]:
        """A probe succeeded in time: one of the success_threshold that close the circuit."""
        if epoch is not self.epoch or not isinstance(epoch, HalfOpen):
            return ()
        if (late := epoch.expired(now)) is not None:
            return self._reopen(epoch, late.expires, "a probe did not end in time", epoch.cause, late.tenant)
        if not epoch.leave(call):
            return ()
        epoch.successes += 1
        if epoch.successes < self.options.success_threshold:
            return ()
        self.openings = 0
        return self._become(Closed(now, self._rule()), "the probes succeeded", None)

    def probe_ignored(self, epoch: Epoch, call: object, now: float) -> tuple[Change, ...]:
        """A probe ended without a verdict: its place is free again. Too late for that once its lease was over."""
        if epoch is not self.epoch or not isinstance(epoch, HalfOpen):
            return ()
        if (late := epoch.expired(now)) is not None:
            return self._reopen(epoch, late.expires, "a probe did not end in time", epoch.cause, late.tenant)
        epoch.ignored += epoch.leave(call)
        return ()

    def give_place_back(self, epoch: Epoch, call: object) -> None:
        """A probe that another circuit refused: as if it had never asked."""
        if isinstance(epoch, HalfOpen):
            epoch.leave(call)

    def background_failed(self, now: float, cause: Cause | None) -> tuple[Change, ...]:
        """A failure of work that holds no place, such as a pool's own connect, while half-open."""
        epoch = self.epoch
        return self._reopen(epoch, now, "a connect failed", cause, None) if isinstance(epoch, HalfOpen) else ()

    def open_by_hand(self, now: float, reason: str) -> tuple[Change, ...]:
        """Open until `close`."""
        return self._become(Open(now, FOREVER, None, reason), reason, None)

    def close(self, now: float, reason: str) -> tuple[Change, ...]:
        """Close, forget failures and the back-off step."""
        self.openings = 0
        return self._become(Closed(now, self._rule()), reason, None)

    def adopt(self, options: Options, now: float) -> None:
        """New options: a closed circuit counts anew by their rule; an open one keeps its time."""
        self.options = options
        if isinstance(self.epoch, Closed):
            self._switch(self, Closed(now, self._rule()))

    def says_something(self, now: float) -> bool:
        """Would forgetting this circuit forget something? Failures in the window, or an open period not over."""
        epoch = self.epoch
        if isinstance(epoch, Closed):
            return epoch.rule.noted(now) > 0
        return isinstance(epoch, Open) and now < epoch.until

    def _open(self, now: float, cause: Cause | None, reason: str, avoid: str | None = None) -> tuple[Change, ...]:
        changes = self._become(Open(now, self._period(), cause, reason, avoid), reason, cause)
        self.openings += 1
        return changes

    def _reopen(
        self, epoch: HalfOpen, at: float, reason: str, cause: Cause | None, tenant: str | None
    ) -> tuple[Change, ...]:
        avoid = tenant if self.options.error_tenants > 1 and self.tenant is None else None
        return self._open(at, cause or epoch.cause, reason, avoid)

    def _period(self) -> float:
        """Seconds of the next open period: error_timeout, or the back-off step up to it."""
        o = self.options
        if not o.exponential_backoff_error_timeout:
            return o.error_timeout
        try:
            step = o.exponential_backoff_initial_timeout * o.exponential_backoff_multiplier**self.openings
        except OverflowError:
            return o.error_timeout
        return min(step, o.error_timeout)

    def _become(self, new: Epoch, reason: str, cause: Cause | None) -> tuple[Change, ...]:
        old = self.epoch
        self._switch(self, new)
        return (Change(old.state, new.state, reason, cause),) if old.state != new.state or old.state == "open" else ()

"""Words for tests that tell a story about one circuit, as pure state: a time that is said, and what changed so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bulkhead.circuit.epochs import Closed, HalfOpen
from bulkhead.circuit.machine import Circuit
from bulkhead.option_set import Options

if TYPE_CHECKING:
    from bulkhead.circuit.epochs import Epoch
    from bulkhead.circuit.machine import Change


class Call:
    """Something that a place can know weakly."""


class Story:
    """One circuit, a time, and what changed so far."""

    def __init__(self, tenant: str | None = None, **options: Any) -> None:
        self.now = 0.0
        self.changes: list[tuple[str, str]] = []
        self.circuit = Circuit(Options(**options), self.now, self._switch, tenant)

    @staticmethod
    def _switch(owned: Circuit, epoch: Epoch) -> None:
        owned.epoch = epoch

    def note(self, changes: tuple[Change, ...]) -> bool:
        self.changes += [(change.old, change.new) for change in changes]
        return bool(changes)

    def at(self, now: float) -> Story:
        self.now = now
        return self

    def ask(self) -> float | None:
        left, changes = self.circuit.ask(self.now)
        self.note(changes)
        return left

    def fail(self, tenant: str | None = None) -> None:
        """A call that is asked for and fails; as a probe where the circuit is half-open."""
        assert self.ask() is None
        epoch, call = self.circuit.epoch, Call()
        if isinstance(epoch, HalfOpen):
            assert self.circuit.probe(call, self.now, tenant) is None
            self.note(self.circuit.probe_failed(epoch, call, self.now, None, tenant))
        elif self.circuit.wants_to_open(epoch, self.now, tenant, anonymous=False):
            self.note(self.circuit.trip(epoch, self.now, None, "enough failures"))

    def succeed(self) -> None:
        assert self.ask() is None
        epoch, call = self.circuit.epoch, Call()
        if isinstance(epoch, HalfOpen):
            assert self.circuit.probe(call, self.now, None) is None
            self.note(self.circuit.probe_succeeded(epoch, call, self.now))
        elif isinstance(epoch, Closed) and epoch.rule.success is not None:
            epoch.rule.success(self.now, None)

    @property
    def state(self) -> str:
        return self.circuit.state

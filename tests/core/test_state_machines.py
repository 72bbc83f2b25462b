"""Random stories against naive models: tickets, the circuit, the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule
from stories import Boom, Clock, at_rest, hold, resource

from bulkhead import CircuitOpenError, ResourceBusyError
from bulkhead.option_set import Options
from bulkhead.process_values import ProcessValues, process
from bulkhead.registry import Registry

if TYPE_CHECKING:
    from bulkhead.adapter import Session

pytestmark = pytest.mark.timeout(400)
TENANTS = st.sampled_from(["a", "b", "c", "d", None])


class TicketStory(RuleBasedStateMachine):
    """Known fault 23: what is in flight is what was taken and not given back, at every step."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.tickets, self.cap = 4, 2
        self.one = resource(
            error_threshold=1_000_000,
            error_timeout=10,
            success_threshold=1,
            tickets=self.tickets,
            tenant_tickets=self.cap,
            maximum_tenants=2,
        )
        self.held: dict[str | None, int] = {}

    @rule(target=calls, tenant=TENANTS)
    def begin(self, tenant: str | None) -> Any:
        mine, total = self.held.get(tenant, 0), sum(self.held.values())
        try:
            session = hold(self.one, tenant)
        except ResourceBusyError as busy:
            # With more tenants than entries some share one: they may be refused for each other.
            crowded = len([name for name, count in self.held.items() if count and name]) >= 2
            if busy.limit == "tenant":
                assert mine >= self.cap or crowded
            else:
                assert total >= self.tickets
            return multiple()
        self.held[tenant] = mine + 1
        assert total < self.tickets
        assert tenant is None or mine < self.cap
        return tenant, session

    @rule(call=consumes(calls), how=st.sampled_from(["end", "fail", "interrupt", "drop", "twice"]))
    def finish(self, call: tuple[str | None, Session], how: str) -> None:
        tenant, session = call
        if how == "end":
            session.end()
        elif how == "fail":
            session.fail(Boom())
        elif how == "interrupt":
            session.fail(KeyboardInterrupt())
        elif how == "twice":
            session.end()
            session.fail(Boom())
        else:
            session._permit.clear()
        self.held[tenant] -= 1

    @rule(tickets=st.integers(1, 6), cap=st.integers(1, 3))
    def resize(self, tickets: int, cap: int) -> None:
        self.one.update(tickets=tickets, tenant_tickets=cap)
        self.tickets, self.cap = tickets, cap

    @invariant()
    def what_is_out_is_known(self) -> None:
        assert self.one.in_use == sum(self.held.values())
        for pool in self.one.tenants.table.values():
            assert pool.in_use <= self.held.get(pool.tenant, 0)

    def teardown(self) -> None:
        self.one.update(tickets=10)
        if not any(self.held.values()):
            at_rest(self.one, collect=False)


class CircuitStory(RuleBasedStateMachine):
    """One caller at a time, against the text of the rules."""

    probes = Bundle("probes")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(0)
        self.threshold, self.timeout, self.successes, self.most = 3, 10.0, 2, 2
        self.one = resource(
            self.clock,
            error_threshold=self.threshold,
            error_timeout=self.timeout,
            success_threshold=self.successes,
            half_open_max_probes=self.most,
        )
        self.state, self.since, self.won, self.epoch = "closed", 0.0, 0, 0
        self.failures: list[float] = []
        self.out: list[float] = []  # when the leases of the probes in flight end

    def expire(self) -> None:
        """What asking does before it answers."""
        while True:
            if self.state == "open" and self.clock.now >= self.since + self.timeout:
                self.enter("half_open", self.clock.now)
            elif self.state == "half_open" and self.out and min(self.out) <= self.clock.now:
                self.enter("open", min(self.out))
            else:
                return

    def enter(self, state: str, at: float) -> None:
        self.state, self.since, self.won, self.out, self.failures = state, at, 0, [], []
        self.epoch += 1

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 4.0, 9.9, 10.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(target=probes)
    def begin(self) -> Any:
        try:
            session = hold(self.one)
        except CircuitOpenError as error:
            left = error.retry_after
            self.expire()
            assert self.state == "open" or (self.state == "half_open" and len(self.out) >= self.most)
            until = self.since + self.timeout if self.state == "open" else min(self.out)
            assert left == pytest.approx(until - self.clock.now)
            return multiple()
        self.expire()
        assert self.state != "open"
        lease = None
        if self.state == "half_open":
            assert len(self.out) < self.most
            lease = self.clock.now + self.timeout
            self.out.append(lease)
        return self.epoch, lease, session

    @rule(call=consumes(probes), how=st.sampled_from(["good", "bad", "silent"]))
    def finish(self, call: tuple[int, float | None, Session], how: str) -> None:
        epoch, lease, session = call
        now = self.clock.now
        if how == "good":
            session.end()
        else:
            session.fail(Boom() if how == "bad" else KeyboardInterrupt())
        if epoch != self.epoch:
            return
        if lease is not None and min(self.out) <= now:
            self.enter("open", min(self.out))
        elif lease is not None:
            self.out.remove(lease)
            if how == "bad":
                self.enter("open", now)
            elif how == "good":
                self.won += 1
                if self.won == self.successes:
                    self.enter("closed", now)
        elif how == "bad":
            self.failures = [at for at in self.failures if now - at <= self.timeout] + [now]
            if len(self.failures) >= self.threshold:
                self.enter("open", now)

    @rule()
    def open_and_close_by_hand(self) -> None:
        self.one.open()
        self.one.close()
        self.enter("closed", self.clock.now)
        self.epoch += 1

    @invariant()
    def states_agree(self) -> None:
        assert self.one.state == self.state


class RegistryStory(RuleBasedStateMachine):
    """An identifier never has two resources while one is in use, and the bound holds."""

    calls = Bundle("calls")
    names = st.integers(0, 3)

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.before = process.values
        process.values = ProcessValues(maximum_lru_size=2, minimum_lru_time=5.0, maximum_resources=6)
        self.clock = Clock()
        self.own = Registry(self.clock)
        self.options = Options(tickets=2, circuit_breaker=False)
        self.held: dict[str, int] = {}

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def name(self, back: int) -> str:
        """A name in use, or (0) one that never was."""
        used = [name for name, count in self.held.items() if count]
        if back and used:
            return used[-back % len(used)]
        self.made += 1
        return f"call:{self.made}"

    @rule(target=calls, back=names)
    def begin(self, back: int) -> Any:
        name = self.name(back)
        one = self.own.get(name, self.options)
        if one.identifier != name:
            assert len([held for held in self.held.values() if held]) >= 6, "shared although something was idle"
            return multiple()
        try:
            session = hold(one)
        except ResourceBusyError:
            assert self.held.get(name, 0) == 2
            return multiple()
        self.held[name] = self.held.get(name, 0) + 1
        assert self.held[name] <= 2
        return name, session

    @rule(call=consumes(calls))
    def finish(self, call: tuple[str, Session]) -> None:
        name, session = call
        session.end()
        self.held[name] -= 1

    @precondition(lambda self: not any(self.held.values()))
    @rule()
    def unregister(self) -> None:
        for name in self.own.resources():
            assert self.own.unregister(name)
            assert self.own.find(name) is None

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.own._hand) <= 6
        assert len(self.own.table) <= 7

    @invariant()
    def what_is_in_use_is_never_forgotten(self) -> None:
        for name, count in self.held.items():
            if count:
                one = self.own.find(name)
                assert one is not None
                assert one.in_use == count

    def teardown(self) -> None:
        process.values = self.before


TestTickets = TicketStory.TestCase
TestCircuit = CircuitStory.TestCase
TestRegistry = RegistryStory.TestCase

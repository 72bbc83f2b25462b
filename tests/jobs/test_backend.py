"""The memory backend by itself, with a manual clock: when jobs become due, what is refused, what is found again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

import bulkhead
from bulkhead.jobs import BacklogFull, job
from bulkhead.jobs.arguments import as_json
from bulkhead.jobs.dead import Dead
from bulkhead.jobs.memory import EVERYBODY
from bulkhead.jobs.records import Entry, JobRecord
from bulkhead.jobs.retries import LONGEST, pause
from bulkhead.settings import Jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobs.conftest import Clock, Desk


def test_the_pause_before_an_attempt_is_uniform_up_to_a_bound_that_doubles_up_to_an_hour() -> None:
    assert [pause(attempt, 1.0) for attempt in (1, 2, 3, 4)] == [0.25, 0.5, 1.0, 2.0]
    assert pause(14, 1.0) == 2048.0
    assert pause(15, 1.0) == pause(1_000_000, 1.0) == LONGEST == 3600.0
    assert pause(7, 0.0) == 0.0
    assert pause(3, 0.5) == 0.5


def test_a_delayed_job_becomes_due_by_the_clock_and_not_before(desk: Callable[..., Desk], clock: Clock) -> None:
    one = desk()
    seat = one.seat()
    one.put(delay=10)
    one.put(delay=5, tenant="other")
    assert one.alarms == 2  # each was the next one
    one.put(delay=20)
    assert one.alarms == 2
    assert one.backend.look() == 1.0
    assert seat.run is None
    clock.now += 4.5
    assert one.backend.look() == 0.5
    clock.now += 0.5
    one.backend.look()
    assert seat.run is not None
    assert seat.run.entry.tenant == "other"
    assert one.backend.stats().later == 2


def test_a_job_waits_for_its_next_attempt_out_of_line(desk: Callable[..., Desk], clock: Clock) -> None:
    one = desk()
    seat = one.seat()
    one.put()
    for attempt, seconds in ((1, 0.25), (2, 0.5), (3, 1.0), (4, 2.0)):
        run = seat.run
        assert run is not None
        assert run.entry.attempt == attempt
        assert one.backend.settle(seat, run, ValueError()) is None
        assert one.backend.stats()[:3] == (0, 1, 0)
        clock.now += seconds - 0.01
        one.backend.look()
        assert seat.run is None
        clock.now += 0.02
        one.backend.look()
    assert seat.run is not None
    one.backend.settle(seat, seat.run, ValueError())
    assert [entry.attempt for entry in one.backend.dead(EVERYBODY)] == [5]


def test_told_twice_an_attempt_ends_once(desk: Callable[..., Desk]) -> None:
    one = desk()
    seat = one.seat()
    one.put()
    run = seat.run
    assert run is not None
    one.backend.settle(seat, run, None)
    one.backend.settle(seat, run, None)
    assert one.backend.stats().finished["success"] == 1


def test_a_tenant_s_backlog_is_bounded_and_nobody_else_s_by_it(desk: Callable[..., Desk]) -> None:
    one = desk(max_backlog_per_tenant=3)
    for _ in range(3):
        one.put()
    with pytest.raises(BacklogFull) as caught:
        one.put()
    assert (caught.value.tenant, caught.value.limit, caught.value.identifier) == (
        "acme", "max_backlog_per_tenant", "jobs:default"
    )  # fmt: skip
    assert "max_backlog_per_tenant (3) is reached" in str(caught.value)
    one.put(tenant="other")
    for _ in range(5):
        one.put(tenant=None)  # outside any tenant only the total counts
    seat = one.seat()
    assert seat.run is not None
    one.put(tenant=seat.run.entry.tenant)  # one runs and waits no more


@pytest.mark.parametrize("where", ["line", "later", "unknown"])
def test_every_kind_of_waiting_counts(desk: Callable[..., Desk], where: str) -> None:
    one = desk(max_backlog_per_tenant=2)
    given = {"line": {}, "later": {"delay": 5.0}, "unknown": {"name": "nobody's"}}[where]
    for _ in range(2):
        one.put(**given)  # type: ignore[arg-type]
    with pytest.raises(BacklogFull):
        one.put()


def test_above_the_total_only_tenants_with_their_equal_share_are_refused(desk: Callable[..., Desk]) -> None:
    one = desk(max_backlog=10, max_backlog_per_tenant=100)
    for _ in range(8):
        one.put(tenant="noisy")
    for _ in range(2):
        one.put(tenant="quiet")
    with pytest.raises(BacklogFull) as caught:
        one.put(tenant="noisy")
    assert caught.value.limit == "max_backlog"
    for _ in range(3):  # its share of 10 is 5
        one.put(tenant="quiet")
    with pytest.raises(BacklogFull):
        one.put(tenant="quiet")
    one.put(tenant="new")
    one.put(tenant=None)


def test_ids_made_up_by_clients_cannot_grow_it(desk: Callable[..., Desk]) -> None:
    one = desk(max_backlog=100)
    kept = 0
    for number in range(1000):
        try:
            one.put(tenant=f"made-up-{number}")
        except BacklogFull:
            continue
        kept += 1
    assert kept == 100
    assert one.backend.left(EVERYBODY) == 100


def test_a_tenant_without_jobs_is_nowhere(desk: Callable[..., Desk], clock: Clock) -> None:
    one = desk(max_concurrent=1)
    seat = one.seat()
    for number in range(100):
        one.put(tenant=f"t{number}", delay=number % 2)
    clock.now += 2
    one.backend.look()
    while seat.run is not None:
        one.backend.settle(seat, seat.run, None)
    backend = one.backend
    assert backend.stats().finished["success"] == 100
    assert (len(backend._backlog._of), backend._backlog.total, backend._crew.slots.tenants()) == (0, 0, [])


def test_a_name_that_no_handler_has_waits_is_warned_of_once_a_minute_and_is_dead_in_the_end(
    desk: Callable[..., Desk], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    one = desk()
    seat = one.seat()
    one.put("nobody's")
    one.put("nobody's", tenant="other")
    assert seat.run is None
    assert one.backend.stats().unknown == {"nobody's": 2}
    for _ in range(61):
        one.backend.look()
        clock.now += 1
    one.backend.look()
    told = [record for record in caplog.records if "job_unknown" in record.getMessage()]
    assert [(record.bulkhead_job, record.bulkhead_count) for record in told] == [("nobody's", 2)] * 2  # type: ignore[attr-defined]
    clock.now += 86_400
    one.backend.look()
    assert one.backend.stats().unknown == {}
    assert {record.last_error for record in one.backend.dead(EVERYBODY)} == {"no handler had its name"}
    assert one.backend.left(EVERYBODY) == 0


def test_a_handler_that_comes_late_gets_what_waits_for_it(desk: Callable[..., Desk], clock: Clock) -> None:
    one = desk()
    seat = one.seat()
    identity = one.put("late")
    delayed = one.put("late", delay=100)

    @job(name="late")
    def late() -> None: ...

    assert seat.run is not None
    assert seat.run.entry.id == identity
    assert one.backend.stats().later == 1
    one.backend.settle(seat, seat.run, None)
    clock.now += 100
    one.backend.look()
    assert seat.run is not None
    assert seat.run.entry.id == delayed


def test_limits_follow_a_change_and_workers_and_lanes_do_not(desk: Callable[..., Desk]) -> None:
    one = desk(max_concurrent=1, lanes=2)
    seats = [one.seat(), one.seat(1)]
    for _ in range(3):
        one.put()
    assert sum(seat.run is not None for seat in seats) == 1
    one.backend.adopt(dataclasses.replace(one.backend.options, max_concurrent=2, lanes=7, workers=99))
    assert sum(seat.run is not None for seat in seats) == 2
    assert (one.backend.options.lanes, one.backend.options.workers) == (2, 8)


@pytest.mark.parametrize("answer", [None, -1, "3", 2.5, True, ValueError("no")])
def test_a_callable_that_answers_nonsense_caps_nothing_and_is_said_once(
    desk: Callable[..., Desk], answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(tenant: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    one = desk(max_concurrent=ask)
    seats = [one.seat(), one.seat()]
    for _ in range(2):
        one.put()
    assert all(seat.run is not None for seat in seats)
    told = [record for record in caplog.records if "jobs.max_concurrent" in record.getMessage()]
    assert len(told) == (0 if answer is None else 1)


def test_what_a_signal_handler_enqueues_in_the_middle_of_something_is_kept_at_the_next_look(
    desk: Callable[..., Desk],
) -> None:
    one = desk()
    seat = one.seat()
    with one.backend._lock:
        one.put()
        assert one.backend.stats().waiting == 0
    one.backend.look()
    assert seat.run is not None


def test_what_a_signal_handler_enqueues_right_before_the_end_is_returned(desk: Callable[..., Desk]) -> None:
    one = desk()
    with one.backend._lock:
        kept = one.put(delay=3)
    one.backend.close()
    assert [(record.id, record.delay) for record in one.backend.finish()[1]] == [(kept, 3.0)]


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_limits_that_change_while_a_job_comes_are_those_it_gets(
    delay: float, desk: Callable[..., Desk], clock: Clock
) -> None:
    """A callable is the user's code, so it is asked without the lock."""
    changes: list[Jobs] = []

    def cap(tenant: str) -> int:
        if changes:
            one.backend.adopt(changes.pop())
        return 7

    one = desk(max_concurrent=cap)
    if not delay:
        changes.append(Jobs(max_concurrent=2))
    one.put(delay=delay)
    if delay:
        changes.append(Jobs(max_concurrent=2))
        clock.now += delay
        while not one.backend.look():
            pass
    assert not changes
    assert one.backend._crew.slots.table["acme"].number == 2


def test_what_was_handed_over_and_not_delivered_is_found_again(desk: Callable[..., Desk]) -> None:
    one = desk()
    seat = one.seat()
    one.put()
    seat.run = None  # the call was cut short right before
    one.backend.look()
    assert seat.run is not None


def test_the_dead_are_bounded_and_one_tenant_s_do_not_push_out_another_s() -> None:
    dead = Dead(maximum=10)

    def bury(tenant: str, number: int) -> str | None:
        gone = dead.add(Entry(f"{tenant}-{number}", "work", "default", tenant, "{}", 1))
        return None if gone is None else gone.id

    assert [bury("quiet", number) for number in range(2)] == [None, None]
    assert [bury("noisy", number) for number in range(8)] == [None] * 8
    assert [bury("noisy", number) for number in (8, 9)] == ["noisy-0", "noisy-1"]
    assert bury("third", 0) == "noisy-2"
    assert len(dead) == 10
    assert [entry.id for entry in dead.of("quiet")] == ["quiet-0", "quiet-1"]


def test_a_tenant_with_its_share_of_the_dead_pushes_out_its_own() -> None:
    dead = Dead(maximum=5)
    for tenant, number in (("one", 0), ("one", 1), ("two", 0), ("two", 1), ("third", 0)):
        dead.add(Entry(f"{tenant}-{number}", "work", "default", tenant, "{}", 1))
    for tenant in ("two", "one"):
        gone = dead.add(Entry(f"{tenant}-2", "work", "default", tenant, "{}", 1))
        assert gone is not None
        assert gone.id == f"{tenant}-0"


def test_a_record_shows_no_arguments_unless_asked() -> None:
    one = JobRecord("id", "work", "default", "acme", {"password": "hunter2"}, 1, 5, 0.0, None)
    assert repr(one) == "<job 'work' id>"
    assert one._asdict()["arguments"] == {"password": "hunter2"}


def test_restored_jobs_keep_id_tenant_and_attempts(desk: Callable[..., Desk], clock: Clock) -> None:
    one = desk(max_backlog_per_tenant=1)
    records = [
        JobRecord("first", "work", "default", "acme", {"a": [1]}, 2, 5, 0.0, "ValueError"),
        JobRecord("second", "work", "default", "acme", {}, 0, 5, 7.0, None),
    ]
    one.backend.restore(records, as_json)
    seat = one.seat()
    assert seat.run is not None
    assert (seat.run.entry.id, seat.run.entry.attempt, seat.run.entry.arguments) == ("first", 3, '{"a":[1]}')
    clock.now += 7
    one.backend.settle(seat, seat.run, None)
    one.backend.look()
    assert seat.run is not None
    assert seat.run.entry.id == "second"


def test_after_the_end_nothing_is_taken(desk: Callable[..., Desk]) -> None:
    one = desk()
    one.put()
    one.put(delay=3)
    one.put("nobody's")
    one.backend.close()
    ended, left, running = one.backend.finish()
    assert (ended, [record.delay for record in left], running) == (0, [0.0, 3.0, 0.0], [])
    assert one.backend.finish()[1] == left  # until somebody has it
    one.backend.handed_over()
    assert one.backend.finish()[1] == []
    with pytest.raises(bulkhead.Rejected, match="the runner stops"):
        one.put()
    assert one.backend.left(EVERYBODY) == 0

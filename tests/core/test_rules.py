"""Trip rules, against naive models that keep every event."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from bulkhead.circuit.rules import Run, Window

times = st.lists(st.floats(0, 20, allow_nan=False), max_size=60).map(sorted)
events = st.lists(st.tuples(st.floats(0, 3), st.sampled_from("abcd"), st.booleans()), max_size=60)


@given(times, st.integers(1, 6), st.floats(0.5, 10), st.sampled_from([0.0, 0.3, 1.0]))
def test_a_window_is_what_a_list_of_all_failures_says(
    moments: list[float], threshold: int, length: float, lumping: float
) -> None:
    """SW-01, SW-02. Known fault 19: the totals of the window are a recount of what it kept."""
    rule = Window(threshold, length, lumping)
    counted: list[float] = []
    for now in moments:
        opens = rule.failure(now, None, anonymous=False)
        if counted and now - counted[-1] < lumping:
            assert not opens
            continue
        counted.append(now)
        assert opens == (len(counted) >= threshold and now - counted[-threshold] <= length)
        assert rule.noted(now) == sum(now - at <= length for at in counted[-threshold:])
        assert list(rule.times) == counted[-threshold:]


@given(events, st.integers(1, 5))
def test_a_run_is_broken_by_one_success(story: list[tuple[float, str, bool]], threshold: int) -> None:
    """Known fault 17 (Semian is wrong here): error, successes, error is no run of two."""
    rule, run = Run(threshold), 0
    assert rule.success is not None
    now = 0.0
    for step, tenant, succeeds in story:
        now += step
        if succeeds:
            rule.success(now, tenant)
            run = 0
        else:
            run += 1
            assert rule.failure(now, tenant, anonymous=False) == (run >= threshold)
        assert rule.noted(now) == min(run, threshold)


def test_ten_thousand_successes_between_two_errors_are_no_run() -> None:
    """Known fault 17, exactly."""
    rule = Run(2)
    assert not rule.failure(0, None, anonymous=False)
    for now in range(10_000):
        rule._succeeded(now, None)
    assert not rule.failure(10_000, None, anonymous=False)
    assert rule.failure(10_001, None, anonymous=False)


@given(events, st.integers(2, 3), st.integers(1, 4))
def test_the_shared_circuit_wants_failures_of_several_tenants_or_nobody_who_succeeds(
    story: list[tuple[float, str, bool]], tenants: int, threshold: int
) -> None:
    length = 10.0
    rule = Window(threshold, length, 0.0, tenants)
    assert rule.success is not None
    failures: list[tuple[float, str]] = []
    successes: list[tuple[float, str]] = []
    now = 0.0
    for step, tenant, succeeds in story:
        now += step
        if succeeds:
            rule.success(now, tenant)
            successes.append((now, tenant))
            continue
        failures.append((now, tenant))
        opens = rule.failure(now, tenant, anonymous=False)
        failing = {who for at, who in failures if now - at <= length}
        others = {who for at, who in successes if now - at <= length} - failing
        enough = len(failures) >= threshold and now - failures[-threshold][0] <= length
        assert opens == (enough and (len(failing) >= tenants or not others))
        assert len(rule._failing) <= tenants
        assert len(rule._succeeding) <= tenants


def test_failures_of_nobody_count_without_the_rule_of_tenants() -> None:
    rule = Window(2, 10, 0.0, 3)
    rule._succeeded(0, "quiet")
    assert not rule.failure(1, None, anonymous=False)
    assert rule.failure(2, "loud", anonymous=True)


def test_a_noisy_tenant_does_not_push_the_others_out_of_the_window() -> None:
    rule = Window(3, 10, 0.0, 2)
    rule._succeeded(0, "healthy")
    rule.failure(0, "quiet", anonymous=False)
    for _ in range(100):
        rule.failure(1, "noisy", anonymous=False)
    assert rule.failure(2, "noisy", anonymous=False)


def test_a_lumped_failure_still_says_which_tenant_it_came_from() -> None:
    rule = Window(2, 10, 1.0, 2)
    rule._succeeded(0, "healthy")
    assert not rule.failure(0, "a", anonymous=False)
    assert not rule.failure(0.5, "b", anonymous=False)
    assert rule.failure(2, "a", anonymous=False)


def test_a_window_keeps_no_more_than_it_needs() -> None:
    """SW-02, TW-02, TW-05: windows of 1, 2 and 3."""
    for size in (1, 2, 3):
        rule = Window(size, 100)
        for now in range(10):
            rule.failure(now, None, anonymous=False)
        assert list(rule.times) == [float(now) for now in range(10)][-size:]


def test_threads_may_note_failures_without_a_lock() -> None:
    """TW-01, TW-02, TW-03, TW-04."""
    rule = Window(6, 1000)
    start = threading.Barrier(5)

    def push(value: int) -> None:
        start.wait()
        for _ in range(200):
            rule.note(value)
            rule.noted(value)

    threads = [threading.Thread(target=push, args=(value,)) for value in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(rule.times) == 6
    assert set(rule.times) <= set(range(5))


def test_a_success_may_break_a_run_in_the_middle_of_a_lumped_failure() -> None:
    """A success takes no lock: the run may be empty between two lines of `failure`."""
    rule, stop = Run(1000, 0.5), threading.Event()

    def succeed() -> None:
        while not stop.is_set():
            rule._succeeded(0, None)

    thread = threading.Thread(target=succeed)
    thread.start()
    try:
        for now in range(20_000):
            rule.failure(now, None, anonymous=False)
    finally:
        stop.set()
        thread.join()

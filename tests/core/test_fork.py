"""fork: the child holds nothing, no lock is taken, every circuit is closed; the parent notices nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import RunPython

START = """
import asyncio, os, signal, sys, threading, time, traceback, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, "tests")
import bulkhead
from bulkhead.outcomes import DIRECT
from stories import Boom, fail, full, hold, refused, succeed, NEVER_OPENS

def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(20)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"
"""


def test_a_child_holds_nothing_of_its_parent_s(run_python: RunPython) -> None:
    """Known faults 36 and 93. BH-20: what the child takes does not count against the parent either."""
    run_python(
        START
        + """
one = bulkhead.resource("x", tickets=1, tenant_tickets=1, error_threshold=1, error_timeout=100, success_threshold=1)
opened = bulkhead.resource("y", error_threshold=1, error_timeout=100, success_threshold=1)
held = hold(one, "a")
fail(opened)

def child():
    assert opened.state == "closed"
    succeed(opened)
    succeed(one, "a")
    held.end()                       # of the parent: adds nothing
    mine = hold(one, "a")
    assert full(one, "a") == "tenant"
    mine.end()
    succeed(one, "a")

in_child(child)
assert full(one, "a") == "tenant"
held.end()
succeed(one, "a")
assert opened.state == "open"
"""
    )


def test_a_process_that_was_forked_inside_a_call_is_not_part_of_it(run_python: RunPython) -> None:
    """A pool of processes that is started inside a guarded function works unguarded otherwise, for all its life."""
    run_python(
        START
        + """
one = bulkhead.resource("x", tickets=1)
outer = bulkhead.resource("y", tickets=1)

@one
def call():
    return one.in_use, outer.in_use

@outer
def forks():
    with one.permit():
        assert call() == (1, 1)
        def child():
            assert call() == (1, 0)
            with outer.permit(), one.permit():
                assert call() == (1, 1)
            assert (one.in_use, outer.in_use) == (0, 0)
        in_child(child)
        assert call() == (1, 1)

pid = os.getpid()
forks()
with bulkhead.bypass("call:x"):
    in_child(lambda: call() == (1, 0) or sys.exit("still bypassed"))
with one.permit():                              # a child that leaves the block by its end
    child = os.fork()
if child == 0:
    os._exit(0 if call() == (1, 0) and one.in_use == 0 else 1)
assert os.waitpid(child, 0)[1] == 0
assert call() == (1, 0) and one.in_use == 0
"""
    )


def test_a_lock_that_another_thread_holds_at_the_fork_is_free_in_the_child(run_python: RunPython) -> None:
    """Known fault 36."""
    run_python(
        START
        + """
from bulkhead.registry import registry
from bulkhead import events
one = bulkhead.resource("x", tickets=2, tenant_tickets=1)
stop, ready = threading.Event(), threading.Event()

def holder():
    with one.lock, registry._lock, events._lock:
        ready.set()
        stop.wait(20)

thread = threading.Thread(target=holder)
thread.start()
ready.wait()

def child():
    succeed(one, "a")
    with bulkhead.subscribe(lambda event: None):
        succeed(one, "a")
    bulkhead.resource("new", tickets=1)

in_child(child)
stop.set()
thread.join()
succeed(one, "a")
"""
    )


def test_a_half_open_place_taken_at_the_fork_is_free_in_the_child(run_python: RunPython) -> None:
    """Known fault 93."""
    run_python(
        START
        + """
one = bulkhead.resource("x", tickets=2, error_threshold=1, error_timeout=0.01, success_threshold=1,
                        half_open_resource_timeout=20.0)
fail(one)
time.sleep(0.02)
probe = hold(one)

def child():
    succeed(one)
    probe.fail(Boom())               # its copy of the parent's probe says nothing here
    assert one.state == "closed"
    succeed(one)

in_child(child)
probe.end()
assert one.state == "closed"
"""
    )


def test_who_waits_in_the_parent_does_not_wait_in_the_child(run_python: RunPython) -> None:
    run_python(
        START
        + """
one = bulkhead.resource("x", tickets=1, timeout=20.0)
held = hold(one)
thread = threading.Thread(target=lambda: hold(one).end())
thread.start()
while not one.queue.lines:
    time.sleep(0.001)

def child():
    assert not one.queue.lines
    succeed(one)
    succeed(one)
    assert one.fast

in_child(child)
held.end()
thread.join(5)
assert not thread.is_alive()
"""
    )


def test_forks_in_the_middle_of_everything(run_python: RunPython) -> None:
    """Threads call, evict, flap and wait while the main thread forks again and again."""
    run_python(
        START
        + """
import logging
logging.disable(logging.CRITICAL)  # without the GIL, logging itself hangs in a child forked while another thread logs
one = bulkhead.resource("x", tickets=3, tenant_tickets=2, timeout=0.01, maximum_tenants=3,
                        error_threshold=3, error_timeout=0.005, success_threshold=1)
stop = []

def work(seed):
    step = seed
    while not stop:
        step += 1
        try:
            session = hold(one, f"t{step % 7}")
        except bulkhead.Rejected:
            continue
        if step % 5:
            session.end()
        else:
            session.fail(Boom())

threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
for thread in threads:
    thread.start()

def child():
    held = [hold(one, name) for name in "aab"]
    for name in "abc":
        refused(bulkhead.ResourceBusyError, one, name)
    for session in held:
        session.end()
    assert one.in_use == 0

for _ in range(25):
    in_child(child)
stop.append(1)
for thread in threads:
    thread.join(10)
    assert not thread.is_alive()
""",
        seconds=50,
    )


def test_metrics_of_a_child_begin_at_zero(run_python: RunPython) -> None:
    run_python(
        START
        + """
from bulkhead import metrics
from prometheus_client import CollectorRegistry
metrics.register(CollectorRegistry())
one = bulkhead.resource("x", tickets=1)
for _ in range(3):
    succeed(one)

def child():
    assert one.totals()["calls", "success"] == 0
    succeed(one)
    assert one.totals()["calls", "success"] == 1

in_child(child)
assert one.totals()["calls", "success"] == 3
"""
    )

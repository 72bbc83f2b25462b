"""Exceptions between any two instructions: a signal handler raises, often twice in a row, at random moments.

Afterwards nothing is lost, no cap is exceeded, no lock is held, nobody is thought to be inside, and all of the
capacity can be taken again. In an interpreter of its own: timers and handlers belong to the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from counts import ASYNC_EXCEPTIONS

if TYPE_CHECKING:
    from conftest import RunPython

STORM = """
import gc, random, sys, threading, time, logging
sys.path.insert(0, "tests")
logging.disable(logging.CRITICAL)
import bulkhead
from bulkhead import nesting, tenancy
from bulkhead.outcomes import DIRECT
from stories import Boom, NEVER_OPENS, pools, hold, refused, resource, work_for
from storms import interrupt, storm

wanted = int(sys.argv[1])

def check(one, capacity=True):
    gc.collect()
    assert not nesting.inside(one.identifier), "thought to be inside for ever"
    assert one.lock.acquire(timeout=5), "a lock is held"
    one.lock.release()
    found = []
    thread = threading.Thread(target=lambda: found.append(one.lock.acquire(timeout=5) and (one.lock.release() or True)))
    thread.start()
    thread.join()
    assert found == [True], "a lock is held"
    for pool in pools(one):
        with one.lock:
            pool.fill()
        assert pool.in_use == 0, pool
        assert len(pool.watch) <= pool.limit, pool
        assert len({id(ticket) for ticket in pool}) == len(pool), pool
    table = one.tenants
    known = [pool for pool in table._hand if table.table.get(pool.tenant) is pool]
    assert len(known) == len(table.table), "a tenant's entry that nobody will ever evict"
    assert len(table._hand) <= len(table.table) + 5
    assert not any(place() for line in one.queue.lines.values() for place in line), "a ghost waits"
    one.close()
    if capacity and one.options.tickets:
        tenancy.set_tenant(None)
        held = [hold(one) for _ in range(one.options.tickets)]
        if one.options.timeout:
            one.update(timeout=0.0, max_waiting=None)
        refused(bulkhead.ResourceBusyError, one)
        for session in held:
            session.end()

def work(x):
    return x

def flaky(x):
    if x < 0.3:
        raise Boom
    return x

def swallow(function):
    def call(rng):
        try:
            function(rng.random())
        except (Boom, bulkhead.Rejected):
            pass
    return call

def others(call, number=4):
    "Threads that keep calling; returns what ends them."
    stop, done = [], [0] * number

    def run(index):
        rng = random.Random(index)
        while not stop:
            tenancy.set_tenant(f"t{rng.randrange(6)}")
            try:
                call(rng)
                done[index] += 1
            except (Boom, bulkhead.Rejected):
                pass
            time.sleep(0)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()

    def join():
        stop.append(1)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "hang"
        assert all(done), done

    return join

tenancy.set_tenant("a")
"""

STORIES = {
    "a guarded call": """
one = resource(**NEVER_OPENS, tickets=4, tenant_tickets=2)
storm(swallow(one(flaky)), wanted)
check(one)
""",
    "nested calls": """
one = resource(**NEVER_OPENS, tickets=4, tenant_tickets=2)
storm(swallow(one(one(flaky))), wanted)
check(one)
""",
    "a permit": """
one = resource(**NEVER_OPENS, tickets=4, tenant_tickets=2)
def body(rng):
    with one.permit():
        work(1)
storm(body, wanted)
check(one)
""",
    "the five of an adapter": """
one = resource(**NEVER_OPENS, tickets=4, tenant_tickets=2)
def body(rng):
    ticket, give, shared, give_shared, failed = one.begin(DIRECT)
    try:
        work(1)
    except BaseException as error:
        failed(ticket, shared, error, DIRECT, None)
        del ticket, shared
        raise
    give_shared(shared)
    give(ticket)
storm(body, wanted)
check(one)
""",
    "new tenants and eviction": """
one = resource(**NEVER_OPENS, tickets=4, tenant_tickets=2, maximum_tenants=3)
call = one(flaky)
def body(rng):
    tenancy.set_tenant(f"t{rng.randrange(12)}")
    try:
        call(rng.random())
    except (Boom, bulkhead.Rejected):
        pass
storm(body, wanted)
check(one)
""",
    "flapping circuits and probes": """
one = resource(tickets=4, tenant_tickets=2, error_threshold=3, error_timeout=0.0005, success_threshold=2,
               maximum_tenants=3, tenant_circuit=True)
one.clock = time.monotonic
call = one(flaky)
def body(rng):
    tenancy.set_tenant(f"t{rng.randrange(12)}")
    try:
        call(rng.random())
    except (Boom, bulkhead.Rejected):
        pass
storm(body, wanted)
one.reset()
check(one)
""",
    "call_timeout, runs, watched calls": """
one = resource(tickets=4, tenant_tickets=2, error_threshold=1000, error_timeout=10.0, success_threshold=2,
               error_threshold_timeout_enabled=False, call_timeout=0.00005)
one.clock = time.monotonic
with bulkhead.subscribe(lambda event: None):
    storm(swallow(one(flaky)), wanted)
check(one)
""",
    "generators": """
one = resource(**NEVER_OPENS, tickets=4, tenant_tickets=2)
@one
def items(x):
    yield x
    if x < 0.3:
        raise Boom
    yield x
def body(rng):
    for item in items(rng.random()):
        if item > 0.9:
            break
def call(rng):
    try:
        body(rng)
    except (Boom, bulkhead.Rejected):
        pass
storm(call, wanted)
check(one)
""",
    "coroutines": """
one = resource(**NEVER_OPENS, tickets=4, tenant_tickets=2)
@one
async def call(x):
    if x < 0.3:
        raise Boom
def body(rng):
    made = call(rng.random())
    try:
        made.send(None)
    except (StopIteration, Boom, bulkhead.Rejected):
        pass
    finally:
        made.close()
storm(body, wanted)
check(one)
""",
    "waiting, with other threads": """
one = resource(**NEVER_OPENS, tickets=3, tenant_tickets=2, timeout=0.3, maximum_tenants=3, max_waiting=50)
call = one(flaky)
def body(rng):
    tenancy.set_tenant(f"t{rng.randrange(6)}")
    try:
        call(rng.random())
    except (Boom, bulkhead.Rejected):
        pass
join = others(lambda rng: call(rng.random()))
storm(body, min(wanted, 3000), low=0.0003, spread=0.001)
join()
check(one)
""",
    "eviction, with other threads": """
one = resource(**NEVER_OPENS, tickets=3, tenant_tickets=2, maximum_tenants=2)
inside, over, total, guard = {}, [], [0], threading.Lock()
@one
def watched(tenant):
    with guard:
        inside[tenant] = inside.get(tenant, 0) + 1
        total[0] += 1
        if inside[tenant] > 2 or total[0] > 3:
            over.append(tenant)
    with guard:
        inside[tenant] -= 1
        total[0] -= 1
def other(rng):
    watched(tenancy.current_tenant())
call = one(work)
def body(rng):
    tenancy.set_tenant(f"t{rng.randrange(6)}")
    try:
        call(1)
    except bulkhead.Rejected:
        pass
join = others(other)
storm(body, wanted)
join()
assert not over, over
check(one)
""",
    "handlers that call, not raise": """
one = resource(tickets=4, tenant_tickets=2, maximum_tenants=3, error_threshold=3, error_timeout=0.001,
               success_threshold=1)
one.clock = time.monotonic
call = one(flaky)
def nested(rng):
    with work_for(f"t{rng.randrange(12)}"):
        try:
            call(rng.random())
        except (Boom, bulkhead.Rejected):
            pass
def body(rng):
    tenancy.set_tenant(f"t{rng.randrange(12)}")
    try:
        call(rng.random())
    except (Boom, bulkhead.Rejected):
        pass
interrupt(nested, body, wanted)
check(one)
""",
}


@pytest.mark.timeout(150, method="thread")
@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_lost_and_nothing_is_gained(run_python: RunPython, story: str) -> None:
    """Known fault 39, and faults 2, 4, 5, 6 and 12 of our own. Full count: 20,000 in each story."""
    run_python(STORM + STORIES[story], str(ASYNC_EXCEPTIONS), seconds=120)

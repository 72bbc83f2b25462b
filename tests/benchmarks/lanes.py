"""Group of rows: the queue of job lanes. Push, claim and finish of one job, beside put and get of `queue.Queue`.

With 100,000 tenants waiting the next job is the one of a tenant that nothing has touched for long, so memory is waited
for. Rows whose tenant is another each time are shown beside `queue.Queue`, too.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from table import Line, cost_line, ratio_line
from timing import Subject, calls, measure

from bulkhead.jobs.lanes import LaneQueue

if TYPE_CHECKING:
    from collections.abc import Callable

PEER = "queue.Queue put + get"
ONE = "one tenant, 8 lanes"
TO_PEER, TO_ONE = 2.0, 1.5
WAITING = 100_000

# The second pushes for the tenant that was served, so the tenants that wait stay as many, and each takes its turn.
PUSH_FIRST = "push('acme', 1, cap); finish(claim(lane))"
CLAIM_FIRST = "done = claim(lane); finish(done); push(done.account.tenant, 1, cap)"


def _of(statement: str, lanes: int, tenants: int, jobs: int = 1, cap: int = 0) -> Callable[[], Subject]:
    own = LaneQueue(lanes, 2)
    for _ in range(jobs):
        for number in range(tenants):
            own.push(f"tenant-{number}", 1, cap)
    lane = own.lanes_of("acme")[0]
    return lambda: calls(statement, push=own.push, claim=own.claim, finish=own.finish, lane=lane, cap=cap)


def queued(rounds: int) -> list[Line]:
    """One tenant whose queue is empty each time, and 100,000 that wait."""
    plain: queue.Queue[int] = queue.Queue()
    made = {
        ONE: _of(PUSH_FIRST, 8, 0),
        "one tenant, cap 2, 8 lanes": _of(PUSH_FIRST, 8, 0, cap=2),
        "one tenant, lanes off": _of(PUSH_FIRST, 0, 0),
        "100,000 wait: one more comes": _of(PUSH_FIRST, 8, WAITING),
        "100,000 wait: one job each, served comes again": _of(CLAIM_FIRST, 8, WAITING),
        "100,000 wait: backlogs of 3": _of(CLAIM_FIRST, 8, WAITING, 3),
        "100,000 wait: backlogs of 3, lanes off": _of(CLAIM_FIRST, 0, WAITING, 3),
    }
    subjects = {PEER: calls("put(1); get()", put=plain.put, get=plain.get)}
    subjects |= {row: make() for row, make in made.items()}
    results = measure(subjects, rounds)
    lines = [cost_line(PEER, results, bare=None)]
    lines += [ratio_line(row, results, PEER, TO_PEER, bare=None) for row in made if row.startswith("one")]
    for row in made:
        if not row.startswith("one"):
            lines.append(ratio_line(row, results, ONE, TO_ONE, bare=None))
            lines.append(ratio_line(row, results, PEER, None, bare=None))
    return lines

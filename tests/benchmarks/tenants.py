"""Groups of rows: many tenants. What is measured is the call alone: a loop that only sets the tenant is subtracted."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from guarded import BOTH, inlined, made
from peers import CIRCUITBREAKER, PYBREAKER, Client, broken_circuit, py_broken, work
from table import Line, cost_line, ratio_line
from timing import Subject, calls, measure

import bulkhead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_new = itertools.count()
GROWTH = 5.0  # MiB
_set = bulkhead.tenancy.current.set


def _under(ids: Callable[[int], Iterable[str]], client: Client) -> Subject:
    """Calls under the tenants that `ids(n)` names, less the cost of naming them."""
    function = inlined()

    def run(n: int) -> float:
        names, clock = list(ids(n)), time.thread_time
        token = bulkhead.tenancy.current.set("none")
        began = clock()
        for name in names:
            _set(name)
            function(client, 1)
        between = clock()
        for name in names:
            _set(name)
        ended = clock()
        bulkhead.tenancy.current.reset(token)
        return (between - began) - (ended - between)

    return Subject(run)


def _uniform(count: int) -> Callable[[int], list[str]]:
    names = [f"tenant-{number}" for number in range(count)]
    rnd = random.Random(count)  # noqa: S311  no secret
    return lambda n: rnd.choices(names, k=n)


def _unheard(n: int) -> list[str]:
    return [f"new-{next(_new)}" for _ in range(n)]


def traffic(rounds: int) -> list[Line]:
    """One tenant, a thousand in turn, and one that is new each time with the table full."""
    full = Client(made(maximum_tenants=10_000, **BOTH))
    function = inlined()
    for name in _unheard(10_000):
        token = _set(name)
        function(full, 1)
        bulkhead.tenancy.current.reset(token)
    one, many = Client(made(**BOTH)), Client(made(**BOTH))
    for name in [f"tenant-{number}" for number in range(1000)] * 2:
        token = _set(name)
        function(many, 1)
        bulkhead.tenancy.current.reset(token)
    subjects = {
        "one tenant": _under(_uniform(1), one),
        "1,000 tenants, uniform": _under(_uniform(1000), many),
        "new tenant, eviction included": _under(_unheard, full),
        PYBREAKER: calls("function(client, 1)", function=py_broken(work), client=Client()),
        CIRCUITBREAKER: calls("function(client, 1)", function=broken_circuit(work), client=Client()),
    }
    results = measure(subjects, rounds)

    def line(row: str, peer: str, budget: float | None = None) -> Line:
        return ratio_line(row, results, peer, budget, bare=None)

    return [
        cost_line("one tenant", results, bare=None),
        line("1,000 tenants, uniform", "one tenant", 2.0),
        cost_line(PYBREAKER, results, bare=None),
        line("new tenant, eviction included", PYBREAKER, 5.0),
        line("new tenant, eviction included", CIRCUITBREAKER),
    ]


def memory(rounds: int) -> list[Line]:
    """Resident memory from 10,000 to 1,000,000 ids, in a process of its own. Few rounds: to 100,000 ids."""
    last = 1_000_000 if rounds >= 50 else 100_000
    script = str(Path(__file__).with_name("growth.py"))
    done = subprocess.run([sys.executable, script, str(last)], check=True, capture_output=True, text=True)
    grown, each = json.loads(done.stdout)
    row = f"memory, 10,000 -> {last:,} ids"
    cost = f"{grown:+.2f} MiB, {each:.0f} ns/id"
    return [Line(row, cost, budget=f"{GROWTH:g} MiB", holds=grown <= GROWTH)]

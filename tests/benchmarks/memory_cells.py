"""Groups of rows: memory cells. What accounting costs, what an eviction costs, and what made-up ids leave behind."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from table import Line, cost_line, ratio_line
from timing import Subject, calls, in_threads, measure

import bulkhead
from bulkhead import request
from bulkhead.memory import MemoryCells, current_memory_cell

LOCK = "with threading.Lock()"
LOOKUP = "ContextVar.get and dict.get"
GROWTH = 5.0  # MiB
_new = itertools.count()


def charging(rounds: int) -> list[Line]:
    """A charge and its release, the current cell, a scratch: against a lock, and against two look-ups."""
    cell = MemoryCells(quota_bytes=10**9).get_or_create("acme")
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("acme")
    names: dict[str, Any] = {"cell": cell, "scratch": cell.scratch, "value": b"x" * 100}
    look = {"current": current_memory_cell}
    of_request, of_block = calls("current()", **look), calls("current()", **look)
    of_request.before = lambda: request.current.set({"acme": cell})
    of_request.after = lambda: request.current.set(None)
    block = bulkhead.tenant("acme")
    of_block.before, of_block.after = block.__enter__, lambda: block.__exit__(None, None, None)
    subjects = {
        LOCK: calls("with lock: pass", lock=threading.Lock()),
        "charge + release": calls("cell.charge(100).release()", **names),
        "charge in a with block": calls("with cell.charge(100): pass", **names),
        "charge that is lost": calls("cell.charge(100)", **names),
        "scratch[key] = value": calls("scratch['key'] = value", **names),
        LOOKUP: calls("table.get(variable.get())", table={"acme": cell}, variable=variable),
        "current cell of a request": of_request,
        "current cell of a block": of_block,
        "current cell after set_tenant()": calls("current()", **look),
    }
    results = measure(subjects, rounds)

    def line(row: str, peer: str, budget: float | None = None) -> Line:
        return ratio_line(row, results, peer, budget, bare=None)

    threads = measure(
        {
            LOCK: in_threads(8, "with lock: pass", 0.02, lock=threading.Lock()),
            "8 threads, one cell": in_threads(8, "cell.charge(100).release()", 0.02, **names),
        },
        max(5, rounds // 10),
    )
    return [
        cost_line(LOCK, results, bare=None),
        line("charge + release", LOCK, 8.0),
        line("charge in a with block", LOCK),
        line("charge that is lost", LOCK),
        line("scratch[key] = value", LOCK),
        ratio_line("8 threads, one cell", threads, LOCK, bare=None),
        cost_line(LOOKUP, results, bare=None),
        line("current cell of a request", LOOKUP, 3.0),
        line("current cell of a block", LOOKUP, 3.0),
        line("current cell after set_tenant()", LOOKUP),
        *_insertions(rounds),
        _growth(rounds),
    ]


def _insertions(rounds: int) -> list[Line]:
    """A new cell with the registry full: the size of the registry must not matter."""

    def full(most: int) -> Subject:
        cells = MemoryCells(max_cells=most)
        for number in range(most):
            cells.get_or_create(f"tenant-{number}")

        def run(n: int) -> float:
            names = [f"new-{next(_new)}" for _ in range(n)]
            began = time.thread_time()
            for name in names:
                cells.get_or_create(name)
            return time.thread_time() - began

        return Subject(run)

    small, large = "insert with eviction, max_cells 1,000", "insert with eviction, max_cells 100,000"
    results = measure({small: full(1_000), large: full(100_000)}, rounds)
    return [cost_line(small, results, bare=None), ratio_line(large, results, small, 1.5, bare=None)]


def _growth(rounds: int) -> Line:
    """Resident memory from 10,000 to 1,000,000 ids, in a process of its own. Few rounds: to 100,000 ids."""
    last = 1_000_000 if rounds >= 50 else 100_000
    done = subprocess.run([sys.executable, __file__, str(last)], check=True, capture_output=True, text=True)
    grown, each = json.loads(done.stdout)
    row, cost = f"memory, 10,000 -> {last:,} ids", f"{grown:+.2f} MiB, {each:.0f} ns/id"
    return Line(row, cost, budget=f"{GROWTH:g} MiB", holds=grown <= GROWTH)


def _peak() -> float:
    """Peak resident memory in MiB."""
    return int(Path("/proc/self/status").read_text(encoding="ascii").partition("VmHWM:")[2].split()[0]) / 2**10


def _meet(last: int) -> None:
    before, began = 0.0, time.perf_counter()
    for number in range(1, last + 1):
        bulkhead.tenancy.current.set(f"new-{number}")
        cell = current_memory_cell()
        if cell is not None:
            cell.charge(100).release()
        if number == 12_000:  # at 10,000 the registry is full, and its dict has just grown
            before = _peak()
    print(json.dumps([_peak() - before, (time.perf_counter() - began) / last * 1e9]))


if __name__ == "__main__":
    _meet(int(sys.argv[1]))

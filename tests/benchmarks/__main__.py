"""`python tests/benchmarks [--only name …] [--rounds n] [--quick] [--strict]`: the budgets, measured."""

from __future__ import annotations

import argparse
import logging
import sys
import time

import calls
import cells_router
import isolation
import lanes
import loopback
import memory_cells
import refusals
import routing
import scraping
import tenants
import uploads
import web
from table import rendered

import bulkhead

GROUPS = {
    "plain": ("Calls that succeed, one thread (over a bare call)", calls.plain, 300),
    "async": ("Coroutines in one event loop (over a bare await)", calls.in_loop, 300),
    "threads": ("8 threads on one guard, wall clock per call (over a bare call)", calls.in_threads_, 40),
    "blocking": ("8 threads, calls that block for 1 ms, wall clock", calls.blocking, 40),
    "refused": ("Refused, raise and catch included", refusals.refused, 200),
    "failed": ("Failed, raise and catch included", refusals.failed, 200),
    "tenants": ("Many tenants", tenants.traffic, 200),
    "memory": ("Ids chosen by clients", tenants.memory, 200),
    "memory-cells": ("Memory cells, CPU time of a thread", memory_cells.charging, 200),
    "jobs": ("The queue of job lanes: push, claim and finish", lanes.queued, 200),
    "redis": ("redis-py over loopback", loopback.redis_get, 1000),
    "psycopg": ("psycopg over loopback", loopback.psycopg_select, 1000),
    "sqlalchemy": ("SQLAlchemy and psycopg over loopback", loopback.sqlalchemy_select, 1000),
    "httpx": ("httpx over loopback", loopback.httpx_get, 600),
    "metrics": ("A scrape of Prometheus, CPU time", scraping.scraped, 30),
    "cells-router": (
        "Finding a tenant's cell (as they are; 100,000 tenants: over their loop)",
        cells_router.routed,
        200,
    ),
    "web": ("A FastAPI hello-world, requests a second", web.hello, 60),
    "isolation": ("A noisy tenant, and what the quiet ones notice of it", isolation.isolated, 5),
    "uploads": ("A tenant that uploads without end, with memory cells and without", uploads.uploads, 5),
    "cells": ("Clients of cells: httpx, the proxy, HAProxy; and one cell that hangs", routing.cells, 600),
    "counters": ("With outcome counters (over a bare call)", calls.counted, 200),
}

NOTES = """\
Costs and ratios are medians and minima over rounds; in a round every row and its peers have one short chunk each, in
shuffled order. A budget holds if the ratio of the medians or that of the minima is within it.
Single-threaded rows are CPU time of the thread, rows with threads are wall clock. Loopback rows are both: medians of
paired differences to two plain clients, with their 95 % bound; the CPU time has to be within the budget, and the wall
clock must not be above it by more than its bound.
web, isolation and uploads are load tests of servers on loopback, and say in each row what its number is. They need a machine
that has nothing else to do; isolation takes twenty minutes (--quick: short runs, one of each).
"""


def main() -> int:
    """Run what was asked for and print the table. 1: a budget is over and --strict was given."""
    parser = argparse.ArgumentParser(
        prog="python tests/benchmarks", description=__doc__, epilog=NOTES, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="group", choices=GROUPS, help=f"of: {', '.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, help="rounds of each group (default: its own, 40 to 300)")
    parser.add_argument("--quick", action="store_true", help="a sixth of the rounds: shows that it runs, not how fast")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a budget is over")
    given = parser.parse_args()
    logging.getLogger("bulkhead").addHandler(logging.NullHandler())
    logging.getLogger("bulkhead").propagate = False
    bulkhead.set_tenant("acme")
    began, missed = time.monotonic(), list[str]()
    print(f"Python {sys.version.split()[0]}")
    for name, (title, group, usual) in GROUPS.items():
        if given.only and name not in given.only:
            continue
        print(f"{name}: {title}", file=sys.stderr, flush=True)
        lines = group(given.rounds or (max(1, usual // 6) if given.quick else usual))
        missed += [f"{line.row} to {line.peer}" for line in lines if line.holds is False]
        print(rendered(f"{name}: {title}", lines), flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")
    print("every budget holds" if not missed else "OVER: " + "; ".join(missed))
    return 1 if missed and given.strict else 0


sys.exit(main())

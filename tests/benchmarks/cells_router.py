"""Group of rows: finding a tenant's cell, and the URL of a path there, beside the hash alone."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from table import Line, cost_line, ratio_line
from timing import calls, measure
from xxhash import xxh64_intdigest

from bulkhead.cells import Cell, CellMap, CellRouter

if TYPE_CHECKING:
    from timing import Subject

CELLS, TENANTS = 16, 100_000
HASH = "xxh64_intdigest(key.encode())"
PATH = "/orders/1742?full=1"


def routed(rounds: int) -> list[Line]:
    """One tenant again and again, and 100,000 in turn; with pins, as real maps have them."""
    cells = [Cell(f"eu-{n}", f"https://eu-{n}.example.com/app") for n in range(CELLS)]
    router = CellRouter(cells, pins={f"whale-{n}": "eu-3" for n in range(100)})
    router_fnv = router.replace(hash="fnv1a64")
    now = CellMap(router, tenants={"moving": "moving"})
    names = [f"tenant-{n}" for n in range(TENANTS)]

    def one(statement: str) -> Subject:
        return calls(statement, key="tenant-4711", hash_of=xxh64_intdigest, router=router, now=now, path=PATH)

    def many(statement: str) -> Subject:
        turn = itertools.cycle(names)
        return calls(
            f"key = following(); {statement}",
            following=turn.__next__,
            hash_of=xxh64_intdigest,
            router=router,
            path=PATH,
        )

    subjects = {
        HASH: one("hash_of(key.encode())"),
        "for_tenant": one("router.for_tenant(key)"),
        "url_for": one("router.url_for(key, path)"),
        "url_for, a path with % and blanks": one("router.url_for(key, '/caf%C3%A9/a b?q=1')"),
        "CellMap.route": one("now.route(key)"),
        "for_tenant, fnv1a64": calls("router.for_tenant(key)", key="tenant-4711", router=router_fnv),
        "the loop alone": many("pass"),
        f"{HASH}, 100,000 tenants": many("hash_of(key.encode())"),
        "for_tenant, 100,000 tenants": many("router.for_tenant(key)"),
        "url_for, 100,000 tenants": many("router.url_for(key, path)"),
    }
    results = measure(subjects, rounds)

    def line(row: str, peer: str, budget: float | None = None, bare: str | None = None) -> Line:
        return ratio_line(row, results, peer, budget, bare=bare)

    return [
        cost_line(HASH, results, bare=None),
        line("for_tenant", HASH, 3),
        line("url_for", "for_tenant", 4),
        line("for_tenant, 100,000 tenants", f"{HASH}, 100,000 tenants", 3, "the loop alone"),
        line("url_for, 100,000 tenants", "for_tenant, 100,000 tenants", 4, "the loop alone"),
        line("url_for, a path with % and blanks", "for_tenant"),
        line("CellMap.route", "for_tenant"),
        line("for_tenant, fnv1a64", HASH),
    ]

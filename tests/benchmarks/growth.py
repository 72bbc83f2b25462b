"""A process that meets many tenant ids: prints the growth of its peak memory in MiB and ns per id. Run by tenants.py."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from guarded import BOTH, inlined, made
from peers import Client

import bulkhead


def peak() -> float:
    """Peak resident memory in MiB: what was once needed counts, also where it was given back."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    # Not ru_maxrss: on Linux that begins with the peak of the process that started this one.
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**10


def main(last: int) -> None:
    """Call once under each of `last` ids."""
    function, client = inlined(), Client(made(maximum_tenants=10_000, **BOTH))
    before, began = 0.0, time.perf_counter()
    for number in range(1, last + 1):
        bulkhead.tenancy.current.set(f"new-{number}")
        function(client, 1)
        if number == 10_000:
            before = peak()
    took = time.perf_counter() - began
    print(json.dumps([peak() - before, took / last * 1e9]))


main(int(sys.argv[1]))

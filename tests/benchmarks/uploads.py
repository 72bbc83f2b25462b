"""One tenant uploads without end: what the quiet tenants notice of it, and what it makes of the server's memory.

Two copies of upload_app.py: one charges bodies to memory cells, one does not. Each is asked by the quiet tenants alone,
and together with the tenant that uploads; load comes from processes of their own (uploaders.py).
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from served import Application
from table import Line
from upload_app import QUOTA
from uploaders import PATIENCE, SPEED, Orders

if TYPE_CHECKING:
    from collections.abc import Callable

APP, UPLOADERS = (Path(__file__).with_name(name) for name in ("upload_app.py", "uploaders.py"))
RATE = 100.0  # quiet requests a second, all together
SECONDS, WARM_UP, START = 12.0, 1.0, 0.7
CELLS, NONE = "cells", "none"
ALONE, CHARGED, FREE = VARIANTS = ("quiet tenants alone", "one uploads, memory cells", "one uploads, no cells")
P99 = 1.2  # budget, as that of "isolation"


def uploads(rounds: int) -> list[Line]:
    """So many interleaved runs of each."""
    took: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    seen: dict[str, Counter[str]] = {name: Counter() for name in VARIANTS}
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(Application([str(APP), kind], "/ready")) for kind in (CELLS, NONE)}
        for server in servers.values():
            _run(server, WARM_UP, 0, noisy=False)
        before = {kind: _peak(server) for kind, server in servers.items()}
        order = list(VARIANTS)
        for number in range(rounds):
            random.Random(number).shuffle(order)  # noqa: S311  no secret
            for name in order:
                print(f"\r  round {number + 1} of {rounds}: {name:30s}", end="", file=sys.stderr, flush=True)
                server = servers[NONE if name is FREE else CELLS]
                quiet, counts = _run(server, SECONDS, number, noisy=name is not ALONE)
                took[name].append(sorted(quiet))
                seen[name].update(counts)
        grown = {kind: _peak(server) - before[kind] for kind, server in servers.items()}
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    return _lines(took, seen, before, grown)


def _lines(
    took: dict[str, list[list[float]]],
    seen: dict[str, Counter[str]],
    before: dict[str, float],
    grown: dict[str, float],
) -> list[Line]:
    found: list[Line] = []
    alone = _percentile(took[ALONE], 0.99)
    for name in VARIANTS:
        p50, p99 = (_percentile(took[name], share) for share in (0.50, 0.99))
        shown = f"{p50 * 1e3:.2f} / {p99 * 1e3:.2f} ms"
        if name is ALONE:
            found.append(Line(f"{name}: p50 / p99", shown))
            continue
        budget, holds = (f"<= {P99:g}", p99 / alone <= P99) if name is CHARGED else ("", None)
        found.append(Line(f"{name}: p50 / p99", shown, ALONE, f"{p99 / alone:.3f}", budget, holds))
        kind = CELLS if name is CHARGED else NONE
        peer = f"{before[kind]:.0f} MiB, quota {QUOTA / 2**20:.0f} MiB" if kind == CELLS else f"{before[kind]:.0f} MiB"
        found.append(Line("  peak RSS of the server", f"+{grown[kind]:.0f} MiB", peer))
        failed = sum(one >= PATIENCE for run in took[name] for one in run)
        uploaded = seen[name].pop("bytes", 0) / (SECONDS * len(took[name])) / 1e6
        answers = ", ".join(f"{number} x {status}" for status, number in sorted(seen[name].items()))
        found.append(Line("  quiet requests that failed", str(failed)))
        found.append(Line("  its uploads", f"{uploaded:.0f} of {SPEED / 1e6:.0f} MB/s", answers))
    return found


def _percentile(runs: list[list[float]], share: float) -> float:
    return median(one[int(len(one) * share)] for one in runs)


def _run(server: Application, seconds: float, seed: int, *, noisy: bool) -> tuple[list[float], dict[str, int]]:
    orders = Orders(server.port, time.monotonic() + START, seconds, RATE, seed)
    quiet = _start(orders)
    other = _start(Orders(server.port, orders.begin, seconds, 0.0)) if noisy else dict
    return quiet(), other()


def _start(orders: Orders) -> Callable[[], Any]:
    """Start a process; what is returned waits for its end."""
    process = subprocess.Popen(
        [sys.executable, str(UPLOADERS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(orders.text() + "\n")
    process.stdin.flush()

    def outcome() -> Any:
        text, _ = process.communicate(timeout=orders.seconds + 6 * PATIENCE)
        assert process.returncode == 0, "the load generator failed"
        return json.loads(text)

    return outcome


def _peak(server: Application) -> float:
    """Its peak resident memory in MiB."""
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**10

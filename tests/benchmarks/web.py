"""Requests per second of a FastAPI hello-world under uvicorn: with our middleware and a limit, and with one that does nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from served import Application
from table import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

HELLO, SATURATE = (Path(__file__).with_name(name) for name in ("hello.py", "saturate.py"))
NONE, NOOP, OURS = "/none", "/noop", "/ours"
TITLES = {NONE: "no middleware", NOOP: "a middleware that does nothing", OURS: "TenancyMiddleware, a tenant limit"}
CHUNK, WARM_UP = 0.5, 0.1  # seconds
PER_PROCESS = 10  # rounds, then another server process: how its memory lies makes a difference
BUDGET = 0.95


@contextmanager
def saturated() -> Generator[tuple[Application, Callable[[str, float], tuple[int, float]]]]:
    """A server, and what keeps it busy: path, seconds -> answers, seconds."""
    with Application([str(HELLO)], NONE) as server:
        arguments = [sys.executable, str(SATURATE), str(server.port)]
        client = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert client.stdin is not None
        assert client.stdout is not None
        orders, results = client.stdin, client.stdout

        def load(path: str, seconds: float) -> tuple[int, float]:
            print(json.dumps([path, seconds]), file=orders, flush=True)
            answers, took = json.loads(results.readline())
            return answers, took

        try:
            yield server, load
        finally:
            orders.close()
            client.wait(30)
            results.close()


def hello(rounds: int) -> list[Line]:
    """One uvicorn process, one event loop; each round has a chunk of each, in shuffled order."""
    rates: dict[str, list[float]] = {path: [] for path in TITLES}
    costs: dict[str, list[float]] = {path: [] for path in TITLES}
    order, rnd = list(TITLES), random.Random(1)  # noqa: S311  no secret
    done = 0
    while done < rounds:
        with saturated() as (server, load):
            for path in order:
                load(path, 5 * WARM_UP)
            for _ in range(min(PER_PROCESS, rounds - done)):
                print(f"\r  round {done} of {rounds} ", end="", file=sys.stderr, flush=True)
                done += 1
                rnd.shuffle(order)
                for path in order:
                    load(path, WARM_UP)
                    used = server.cpu()
                    answers, took = load(path, CHUNK)
                    rates[path].append(answers / took)
                    costs[path].append((server.cpu() - used) / answers)
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    return _lines(rates, costs)


def _lines(rates: dict[str, list[float]], costs: dict[str, list[float]]) -> list[Line]:
    lines: list[Line] = []
    for path, title in TITLES.items():
        shown = f"{median(rates[path]):,.0f} /s, CPU {median(costs[path]) * 1e6:,.0f} us"
        peers = {NONE: [], NOOP: [NONE], OURS: [NONE, NOOP]}[path]
        if not peers:
            lines.append(Line(title, shown))
        for peer in peers:
            rate = median(one / other for one, other in zip(rates[path], rates[peer], strict=True))
            cpu = median(other / one for one, other in zip(costs[path], costs[peer], strict=True))
            held = path == OURS and peer == NOOP
            budget, holds = (f">= {BUDGET:g}", rate >= BUDGET) if held else ("", None)
            lines.append(Line(title, shown, TITLES[peer], f"{rate:.3f}", budget, holds))
            lines.append(Line(title, shown, "  by CPU of the server", f"{cpu:.3f}"))
    return lines

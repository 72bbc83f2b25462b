"""Groups of rows: what the clients for cells cost, and what tenants notice of a cell of others that hangs."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import TYPE_CHECKING, Any

from loopback import CONTROL, PLAIN, Trips
from served import Application
from table import Line, control_line, paired_lines
from timing import measure

import bulkhead
from bulkhead.cells.cell import Cell
from bulkhead.cells.haproxy import files
from bulkhead.cells.maps import CellMap
from bulkhead.cells.router import CellRouter
from bulkhead.console.cells_serving import write
from bulkhead.testing import HttpServer, ServerProcess, ServerUnavailable
from bulkhead.testing.binaries import find_haproxy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

PROXIES, SATURATE = (Path(__file__).with_name(name) for name in ("proxies.py", "saturate.py"))
HELLO = '{"hello":"world"}'
CHUNK, WARM_UP = 0.5, 0.1  # seconds
BUDGET = 0.8
SHARE = 0.05

THREADS, RATE, SECONDS, PATIENCE = 8, 100.0, 8.0, 1.0  # of the application; arrivals a second; length; read time-out
PROTECTED: dict[str, Any] = {"tickets": 4, "error_threshold": 3, "error_timeout": 30, "success_threshold": 1}


def transport(rounds: int) -> list[Line]:
    """GET by httpx on a connection that is kept alive: to the cell's URL, and through CellTransport."""
    import httpx  # noqa: PLC0415  only for who asks for this group

    from bulkhead.cells.transport import CellTransport  # noqa: PLC0415

    with HttpServer() as server:
        router = CellRouter([Cell("one", server.url), Cell("two", server.url)])
        row = "configured, with tenant"
        clients = {
            PLAIN: (httpx.Client(), server.url + "/ok"),
            CONTROL: (httpx.Client(), server.url + "/ok"),
            row: (httpx.Client(transport=CellTransport(router, tickets=64)), "http://cell.internal/ok"),
        }
        try:
            subjects = {name: _get(*one) for name, one in clients.items()}
            wall = measure(subjects, rounds)
        finally:
            for client, _ in clients.values():
                client.close()
    both = wall, {name: subject.times_besides for name, subject in subjects.items()}
    title = "httpx GET through CellTransport"
    return [
        control_line(f"httpx GET: {CONTROL}", both, PLAIN, CONTROL),
        *paired_lines(title, both, row, (PLAIN, CONTROL), SHARE, 2000),
    ]


def _get(client: Any, url: str) -> Trips:
    return Trips(lambda: client.get(url))


class Hello(ServerProcess):
    """HAProxy that says hello, as a cell: it costs a proxy's machine least. With one thread, as the others have."""

    name = "hello"

    def __init__(self) -> None:
        super().__init__(find_haproxy(), "")

    def _command(self) -> list[str]:
        lines = ["global", "    nbthread 1", "defaults", "    mode http"]
        lines += [f"    timeout {what} 600s" for what in ("connect", "client", "server")]
        lines += ["frontend hello", f"    bind 127.0.0.1:{self.port}"]
        lines.append(f"    http-request return status 200 content-type application/json string '{HELLO}'")
        (self.folder / "hello.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [str(self.binary), "-db", "-f", str(self.folder / "hello.cfg")]

    def _ready(self) -> bool:
        return _listens(self.port)

    def cpu(self) -> float:
        """See served.Application.cpu."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


class Router(Hello):
    """HAProxy as the router, with the files of `bulkhead cells haproxy`."""

    name = "router"

    def __init__(self, cell: str) -> None:
        super().__init__()
        self._map = CellMap(CellRouter([Cell("one", cell), Cell("two", cell)]))

    def _command(self) -> list[str]:
        written = files(self._map, bind=f"127.0.0.1:{self.port}")
        written["haproxy.cfg"] = written["haproxy.cfg"].replace("global\n", "global\n    nbthread 1\n")
        write(self.folder, written)
        return [str(self.binary), "-db", "-f", str(self.folder / "haproxy.cfg")]


def _listens(port: int) -> bool:
    socket.create_connection(("127.0.0.1", port), 5).close()
    return True


class Proxies(Application):
    """proxies.py."""

    def _ready(self) -> bool:
        return _listens(self.port)


@contextmanager
def _load(port: int) -> Generator[Callable[[str], tuple[int, float]]]:
    """What keeps a server busy for a chunk: path -> answers, seconds."""
    arguments = [sys.executable, str(SATURATE), str(port)]
    client = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdin is not None
    assert client.stdout is not None
    orders, results = client.stdin, client.stdout

    def load(path: str) -> tuple[int, float]:
        for seconds in (WARM_UP, CHUNK):
            print(json.dumps([path, seconds]), file=orders, flush=True)
            answers, took = json.loads(results.readline())
        return answers, took

    try:
        yield load
    finally:
        orders.close()
        client.wait(30)
        results.close()


def proxy(rounds: int) -> list[Line]:
    """Requests a second of three proxies in front of the same cell, chunk by chunk in shuffled order."""
    try:
        hello = Hello()
    except ServerUnavailable as error:
        return [Line(f"cells serve: not measured, {error}", "")]
    with hello, Router(f"http://{hello.address}") as haproxy:
        arguments = [str(PROXIES), f"http://{hello.address}"]
        with Proxies(arguments, "") as ours, _load(ours.port) as load, _load(haproxy.port) as load_haproxy:
            subjects = {
                "bare": (lambda: load("/bare"), ours.cpu),
                "ours": (lambda: load("/ours"), ours.cpu),
                "HAProxy": (lambda: load_haproxy("/x"), haproxy.cpu),
            }
            for run, _ in subjects.values():
                run()
            rates: dict[str, list[float]] = {name: [] for name in subjects}
            costs: dict[str, list[float]] = {name: [] for name in subjects}
            order, rnd = list(subjects), random.Random(1)  # noqa: S311  no secret
            for _ in range(rounds):
                rnd.shuffle(order)
                for name in order:
                    run, cpu = subjects[name]
                    used = cpu()
                    answers, took = run()
                    rates[name].append(answers / took)
                    costs[name].append((cpu() - used) / (answers * (1 + WARM_UP / CHUNK)))
    return _rates(rates, costs)


def _rates(rates: dict[str, list[float]], costs: dict[str, list[float]]) -> list[Line]:
    titles = {"bare": "a pass-through proxy of a few lines", "ours": "cells serve", "HAProxy": "HAProxy, one thread"}
    lines: list[Line] = []
    for name, title in titles.items():
        shown = f"{median(rates[name]):,.0f} /s, CPU {median(costs[name]) * 1e6:,.0f} us"
        if name == "bare":
            lines.append(Line(title, shown))
            continue
        rate = median(one / other for one, other in zip(rates[name], rates["bare"], strict=True))
        cpu = median(other / one for one, other in zip(costs[name], costs["bare"], strict=True))
        budget, holds = (f">= {BUDGET:g}", rate >= BUDGET) if name == "ours" else ("", None)
        lines.append(Line(title, shown, titles["bare"], f"{rate:.3f}", budget, holds))
        lines.append(Line(title, shown, "  by CPU of the server", f"{cpu:.3f}"))
    return lines


def one_hangs(rounds: int) -> list[Line]:
    """An application of eight threads whose tenants are in two cells; one cell hangs. What the other's tenants notice."""
    runs: dict[str, list[tuple[float, float]]] = {}
    with HttpServer() as well, HttpServer() as sick:
        router = CellRouter([Cell("well", well.url), Cell("sick", sick.url)])
        for _ in range(rounds):
            for name, hangs, options in (
                ("both cells well", False, PROTECTED),
                ("one hangs, a resource for each cell", True, PROTECTED),
                ("one hangs, no protection", True, {"mode": "off"}),
            ):
                print(f"\r  {name:50s}", end="", file=sys.stderr, flush=True)
                if hangs:
                    sick.pause()
                try:
                    runs.setdefault(name, []).append(_run(router, options))
                finally:
                    sick.resume()
                    for identifier in ("cell:well", "cell:sick"):
                        bulkhead.unregister(identifier)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    first = next(iter(runs))
    lines = []
    for name, those in runs.items():
        p50, p99 = (median(one[index] for one in those) for index in (0, 1))
        ratio = "" if name == first else f"{p99 / median(one[1] for one in runs[first]):.2f}"
        shown = f"{p50 * 1000:,.1f} / {p99 * 1000:,.1f} ms"
        lines.append(Line(f"{name}: p50 / p99", shown, "" if name == first else first, ratio))
    return lines


def _run(router: CellRouter, options: dict[str, Any]) -> tuple[float, float]:
    """p50 and p99 of the tenants of the cell that is well, from a request's arrival to its answer."""
    import httpx  # noqa: PLC0415

    from bulkhead.cells.transport import CellTransport  # noqa: PLC0415

    arrivals: SimpleQueue[tuple[float, str] | None] = SimpleQueue()
    took: list[float] = []
    tenants = [f"tenant-{number}" for number in range(40)]
    well = {one for one in tenants if router.for_tenant(one).name == "well"}
    inner = httpx.HTTPTransport(limits=httpx.Limits(max_connections=None))
    with httpx.Client(transport=CellTransport(router, transport=inner, **options), timeout=PATIENCE) as client:

        def work() -> None:
            while (asked := arrivals.get()) is not None:
                at, tenant = asked
                try:
                    client.get("http://cell.internal/slow?seconds=0.01", extensions={"tenant": tenant})
                except httpx.HTTPError:
                    pass
                if tenant in well:
                    took.append(time.monotonic() - at)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for one in threads:
            one.start()
        rnd, at = random.Random(1), time.monotonic()  # noqa: S311  no secret
        end = at + SECONDS
        while at < end:
            at += rnd.expovariate(RATE)
            time.sleep(max(0.0, at - time.monotonic()))
            arrivals.put((at, rnd.choice(tenants)))
        for _ in threads:
            arrivals.put(None)
        for one in threads:
            one.join()
    took.sort()
    return took[len(took) // 2], took[int(len(took) * 0.99)]


def cells(rounds: int) -> list[Line]:
    """All of it: rounds of the transport; a tenth for the proxies, a hundredth for the cell that hangs."""
    return [*transport(rounds), *proxy(max(3, rounds // 10)), *one_hangs(max(1, rounds // 200))]

"""A process in which everything happened that is measured, scraped: as one process, and as one of several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scrapes import Scrape

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
MODES = ("one process", "several processes")

STORY = """
import contextlib, logging, os, sys, threading, time
sys.path.insert(0, "tests")
import bulkhead
from bulkhead import connections, jobs, memory, metrics
from bulkhead.adapter import Options
from bulkhead.outcomes import DIRECT
from bulkhead.registry import registered
from prometheus_client import CollectorRegistry, generate_latest
from scrapes import Scrape
from stories import circuit, fail, hold, refused, succeed

logging.getLogger("bulkhead").addHandler(logging.NullHandler())
own = CollectorRegistry()
metric = metrics.register(own, call_seconds=True)

# calls of each outcome; an open circuit, and a half-open one
ok = bulkhead.resource("ok", **circuit(5), tickets=4, tenant_tickets=2)
succeed(ok)
fail(ok)
fail(ok, error=KeyboardInterrupt())
down = bulkhead.resource("down", **circuit(1, 600))
fail(down)
refused(bulkhead.CircuitOpenError, down)
trying = bulkhead.resource("trying", **circuit(1, 0.1, 50))
fail(trying)
while trying.state != "half_open":  # a probe that takes longer than the 0.1 s opens it again
    time.sleep(0.11)
    succeed(trying)
assert (down.state, trying.state) == ("open", "half_open")

# no ticket: of the tenant, of the resource; of requests and of connections
held = [hold(ok, "a"), hold(ok, "a")]
refused(bulkhead.ResourceBusyError, ok, "a")
held += [hold(ok, "b"), hold(ok, "b")]
refused(bulkhead.ResourceBusyError, ok, "c")
for identifier in ("server:requests", "server:websockets"):
    edge = registered(Options(identifier=identifier, tickets=9, tenant_tickets=1, circuit_breaker=False), "call", "x")
    held.append(hold(edge, "a"))
    refused(bulkhead.ResourceBusyError, edge, "a")
connections.set_limit(1)
with bulkhead.tenant("a"):
    held.append(connections.checkout(DIRECT))
    with contextlib.suppress(bulkhead.ResourceBusyError):
        connections.checkout(DIRECT)

# memory: a charge that is held, and one for which there is no room
memory.cells.configure(quota_bytes=100)
charge = memory.cells.get_or_create("a").charge(60)
with contextlib.suppress(bulkhead.QuotaExceeded):
    memory.cells.get_or_create("a").charge(41)

# jobs: each outcome but "returned"; of an unknown name, delayed, refused
def works():
    pass

def fails():
    raise ValueError

works, fails = jobs.job("mail")(works), jobs.job("mail", max_attempts=2)(fails)
runner = jobs.Runner(workers=1, chance=lambda: 0.0, max_backlog_per_tenant=1)
runner.start()
works.options(tenant="a").enqueue()
fails.enqueue()
assert runner.drain(timeout=20)
runner.resume()
runner.pause("a")
works.options(tenant="a").enqueue()
with contextlib.suppress(jobs.BacklogFull):
    works.options(tenant="a").enqueue()
works.enqueue_in(1000)
jobs.named("nobody's").enqueue()

# nobody's call; what would have been refused; a wait
strict = bulkhead.resource("strict", tickets=1)
bulkhead.unknown_tenant("reject")
refused(bulkhead.UnknownTenantError, strict)
bulkhead.unknown_tenant("allow")
shadow = bulkhead.resource("shadow", tickets=1, mode="shadow", tenant_tickets=1, **circuit(5))
held.append(hold(shadow, "a"))
succeed(shadow, "a")
succeed(shadow, "b")
shadow.open()
succeed(shadow, "c")
waiting = bulkhead.resource("waiting", tickets=1, timeout=30)
first = hold(waiting)
waiter = threading.Thread(target=succeed, args=(waiting,))
waiter.start()
while not waiting.queue.lines:
    time.sleep(0.001)
first.end()
waiter.join()

# identifiers that come and go, and too many at a time
bulkhead.defaults(maximum_lru_size=0, minimum_lru_time=0, maximum_resources=10)
for number in range(30):
    succeed(bulkhead.resource(f"made-up-{number}", tickets=1))
busy = [hold(bulkhead.resource(f"busy-{number}", tickets=1)) for number in range(14)]
assert bulkhead.find("call:(overflow)"), "some of them share one"

if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    metric.write()
    print(Scrape.of_folder(os.environ["PROMETHEUS_MULTIPROC_DIR"]).text)
else:
    print(generate_latest(own).decode())
runner.stop()
"""


@pytest.fixture(scope="session")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Scrape]:
    """The scrape of a mode; each is made once."""
    made: dict[str, Scrape] = {}

    def of(mode: str) -> Scrape:
        if mode not in made:
            environment = {name: value for name, value in os.environ.items() if name != "PROMETHEUS_MULTIPROC_DIR"}
            if mode == "several processes":
                environment["PROMETHEUS_MULTIPROC_DIR"] = str(tmp_path_factory.mktemp("metrics"))
            done = subprocess.run(
                [sys.executable, "-c", STORY],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=50,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            made[mode] = Scrape(done.stdout)
        return made[mode]

    return of


@pytest.fixture(params=MODES)
def scrape(scrapes: Callable[[str], Scrape], request: pytest.FixtureRequest) -> Scrape:
    """A real scrape, once in each mode."""
    mode: str = request.param
    return scrapes(mode)


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT

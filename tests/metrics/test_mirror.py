"""Several processes: what is written to the files of Prometheus' client, when, by whom, and what never happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest
from scrapes import Scrape

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from conftest import RunPython

START = """
import logging, os, sys, threading, time
sys.path.insert(0, "tests")
import bulkhead
from bulkhead import metrics
from prometheus_client import CollectorRegistry, REGISTRY
from scrapes import Scrape
from stories import circuit, fail, hold, refused, succeed

folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
mirror = metrics.register()


def scrape():
    return Scrape.of_folder(folder)


def threads():
    return sorted(thread.name for thread in threading.enumerate())


def until(so, seconds=20):
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, "not so"
        time.sleep(0.01)


def in_child(run):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            run()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    return pid


def successes(identifier):
    return scrape().value("bulkhead_calls_total", identifier=identifier, outcome="success")
"""


class RunWorker(Protocol):
    """Runs a story in an interpreter of its own that is one of several processes."""

    def __call__(self, story: str, *, start: str = START, check: bool = True) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "metrics"
    made.mkdir()
    return made


@pytest.fixture
def run_worker(run_python: RunPython, folder: Path) -> RunWorker:
    def run(story: str, *, start: str = START, check: bool = True) -> subprocess.CompletedProcess[str]:
        # Warnings are errors: Python 3.12 warns of a fork where there are threads.
        source = "import warnings\nwarnings.simplefilter('error')\n" + start + story
        return run_python(source, seconds=50, env={"PROMETHEUS_MULTIPROC_DIR": str(folder)}, check=check)

    return run


def test_a_process_writes_from_its_first_call_on_and_once_more_at_its_end(run_worker: RunWorker, folder: Path) -> None:
    run_worker("""
one = bulkhead.resource("one", tickets=2, **circuit(5))
assert threads() == ["MainThread"], "nothing begins before the first call"
held = hold(one)
assert threads() == ["MainThread", "bulkhead-metrics"]
assert not bulkhead.events.anybody()
until(lambda: os.listdir(folder) and scrape().value("bulkhead_tickets_in_use", identifier="call:one") == 1)
held.end()
succeed(one)
assert one.fast, "calls are as fast as ever"
until(lambda: successes("call:one") == 2)
for _ in range(5):
    succeed(one)
hold(one).fail(OSError("the last one"))
left_behind = hold(one)
""")
    last = Scrape.of_folder(folder)
    assert last.value("bulkhead_calls_total", identifier="call:one", outcome="success") == 7
    assert last.value("bulkhead_calls_total", identifier="call:one", outcome="failure") == 1
    for gauge in ("bulkhead_tickets_in_use", "bulkhead_tickets_limit", "bulkhead_circuit_state"):
        assert last.value(gauge) == 0, gauge


def test_whoever_forks_has_no_thread_at_that_moment_and_parent_and_child_go_on(run_worker: RunWorker) -> None:
    """Known faults 36 and 93: no lock of Prometheus' client is taken in the child, and it counts from 0."""
    run_worker("""
one = bulkhead.resource("one", tickets=2)
for _ in range(3):
    succeed(one)
seen = []
os.register_at_fork(before=lambda: seen.append(threads()))  # runs before ours: the last registered is the first


def child():
    assert threads() == ["MainThread"]
    succeed(one)
    assert threads() == ["MainThread", "bulkhead-metrics"]
    until(lambda: scrape().value("bulkhead_tickets_limit", identifier="call:one") == 4)
    for _ in range(9):
        succeed(one)
    mirror.close()


in_child(child)
assert successes("call:one") == 13
assert threads() == ["MainThread"]
assert scrape().value("bulkhead_tickets_limit", identifier="call:one") == 2
succeed(one)
assert threads() == ["MainThread", "bulkhead-metrics"]
until(lambda: successes("call:one") == 14)


def idle():
    pass


before = len(os.listdir(folder))
in_child(idle)
assert len(os.listdir(folder)) == before, "a child without a guarded call leaves no files"
succeed(one)
until(lambda: successes("call:one") == 15)
""")


def test_a_fork_in_the_middle_of_a_long_first_writing_waits_for_no_end_of_it(run_worker: RunWorker) -> None:
    """Else it forked while the thread held a lock of Prometheus' client, and the child stood still."""
    before_ours = "import os\nseen = []\nos.register_at_fork(before=lambda: seen.append(threads()))\n"
    story = """
bulkhead.defaults(maximum_lru_size=10_000)
several = [bulkhead.resource(f"one {number}", tickets=2) for number in range(9_000)]
mirror.before_fork()  # no thread yet
for one in several:
    succeed(one)
mirror.after_in_parent()
succeed(several[0])
until(lambda: mirror._seen)


def idle():
    assert threads() == ["MainThread"]


in_child(idle)
assert seen == [["MainThread"]]
known = sum(bool(numbers) for numbers in mirror._seen.values())
assert known < len(several), "the thread was in the middle of it"
mirror.write()
mirror.write()
assert scrape().value("bulkhead_calls_total", outcome="success") == len(several) + 1, "the rest, each once"
sys.stderr.flush()
os._exit(0)
"""
    run_worker(story, start=before_ours + START)


def test_threads_that_fork_at_once_all_find_no_thread(run_worker: RunWorker) -> None:
    run_worker("""
one = bulkhead.resource("one", tickets=50)
succeed(one)
mirror.before_fork()  # a fork by one thread, not ended yet
in_child(lambda: None)  # and one by another
succeed(one)
assert threads() == ["MainThread"], "the first one is still under way"
mirror.after_in_parent()
succeed(one)
assert threads() == ["MainThread", "bulkhead-metrics"]
""")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_writes_at_its_end(run_python: RunPython, tmp_path: Path, method: str) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import multiprocessing
import bulkhead
from bulkhead import metrics

metrics.register()
one = bulkhead.resource("one", tickets=2)


def work():
    for _ in range(5):
        with one.permit():
            pass


if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    processes = [multiprocessing.Process(target=work) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
""",
        encoding="utf-8",
    )
    source = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    if method == "spawn":  # which imports the main module by its file
        source = f"import subprocess, sys; subprocess.run([sys.executable, {str(program)!r}], check=True)"
    run_python(source, seconds=50, env={"PROMETHEUS_MULTIPROC_DIR": str(folder), "PYTHONPATH": "."})
    last = Scrape.of_folder(folder)
    assert last.value("bulkhead_calls_total", identifier="call:one", outcome="success") == 10
    assert last.value("bulkhead_tickets_limit", identifier="call:one") == 0


def test_counters_never_go_back_when_resources_go(run_worker: RunWorker) -> None:
    """Eviction and return, unregister, reset: each call is counted once, under the name that it was made by."""
    run_worker("""
bulkhead.defaults(maximum_lru_size=0, minimum_lru_time=0)
last = {}


def grown():
    mirror.write()
    for sample in scrape().samples:
        if sample.name.endswith(("_total", "_count", "_sum")):
            key = sample.name, *sorted(sample.labels.items())
            assert sample.value >= last.get(key, 0), (key, last[key], sample.value)
            last[key] = sample.value


for turn in range(60):
    for number in range(8):
        one = bulkhead.resource(f"r{number}", tickets=1, tenant_tickets=1)
        succeed(one)
        held = hold(one, "a")
        refused(bulkhead.Rejected, one, "a")
        held.end()
        if turn % 7 == number:
            one.reset()
        if turn % 11 == number:
            bulkhead.unregister(one.identifier)
        del one, held
        if (turn + number) % 5 == 0:
            grown()
grown()
assert len(bulkhead.resources()) < 8
for number in range(8):
    assert successes(f"call:r{number}") == 120
    assert scrape().value("bulkhead_rejections_total", identifier=f"call:r{number}", reason="tenant") == 60
assert scrape().value("bulkhead_tenant_rejections_total", kind="db") == 480
limits = {s.labels["identifier"]: s.value for s in scrape().samples if s.name == "bulkhead_tickets_limit"}
assert {name for name, limit in limits.items() if limit} == set(bulkhead.resources()), "those that went have 0"
assert not set(mirror._seen) - set(bulkhead.resources()), "and nothing is remembered of them"
""")


def test_labels_are_bounded_and_later_identifiers_share_one(run_worker: RunWorker) -> None:
    """Known fault 55, for monitoring."""
    run_worker(
        """
bulkhead.defaults(maximum_lru_size=0, minimum_lru_time=0, maximum_resources=5)
for number in range(40):
    succeed(bulkhead.resource(f"made-up-{number}", tickets=3))
    mirror.write()
found = scrape()
assert len(found.values_of("bulkhead_calls_total", "identifier")) == 6
assert found.value("bulkhead_calls_total", identifier="(other)", outcome="success") == 35
assert found.value("bulkhead_calls_total", outcome="success") == 40
assert found.value("bulkhead_tickets_limit") == 3 * len(bulkhead.resources())
assert len(found.values_of("bulkhead_call_seconds_count", "identifier")) == 6
assert found.value("bulkhead_call_seconds_count", identifier="(other)") == 35
""",
        start=START.replace("metrics.register()", "metrics.register(call_seconds=True)"),
    )


def test_waits_and_limits_that_are_no_resource_are_written_too(run_worker: RunWorker) -> None:
    run_worker("""
from bulkhead import connections
from bulkhead.adapter import Site
from bulkhead.outcomes import DIRECT

one = bulkhead.resource("one", tickets=1, timeout=20)
held = hold(one)
waiter = threading.Thread(target=succeed, args=(one,))
waiter.start()
until(lambda: one.queue.lines)
held.end()
waiter.join()
connections.set_limit(1)
with bulkhead.tenant("a"):
    out = connections.checkout(DIRECT)
    for _ in range(3):
        try:
            connections.checkout(DIRECT)
        except bulkhead.ResourceBusyError as error:
            assert error.limit == "connections"
mirror.write()
found = scrape()
assert found.value("bulkhead_wait_seconds_count", identifier="call:one") == 1
assert 0 < found.value("bulkhead_wait_seconds_sum", identifier="call:one") < 20
assert found.value("bulkhead_rejections_total", identifier="server:connections", reason="connections") == 3
assert found.value("bulkhead_tenant_rejections_total", kind="db") == 3
""")


def test_registering_again_is_harmless_and_another_registry_shows_the_same(run_worker: RunWorker) -> None:
    run_worker("""
own = CollectorRegistry()
assert metrics.register() is mirror
assert metrics.register(own) is mirror
assert metrics.register(own) is mirror
succeed(bulkhead.resource("one", tickets=1))
mirror.write()
sample = "bulkhead_calls_total", {"identifier": "call:one", "outcome": "success"}
assert own.get_sample_value(*sample) == REGISTRY.get_sample_value(*sample) == 1
""")


def test_a_folder_that_is_not_there_is_said_at_once(run_worker: RunWorker, folder: Path) -> None:
    folder.rmdir()
    done = run_worker("", check=False)
    assert "ConfigurationError: PROMETHEUS_MULTIPROC_DIR=" in done.stderr
    assert "make it, empty, before the server starts" in done.stderr


def test_a_folder_that_goes_is_said_once_and_calls_go_on(run_worker: RunWorker, folder: Path) -> None:
    done = run_worker("""
import shutil
one = bulkhead.resource("one", tickets=1)
shutil.rmtree(folder)
logging.basicConfig()
succeed(one)
for _ in range(3):
    mirror._try_to_write()
succeed(one)
""")
    assert done.stderr.count("metrics could not be written to") == 1


def test_the_mode_that_was_chosen_too_late_is_said(run_python: RunPython) -> None:
    done = run_python("""
import logging, os
os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
import prometheus_client
os.environ["PROMETHEUS_MULTIPROC_DIR"] = "somewhere"
from bulkhead import metrics
logging.basicConfig()
assert type(metrics.register()) is metrics.BulkheadCollector
""")
    assert "was set after prometheus_client was imported" in done.stderr

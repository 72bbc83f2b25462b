"""Jobs that fork: in the child no runner is, and what happens to the child is no business of the runner's."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import RunPython

WORKER = """
import asyncio, multiprocessing, os, signal, sys, time, warnings
warnings.simplefilter("ignore")
from bulkhead.jobs import AsyncRunner, Runner, job
context = multiprocessing.get_context("fork")
signal.signal(signal.SIGINT, signal.default_int_handler)  # also below a test run that ignores it

hear, tell = os.pipe()

def child():
    os.write(tell, b"!")
    time.sleep(1000)

def run(kind):
    runner = (Runner if kind == "threads" else AsyncRunner)(workers=1, grace_secs=20)
    forks.options(runner=runner).enqueue()
    report = runner.run() if kind == "threads" else asyncio.run(runner.run())
    print("ended", report.running, flush=True)
"""


def test_a_child_that_a_job_forks_is_told_that_no_runner_is_there(run_python: RunPython) -> None:
    """It was taken by the job's own runner, which in the child nobody started."""
    told = run_python(
        """
import os, warnings
warnings.simplefilter("ignore")
from contextvars import copy_context
from bulkhead.errors import ConfigurationError
from bulkhead.jobs import Runner, job

@job(name="inner")
def inner(): ...

@job(name="forks", max_attempts=1)
def forks():
    context = copy_context()
    pid = os.fork()
    if pid == 0:
        said = []
        for enqueue in (inner.enqueue, lambda: context.run(inner.enqueue)):
            try:
                enqueue()
            except ConfigurationError as error:
                said.append("no runner is started" in str(error))
        os._exit(said == [True, True])
    print(os.waitpid(pid, 0)[1] >> 8, flush=True)
    inner.enqueue()

with Runner(workers=1) as runner:
    forks.enqueue()
    assert runner.drain(timeout=20)
print(runner.stats().finished["success"])
"""
    )
    assert told.stdout.split() == ["1", "2"]


@pytest.mark.parametrize(
    ("kind", "number", "when"),
    [
        *((kind, signal.SIGTERM, when) for kind in ("threads", "tasks") for when in ("at once", "later")),
        ("threads", signal.SIGINT, "later"),  # in a child of asyncio.run the first one is asyncio's
    ],
)
def test_a_signal_to_a_child_that_a_job_forked_ends_the_child_and_not_the_runner(
    kind: str, number: signal.Signals, when: str, run_python: RunPython
) -> None:
    """As every pool of multiprocessing ends: its children are sent SIGTERM. They had the handlers of `run`."""
    told = run_python(
        f"""{WORKER}
@job(name="forks", max_attempts=1)
def forks():
    process = context.Process(target=child)
    process.start()
    if {when!r} == "later":
        os.read(hear, 1)
    for _ in range(40):  # one that comes between two sleeps is not heard by a child of a thread (3.13)
        os.kill(process.pid, {int(number)})
        process.join(0.5)
        if not process.is_alive():
            break
    process.kill()
    print(process.exitcode in (-signal.SIGTERM, 1), flush=True)  # 1: by KeyboardInterrupt
    after.enqueue()

@job(name="after")
def after():
    print("goes on", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

run({kind!r})
"""
    )
    assert told.stdout.splitlines()[:2] == ["True", "goes on"]


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_child_that_goes_on_does_not_keep_its_worker_from_ending(kind: str, run_python: RunPython) -> None:
    told = run_python(
        f"""{WORKER}
@job(name="forks", max_attempts=1)
def forks():
    global process
    process = context.Process(target=child)
    process.start()
    os.kill(os.getpid(), signal.SIGTERM)

run({kind!r})
print(process.is_alive())
process.kill()
"""
    )
    assert told.stdout.splitlines() == ["ended []", "True"]

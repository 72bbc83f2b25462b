"""A worker process and its end: signals, forks, and threads that hang."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bulkhead
from bulkhead.jobs import Runner

if TYPE_CHECKING:
    from conftest import RunPython

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.anyio

PROCESS = """
import asyncio, os, signal, sys, threading, time
from bulkhead.jobs import AsyncRunner, Runner, job
signal.signal(signal.SIGTERM, lambda *_: None)  # one too many may come when it has ended

kind, how = sys.argv[1:]

@job(name="quick")
async def quick():
    await asyncio.sleep(0.05 if how == "grace" else 1000)

@job(name="waits")
async def waits():
    pass

runner = (Runner if kind == "threads" else AsyncRunner)(workers=1, grace_secs=1000)
quick.options(runner=runner).enqueue()
waits.options(runner=runner).enqueue_in(1000)

def told():
    while not runner.stats().running:
        time.sleep(0.005)
    print("ready", flush=True)

threading.Thread(target=told, daemon=True).start()
report = runner.run() if kind == "threads" else asyncio.run(runner.run())
print(report.finished, sorted(record.name for record in report.returned), report.running, flush=True)
if how == "hurry":
    os._exit(0)  # an interpreter that ends takes the handlers off, and one signal too many may come
"""


@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize(("how", "says"), [("grace", "1 ['waits'] []"), ("hurry", "0 ['quick', 'waits'] []")])
def test_a_worker_process_ends_on_sigterm_and_a_second_one_ends_the_grace(kind: str, how: str, says: str) -> None:
    command = [sys.executable, "-c", PROCESS, kind, how]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        if how == "hurry":
            for _ in range(200):  # the first one has to be heard before the second can be
                try:
                    process.wait(0.1)
                    break
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert out.strip() == says
        assert process.returncode == 0


def test_run_restores_the_handlers_of_signals(run_python: RunPython) -> None:
    told = run_python(
        """
import os, signal, threading, time
import asyncio
from bulkhead.jobs import AsyncRunner, Runner
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append("mine"))

def end(runner):
    while runner._state != "started":
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

for runner in (Runner(workers=1), AsyncRunner(workers=1)):
    threading.Thread(target=end, args=(runner,), daemon=True).start()
    asyncio.run(runner.run()) if isinstance(runner, AsyncRunner) else runner.run()
    os.kill(os.getpid(), signal.SIGTERM)
print(heard)
"""
    )
    assert told.stdout.strip() == "['mine', 'mine']"


async def test_run_is_for_the_main_thread() -> None:
    with pytest.raises(bulkhead.ConfigurationError, match="in the main thread only"):
        await asyncio.to_thread(Runner().run)


def test_in_a_forked_child_nothing_runs_and_enqueue_says_so(run_python: RunPython) -> None:
    """Known fault 36: the lock that another thread holds at the fork is free in the child."""
    run_python(
        """
import os, signal, sys, threading, traceback, warnings
warnings.simplefilter("ignore")
import bulkhead
from bulkhead.jobs import Runner, job

seen = []

@job()
def work(): seen.append(os.getpid())

runner = Runner(workers=2).start()
runner.pause(None)
work.enqueue()
stop, ready = threading.Event(), threading.Event()

def holder():
    with runner._backend._lock:
        ready.set()
        stop.wait(20)

thread = threading.Thread(target=holder)
thread.start()
ready.wait()
pid = os.fork()
if pid == 0:
    code = 1
    try:
        signal.alarm(20)
        assert runner.stats().waiting == 0
        try:
            work.enqueue()
        except bulkhead.ConfigurationError as error:
            assert "no runner is started" in str(error)
        else:
            raise AssertionError
        with runner:
            work.enqueue()
            assert runner.drain(timeout=15)
        assert seen == [os.getpid()]
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
stop.set()
thread.join()
assert runner.stats().waiting == 1
runner.resume(None)
assert runner.drain(timeout=15)
assert seen == [os.getpid()]
runner.stop()
"""
    )


def test_importing_jobs_starts_no_thread(run_python: RunPython) -> None:
    told = run_python("import threading, bulkhead.jobs as j; j.Runner(); print(threading.active_count())")
    assert told.stdout.strip() == "1"


def test_a_process_whose_job_hangs_in_a_thread_can_end(run_python: RunPython) -> None:
    told = run_python(
        """
import threading
from bulkhead.jobs import Runner, job

@job(name="hangs")
def hangs(): threading.Event().wait()

with Runner(workers=1, grace_secs=0.05) as runner:
    hangs.enqueue()
    while not runner.stats().running: pass
print([record.name for record in runner.report.running])
"""
    )
    assert told.stdout.strip() == "['hangs']"

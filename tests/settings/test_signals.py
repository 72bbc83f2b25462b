"""SIGHUP and fork, each in a process of its own: nothing waits in a signal handler, nothing is lost in a child."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import bulkhead
from bulkhead import settings

if TYPE_CHECKING:
    from conftest import RunPython
    from settings.conftest import Write

START = """
import logging, os, signal, sys, threading, time
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
from pathlib import Path
from bulkhead import settings

file = Path(sys.argv[1])

def write(number):
    new = file.with_name("new")
    new.write_text(f"[server]\\nmax_concurrent_requests = {number}\\n")
    new.replace(file)

def now():
    return settings.current().server.max_concurrent_requests

def until(predicate, seconds=30):
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, (predicate, now())
        time.sleep(0.01)

def hang_up():
    os.kill(os.getpid(), signal.SIGHUP)

write(1)
settings.load(file)
"""


@pytest.fixture
def run(run_python: RunPython, write: Write) -> object:
    path = write("")

    def with_start(source: str) -> list[str]:
        return run_python(START + source, str(path), seconds=55).stdout.splitlines()

    return with_start


def test_sighup_reloads_and_a_bad_file_keeps_the_old_settings(run: Run) -> None:
    told = run("""
settings.reload_on_sighup()
write(2)
hang_up()
until(lambda: now() == 2)
said = threading.Event()
class Seen(logging.Handler):
    def emit(self, record):
        said.set()
logging.getLogger().addHandler(Seen())  # the last one: what the first one writes is written
write('"many"')
hang_up()
assert said.wait(30)
print(now())
""")
    assert "ERROR [BULKHEAD] settings_refused" in told[0]
    assert "server.max_concurrent_requests" in told[0]
    assert told[1:] == ["2"]


def test_a_handler_from_before_is_called_too_and_setting_ours_twice_is_once(run: Run) -> None:
    assert run("""
calls = []
signal.signal(signal.SIGHUP, lambda number, frame: calls.append(number))
settings.reload_on_sighup()
settings.reload_on_sighup()
write(2)
hang_up()
until(lambda: now() == 2)
print(calls == [signal.SIGHUP])
later = signal.getsignal(signal.SIGHUP)
signal.signal(signal.SIGHUP, lambda number, frame: later(number, frame))
settings.reload_on_sighup()
write(3)
hang_up()
until(lambda: now() == 3)
print(len(calls))
""") == ["True", "2"]


@pytest.mark.parametrize("before", ["SIG_IGN", "SIG_DFL"])
def test_a_disposition_that_is_no_function_is_replaced(run: Run, before: str) -> None:
    assert run(f"""
signal.signal(signal.SIGHUP, signal.{before})
settings.reload_on_sighup()
write(2)
hang_up()
until(lambda: now() == 2)
print("alive")
""") == ["alive"]


def test_a_signal_in_the_middle_of_a_reload_waits_for_no_lock(run: Run) -> None:
    """The main thread holds every lock that a reload takes, and a log handler's, when the signal comes."""
    assert run("""
settings.reload_on_sighup()
from bulkhead.settings.live import live
handler = logging.getLogger().handlers[0]
with live._turn, live._lock, handler.lock:
    write(2)
    for _ in range(1000):
        hang_up()
    print(now(), threading.active_count() + len(sys._current_frames()) < 10)
until(lambda: now() == 2)
print("told")
""") == ["1 True", "told"]


def test_signals_in_a_storm_end_with_the_newest_settings(run: Run) -> None:
    assert run("""
settings.reload_on_sighup()
over = False
def churn():
    while not over:
        try:
            settings.reload()
        except ValueError:
            pass
threads = [threading.Thread(target=churn) for _ in range(2)]
for one in threads:
    one.start()
for number in range(2, 200):
    write(number)
    hang_up()
over = True
for one in threads:
    one.join()
write(777)
hang_up()
until(lambda: now() == 777)
print("newest")
""") == ["newest"]


def test_a_forked_child_reloads_by_itself(run: Run) -> None:
    """Forked while another thread is in the middle of a reload and holds the locks."""
    assert run("""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of fork in a process with threads
settings.reload_on_sighup()
from bulkhead.settings.live import live
holding, leave = threading.Event(), threading.Event()
def hold():
    with live._turn, live._lock:
        holding.set()
        leave.wait()
threading.Thread(target=hold, daemon=True).start()
holding.wait()
child = os.fork()
if child == 0:
    try:
        assert now() == 1
        write(2)
        hang_up()
        until(lambda: now() == 2)
        write(3)
        assert settings.reload().server.max_concurrent_requests == 3
        print("child", flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
leave.set()
print("parent", now())
""") == ["child", "parent 1"]


def test_a_fork_waits_until_settings_in_force_are_followed(run: Run) -> None:
    """Forked while another thread tells of a change, and a second one waits: a child has no thread to go on with it."""
    assert run("""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
import bulkhead
def limit(number):
    file.write_text(f"[resources.one]\\ntickets = {number}\\n")
limit(1)
settings.load(file)
one = bulkhead.resource("one")
telling, forking = threading.Event(), threading.Event()
def follow(settings):
    telling.set()
    assert forking.wait(30)
settings.on_change(follow)
limit(2)
teller = threading.Thread(target=settings.reload)
teller.start()
assert telling.wait(30)
limit(3)
settings.reload()
assert (settings.current().resources["one"].tickets, one.limit) == (3, 2)
os.register_at_fork(before=forking.set)  # called first
child = os.fork()
if child == 0:
    print("child", one.limit, flush=True)
    os._exit(0)
os.waitpid(child, 0)
teller.join()
print("parent", one.limit)
""") == ["child 3", "parent 3"]


def test_a_follower_that_does_not_end_does_not_keep_a_process_from_forking(run: Run) -> None:
    assert run("""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
import bulkhead
def limit(number):
    file.write_text(f"[resources.one]\\ntickets = {number}\\n")
limit(1)
settings.load(file)
one = bulkhead.resource("one")
telling, leave = threading.Event(), threading.Event()
def follow(settings):
    telling.set()
    leave.wait()
following = settings.on_change(follow)
limit(2)
threading.Thread(target=settings.reload, daemon=True).start()
assert telling.wait(30)
limit(3)
settings.reload()
child = os.fork()
if child == 0:
    following.cancel()
    settings.reload()
    print("child", one.limit, flush=True)
    os._exit(0)
os.waitpid(child, 0)
leave.set()
until(lambda: one.limit == 3)
print("parent", one.limit)
""") == ["child 3", "parent 3"]


def test_a_follower_may_fork(run: Run) -> None:
    assert run("""
def follow(now):
    child = os.fork()
    if child == 0:
        print("child", now.server.max_concurrent_requests, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
settings.on_change(follow)
write(2)
began = time.monotonic()
settings.reload()
assert time.monotonic() - began < 5, "it does not wait for itself"
""") == ["child 2"]


def test_outside_the_main_thread_no_handler_can_be_set(run: Run) -> None:
    assert run("""
def set_it():
    try:
        settings.reload_on_sighup()
    except ValueError as error:
        print(error)
before = signal.getsignal(signal.SIGHUP)  # under nohup it is ignored
thread = threading.Thread(target=set_it)
thread.start()
thread.join()
print(signal.getsignal(signal.SIGHUP) == before)
""") == ["reload_on_sighup() must be called in the main thread: Python sets handlers there only", "True"]


def test_a_file_that_cannot_be_used_is_an_error_at_once(write: Write) -> None:
    write("[servr]\n")
    with pytest.raises(bulkhead.ConfigurationError, match="servr"):
        settings.reload_on_sighup()


if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[str], list[str]]

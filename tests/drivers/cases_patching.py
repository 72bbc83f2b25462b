"""Shared cases in fresh interpreters: what is patched and restored, import orders, fork, KeyboardInterrupt."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import RunPython
    from drivers.harness import Harness

HEAD = "import sys\naddress = sys.argv[1]\n"
REFUSED = """
import bulkhead
client = make(**bulkhead.options(name="fresh", tickets=1))
assert call(client) == call(client)
bulkhead.find(KIND + ":fresh").open()
try:
    call(client)
except bulkhead.CircuitOpenError:
    print("refused")
"""
LOOK_UP = """
import importlib
def found(path):
    module, _, rest = path.partition(":")
    owner, _, attribute = rest.rpartition(".")
    target = importlib.import_module(module)
    for part in filter(None, owner.split(".")):
        target = getattr(target, part)
    return target, attribute
def held(path):
    target, attribute = found(path)
    return vars(target).get(attribute)
"""


class PatchingCases:
    """Run through `DriverSuite`."""

    @pytest.mark.parametrize("order", ["adapter, driver", "driver, adapter", "install()", "one adapter, late", "twice"])
    def test_the_order_of_imports_does_not_matter(
        self, harness_type: type[Harness], server: object, run_python: RunPython, order: str
    ) -> None:
        """Known fault 72."""
        script, driver, module = harness_type.script, harness_type.driver, harness_type.module
        source = {
            "adapter, driver": f"import adapters\n{script}",
            "driver, adapter": f"{script}\nimport adapters",
            "install()": f"import {module}\nimport bulkhead\nbulkhead.install()\n{script}",
            "one adapter, late": f"{script}\nimport adapters.{driver}",
            "twice": f"import adapters\nadapters.install()\n{script}\nimport adapters.{driver}\nadapters.install({driver!r})",
        }[order]
        done = self._run(run_python, harness_type, server, f"{source}\n{REFUSED}")
        assert done == "refused"

    def test_uninstall_restores_the_very_same_attributes(
        self, harness_type: type[Harness], server: object, run_python: RunPython
    ) -> None:
        if not harness_type.patched:
            pytest.skip(f"{harness_type.driver} is patched on instances only")
        source = f"""
{LOOK_UP}
paths = {list(harness_type.patched)!r}
before = {{path: held(path) for path in paths}}
import adapters
adapters.install()
assert {harness_type.driver!r} in adapters.installed(), adapters.installed()
for path in paths:
    assert held(path) is not before[path], path
adapters.uninstall()
for path in paths:
    assert held(path) is before[path], path
assert {harness_type.driver!r} not in adapters.installed()
adapters.install()
{harness_type.script}
{REFUSED}
"""
        assert self._run(run_python, harness_type, server, source) == "refused"

    def test_under_another_tools_wrapper_ours_passes_through(
        self, harness_type: type[Harness], server: object, run_python: RunPython
    ) -> None:
        if not harness_type.patched:
            pytest.skip(f"{harness_type.driver} is patched on instances only")
        source = f"""
import logging; logging.disable()
import adapters
{harness_type.script}
{LOOK_UP}
import inspect
import bulkhead
for path in {list(harness_type.patched)!r}:
    target, attribute = found(path)
    ours = getattr(target, attribute)
    raw = vars(target).get(attribute)
    if isinstance(raw, (classmethod, staticmethod)) or not inspect.isroutine(ours):
        continue
    def wrapped(*args, _inner=ours, **kwargs):
        return _inner(*args, **kwargs)
    setattr(target, attribute, wrapped)
client = make(**bulkhead.options(name="fresh", tickets=1))
first = call(client)
bulkhead.find(KIND + ":fresh").open()
try:
    call(client)
except bulkhead.CircuitOpenError:
    pass
else:
    raise SystemExit("not refused under another wrapper")
adapters.uninstall()
assert call(client) == first
assert call(make()) == first
print("passed")
"""
        assert self._run(run_python, harness_type, server, source) == "passed"

    def test_a_forked_child_starts_afresh(
        self, harness_type: type[Harness], server: object, run_python: RunPython
    ) -> None:
        """Known faults 36, 93: forked while a call of another thread holds the ticket and the circuit is open."""
        source = f"""
import os, threading, time
import adapters
{harness_type.script}
import bulkhead
options = bulkhead.options(name="fresh", tickets=1)
client = make(**options)
call(client)
resource = bulkhead.find(KIND + ":fresh")
permit = resource.begin(__import__("bulkhead.outcomes").outcomes.DIRECT)
resource.open()
child = os.fork()
if child == 0:
    try:
        assert resource.in_use == 0, resource
        assert resource.state == "closed", resource
        call(make(**options))
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert resource.in_use == 1, resource
assert resource.state == "open", resource
resource.close()
permit[1](permit[0]); permit[3](permit[2])
call(client)
print("child", status)
"""
        assert self._run(run_python, harness_type, server, source) == "child 0"

    def test_keyboard_interrupt_gives_the_ticket_back_and_says_nothing(
        self, harness_type: type[Harness], server: object, run_python: RunPython
    ) -> None:
        """Known fault 27."""
        source = f"""
import signal, threading, os
import adapters
{harness_type.script}
import bulkhead
client = make(**bulkhead.options(name="fresh", tickets=1, error_threshold=1, error_timeout=5, success_threshold=1))
call(client)
resource = bulkhead.find(KIND + ":fresh")
signal.signal(signal.SIGUSR1, signal.default_int_handler)
for _ in range(3):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        block(client, 5)
    except KeyboardInterrupt:
        pass
    else:
        raise SystemExit("not interrupted")
    if {harness_type.is_async!r}:
        resource.in_use and settle()
    assert resource.in_use == 0, resource
assert resource.state == "closed", resource
call(make(**bulkhead.options(name="fresh", tickets=1, error_threshold=1, error_timeout=5, success_threshold=1)))
print("given back")
"""
        assert self._run(run_python, harness_type, server, source) == "given back"

    @staticmethod
    def _run(run_python: RunPython, harness_type: type[Harness], server: object, source: str) -> str:
        address = harness_type(server).address()
        head = HEAD + f"KIND = {harness_type.kind!r}\n"
        done = run_python(head + textwrap.dedent(source), address, seconds=40)
        return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-2000:]

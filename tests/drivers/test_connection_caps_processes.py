"""max_db_connections in fresh interpreters: after fork, in any order of imports, without the drivers, uninstalled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunPython

    from bulkhead.testing import PostgresServer

START = """
import sys
import sqlalchemy as sa
url = "sqlite:///" + sys.argv[1]
def refused(engine):
    try:
        engine.connect().close()
    except sa.exc.OperationalError as error:
        return error.limit == "connections"
    return False
"""


def test_a_forked_child_holds_nothing_and_keeps_the_limit(run_python: RunPython, tmp_path: Path) -> None:
    """Known fault 36: also when another thread is in the middle of a checkout."""
    source = """
import os, threading
import bulkhead
from bulkhead import connections
engine = sa.create_engine(url)
connections.set_limit(1)
ready, stop = threading.Event(), threading.Event()
def holder():
    with connections.caps._lock:
        ready.set()
        stop.wait(20)
with bulkhead.tenant("a"):
    held = engine.connect()
    assert refused(engine)
    assert connections.totals() == {("rejections", "connections"): 1}
    thread = threading.Thread(target=holder)
    thread.start()
    ready.wait(20)
    child = os.fork()
    if child == 0:
        try:
            engine.dispose(close=False)
            assert connections.held("a") == 0
            assert connections.totals() == {}
            mine = engine.connect()
            assert refused(engine)
            held.close()                  # of the parent: gives nothing back here
            assert refused(engine)
            mine.close()
            assert not refused(engine)
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    stop.set()
    thread.join()
    assert refused(engine)
    held.close()
    assert not refused(engine)
print("child", status)
"""
    assert run_python(START + source, str(tmp_path / "a.db")).stdout.split() == ["child", "0"]


@pytest.mark.parametrize("order", ["installed first", "installed last", "set first", "not installed"])
def test_engines_and_pools_made_before_are_capped(
    order: str, run_python: RunPython, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    made = "engine = sa.create_engine(url)\nengine.connect().close()\n"
    limit = "import bulkhead\nbulkhead.connections.set_limit(1)\n"
    pool = (
        "import psycopg_pool\npool = psycopg_pool.ConnectionPool(sys.argv[2], min_size=1, open=True)\npool.wait(30)\n"
    )
    steps = {
        "installed first": "import adapters\n" + made + pool + limit,
        "installed last": made + pool + "early = engine.connect()\nimport adapters\n" + limit,
        "set first": limit + made + pool,
        "not installed": made + pool + limit,  # it installs what it needs
    }[order]
    source = """
with bulkhead.tenant("a"):
    with engine.connect():
        assert refused(engine)
        try:
            pool.getconn()
        except bulkhead.ResourceBusyError as error:
            assert error.limit == "connections"
        else:
            raise SystemExit("the pool gave one")
    with pool.connection():
        assert refused(engine)
    if "early" in globals():
        early.close()                     # checked out before: not counted, and gives back nothing
        assert bulkhead.connections.held("a") == 0
    assert not refused(engine)
    import adapters
    held = engine.connect()
    adapters.uninstall()
    assert not refused(engine)
    held.close()
    adapters.install()
    assert bulkhead.connections.held("a") == 0
    with engine.connect():
        assert refused(engine)
pool.close()
print("capped")
"""
    done = run_python(START + steps + source, str(tmp_path / "a.db"), postgres_server.dsn)
    assert done.stdout.split() == ["capped"]


def test_without_the_drivers_a_limit_may_be_set(run_python: RunPython) -> None:
    source = """
import sys
import bulkhead
bulkhead.connections.set_limit(5)
assert bulkhead.connections.limit("a") == 5
assert not {"sqlalchemy", "psycopg", "psycopg_pool"} & sys.modules.keys()
"""
    run_python(source)


def test_another_package_called_adapters_is_no_silence(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "adapters.py").write_text("")
    source = """
import sys
sys.path.insert(0, sys.argv[1])
import bulkhead
try:
    bulkhead.connections.set_limit(5)
except bulkhead.ConfigurationError as error:
    assert "adapters" in str(error)
else:
    raise SystemExit("set")
assert bulkhead.connections.limit("a") is None
bulkhead.connections.set_limit(0)
"""
    run_python(source, str(tmp_path))

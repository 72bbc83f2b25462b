"""What patching leaves as it was, and what it leaves behind: nothing."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import set_json_loads

import bulkhead

if TYPE_CHECKING:
    from conftest import RunPython

    from bulkhead.testing import PostgresServer


@pytest.mark.parametrize("kind", [psycopg.Connection, psycopg.AsyncConnection])
def test_wait_keeps_its_signature_and_its_colour(kind: Any) -> None:
    """The poll interval, its name and its default differ between versions; sync stays sync (otel#1829)."""
    original = kind.wait.__wrapped__
    for what in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(kind.wait, what) == getattr(original, what)
    assert (
        inspect.signature(kind.wait, follow_wrapped=False).parameters.keys()
        == inspect.signature(original).parameters.keys()
    )
    assert kind.wait.__defaults__ == original.__defaults__
    assert inspect.iscoroutinefunction(kind.wait) is inspect.iscoroutinefunction(original)
    assert inspect.iscoroutinefunction(kind.connect) is inspect.iscoroutinefunction(original)
    assert inspect.iscoroutinefunction(kind.close) is inspect.iscoroutinefunction(original)


def test_connections_are_psycopgs_own(postgres_server: PostgresServer) -> None:
    """Known fault 71: no proxies."""
    options = bulkhead.options(name="own", tickets=1, call_timeout=5)
    with psycopg.connect(postgres_server.dsn, **options) as connection:
        assert type(connection) is psycopg.Connection
        assert type(connection.cursor()) is psycopg.Cursor
        set_json_loads(lambda text: "read", context=connection)
        assert connection.execute("SELECT '{}'::json").fetchone() == ("read",)


def test_a_cursor_factory_of_the_user_stays(postgres_server: PostgresServer) -> None:
    options = bulkhead.options(name="factory", tickets=1, call_timeout=5)
    with psycopg.connect(postgres_server.dsn, cursor_factory=psycopg.ClientCursor, **options) as connection:
        assert type(connection.cursor()) is psycopg.ClientCursor
        assert connection.execute("SELECT %s", [2]).fetchone() == (2,)
        connection.bulkhead.open()  # type: ignore[attr-defined]
        with pytest.raises(bulkhead.CircuitOpenError):
            connection.execute("SELECT %s", [2])
        connection.execute("ROLLBACK")


LATER = """
import sys
import bulkhead, psycopg
base = psycopg.Connection.__mro__[1]
before = set(vars(base)), set(vars(psycopg.Connection)), set(vars(psycopg.AsyncConnection))
bulkhead.install("psycopg")
import adapters
assert adapters.installed() == ["psycopg"]
import psycopg_pool                              # after the driver was patched
options = bulkhead.options(name="later", tickets=1, call_timeout=5)
with psycopg_pool.ConnectionPool(sys.argv[1], min_size=1, kwargs=options, open=True) as pool:
    with pool.connection() as connection:
        connection.execute("SELECT 2")
    bulkhead.find("postgres:later").open()
    try:
        pool.getconn()
    except bulkhead.CircuitOpenError:
        print("refused")
    adapters.uninstall()
    with pool.connection() as connection:        # made while patched: passes through now
        print(connection.execute("SELECT 2").fetchone())
after = set(vars(base)), set(vars(psycopg.Connection)), set(vars(psycopg.AsyncConnection))
assert after == before, [a ^ b for a, b in zip(after, before)]
psycopg.connect(sys.argv[1]).close()
adapters.install("psycopg")
connection = psycopg.connect(sys.argv[1], **options)
try:
    connection.execute("SELECT 2")
except bulkhead.CircuitOpenError:
    print("refused")
connection.close() if connection else None
"""


def test_a_pool_that_is_imported_later_is_patched_then_and_all_is_undone(
    run_python: RunPython, postgres_server: PostgresServer
) -> None:
    source = LATER.replace(
        "connection = psycopg.connect(sys.argv[1], **options)\ntry:",
        "try:\n    connection = None\n    connection = psycopg.connect(sys.argv[1], **options)",
    )
    done = run_python(source, postgres_server.dsn)
    assert done.stdout.split("\n")[:3] == ["refused", "(2,)", "refused"]


@pytest.mark.parametrize("line", ["import psycopg_pool", "import psycopg_pool.pool_async"])
def test_a_pool_that_is_what_imports_the_driver_is_patched_too(run_python: RunPython, line: str) -> None:
    run_python(f"""
import adapters
{line}
import psycopg_pool
from adapters._patch import foreign
assert foreign(psycopg_pool.ConnectionPool.getconn) and foreign(psycopg_pool.AsyncConnectionPool.getconn)
assert adapters.installed() == ["psycopg"], adapters.installed()
""")


FIRST = """
import sys
import psycopg, wrapt
seen = []

def tool(wrapped, instance, args, kwargs):
    seen.append(1)
    return wrapped(*args, **kwargs)

{patch}
theirs = psycopg.connect
import bulkhead, adapters
bulkhead.install("psycopg")
outcomes = []
bulkhead.subscribe(outcomes.append, bulkhead.events.Success)
options = bulkhead.options(name="first", tickets=1, call_timeout=5)
with psycopg.connect(sys.argv[1], **options) as connection:
    assert connection.bulkhead is bulkhead.find("postgres:first")
    assert (len(seen), len(outcomes)) == (1, 1), (seen, outcomes)
    connection.bulkhead.open()
    for refused in (lambda: connection.execute("SELECT 2"), lambda: psycopg.connect(sys.argv[1], **options)):
        try:
            refused()
        except bulkhead.CircuitOpenError:
            print("refused")
assert len(seen) == 1
psycopg.connect(sys.argv[1]).close()
assert len(seen) == 2
bulkhead.find("postgres:first").close()
adapters.resolve(lambda *about: options["bulkhead"])
del outcomes[:]
psycopg.connect(sys.argv[1]).close()
assert (len(seen), len(outcomes)) == (3, 1), (seen, outcomes)
adapters.uninstall()
assert psycopg.connect is theirs
"""
DYNAMIC = """
def connect(*args, **kwargs):
    seen.append(1)
    return psycopg.Connection.connect(*args, **kwargs)

psycopg.connect = connect
"""


@pytest.mark.parametrize(
    "patch", ['wrapt.wrap_function_wrapper("psycopg", "connect", tool)', DYNAMIC], ids=["wrapt", "by hand"]
)
def test_a_tool_that_wrapped_connect_before_us_keeps_its_wrapper(
    run_python: RunPython, postgres_server: PostgresServer, patch: str
) -> None:
    """Known fault 72. It sees each connect once, and one connect is one call, whatever its wrapper leads to."""
    done = run_python(FIRST.replace("{patch}", patch), postgres_server.dsn)
    assert done.stdout.split() == ["refused", "refused"]


def test_a_tool_that_wrapped_connect_after_us_keeps_its_wrapper_when_we_come_back(
    run_python: RunPython, postgres_server: PostgresServer
) -> None:
    run_python(
        """
import sys
import bulkhead, adapters
bulkhead.install("psycopg")
import psycopg, wrapt
seen = []

def tool(wrapped, instance, args, kwargs):
    seen.append(1)
    return wrapped(*args, **kwargs)

wrapt.wrap_function_wrapper("psycopg", "connect", tool)
theirs = psycopg.connect
adapters.uninstall()
assert psycopg.connect is theirs
bulkhead.install("psycopg")
assert psycopg.connect is theirs
options = bulkhead.options(name="after", tickets=1, call_timeout=5)
with psycopg.connect(sys.argv[1], **options) as connection:
    assert connection.bulkhead is bulkhead.find("postgres:after")
assert seen == [1]
""",
        postgres_server.dsn,
    )

"""install() and `import adapters`: what they patch, what they leave alone, and what they say when something is wrong."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

import adapters
import bulkhead

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunPython

DRIVERS = ("redis", "psycopg", "psycopg_pool", "sqlalchemy", "httpx", "httpx2")
ATTRIBUTES = """
import inspect, sys


def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == driver:
            for key, value in list(vars(module).items()):
                if inspect.isclass(value) and value.__module__.partition(".")[0] == driver:
                    found.update({(name, key, one): held for one, held in vars(value).items() if callable(held)})
                elif inspect.isfunction(value):
                    found[name, key] = value
    return found
"""


def here(*names: str) -> None:
    """Skip where one of these is not installed; imports none of them."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("line", ["import adapters", "import bulkhead; bulkhead.install()"])
def test_before_a_driver_is_imported_nothing_of_it_is_loaded_and_no_thread_runs(
    run_python: RunPython, line: str
) -> None:
    """Known fault 8: neither importing nor installing starts a thread. A driver that is not there costs nothing."""
    run_python(f"""
import sys, threading
{line}
assert threading.active_count() == 1, threading.enumerate()
assert adapters.installed() == [] if "adapters" in globals() else True
drivers = {DRIVERS!r}
loaded = [name for name in sys.modules if name.partition(".")[0] in drivers or name.startswith("adapters.")]
assert loaded == ["adapters._patch"], loaded
""")


def test_importing_one_adapter_patches_one_driver(run_python: RunPython) -> None:
    here("redis", "httpx")
    run_python("""
import adapters.redis
import httpx
import adapters
assert adapters.installed() == ["redis"], adapters.installed()
adapters.install("httpx")
assert adapters.installed() == ["httpx", "redis"], adapters.installed()
""")


def test_a_name_that_is_no_driver_is_an_error_that_lists_them() -> None:
    with pytest.raises(bulkhead.ConfigurationError, match=r"no adapter for 'postgres'; there are: httpx, .*sqlalchemy"):
        bulkhead.install("postgres")
    assert "postgres" not in adapters.installed()


def test_somebody_elses_package_named_adapters_is_an_error_with_its_path(run_python: RunPython, tmp_path: Path) -> None:
    foreign = tmp_path / "adapters"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("", encoding="utf-8")
    done = run_python(
        """
import sys
sys.path.insert(0, sys.argv[1])  # the application's own folder comes first, as under gunicorn
import bulkhead
for _ in range(2):
    try:
        bulkhead.install()
    except bulkhead.ConfigurationError as error:
        print(error)
""",
        str(tmp_path),
    )
    first, second = done.stdout.splitlines()
    assert first == second
    assert f"`adapters` is {foreign / '__init__.py'}, not the package of bulkhead-toolkit" in first


@pytest.mark.parametrize(
    ("module", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)
def test_install_warns_of_threads_that_gevent_or_eventlet_have_patched(
    run_python: RunPython, module: str, patch: str
) -> None:
    here(module)
    told = run_python(f"{patch}\nimport bulkhead\nbulkhead.install()").stderr
    assert told.count(f"[BULKHEAD] {module} has patched the threads; it is not supported") == 1
    told = run_python(f"{patch.partition(';')[0]}\nimport bulkhead\nbulkhead.install()").stderr
    assert "[BULKHEAD]" not in told, "imported only"


@pytest.mark.parametrize(
    ("distribution", "driver", "adapter", "version", "minimum"),
    [
        ("redis", "redis", "redis", "5.1.9", "5.2"),
        ("psycopg", "psycopg", "psycopg", "3.1.19", "3.1.20"),
        ("SQLAlchemy", "sqlalchemy", "sqlalchemy", "2.0.57", "2.0.58"),
        ("httpx", "httpx", "httpx", "0.26.0", "0.27"),
        ("httpx2", "httpx2", "httpx2", "1.9", "2"),
    ],
)
def test_an_unsupported_version_is_left_alone_with_one_warning(
    run_python: RunPython, tmp_path: Path, distribution: str, driver: str, adapter: str, version: str, minimum: str
) -> None:
    """And what is given to its clients is an error of the driver's own, never silence."""
    here(driver)
    _installed_as(tmp_path, distribution, version)
    clients = {
        "redis": "redis.Redis(**given)",
        "psycopg": "psycopg.connect('host=127.0.0.1 port=1', **given)",
        "sqlalchemy": "sqlalchemy.create_engine('sqlite://', **given)",
        "httpx": "httpx.Client(**given)",
        "httpx2": "httpx2.Client(**given)",
    }
    plain = {name: make.replace(", **given", "").replace("**given", "") for name, make in clients.items()}
    del plain["psycopg"]  # its connections cannot be protected later
    done = run_python(
        f"""
driver = {driver!r}
import {driver}
{ATTRIBUTES}
before = attributes()
assert len(before) > 50
import adapters, bulkhead
for _ in range(2):
    bulkhead.install()
    adapters.install({adapter!r})
assert {adapter!r} not in adapters.installed()
after = attributes()
changed = [key for key in before if after[key] is not before[key]]
assert not changed, changed
given = bulkhead.options(name="inventory", tickets=16)
try:
    {clients[driver]}
except Exception as error:
    assert "bulkhead" in str(error), error
else:
    raise SystemExit("silence")
plain = {plain.get(driver, "None")}
try:
    bulkhead.protect(plain, name="inventory", tickets=16)
except bulkhead.ConfigurationError:
    pass
else:
    raise SystemExit("silence")
""",
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.stderr.count(f"{distribution} {version} is not supported ({minimum} or newer is)") == 1


# What much older versions lack, and the adapters import; and what a version to come may lack, and they patch.
MISSING = {
    "redis": ("redis.exceptions.OutOfMemoryError", "redis.client.Pipeline._execute_transaction"),
    "psycopg": ("psycopg.Pipeline", "psycopg.AsyncConnection.wait"),
    "sqlalchemy": ("sqlalchemy.util.concurrency.in_greenlet", "sqlalchemy.pool.Pool.connect"),
    "httpx": ("httpx.RemoteProtocolError", "httpx.HTTPTransport"),
}


@pytest.mark.parametrize("driver", MISSING)
@pytest.mark.parametrize("order", ["driver first", "install first"])
def test_a_driver_too_old_to_import_its_adapter_can_still_be_imported(
    run_python: RunPython, tmp_path: Path, driver: str, order: str
) -> None:
    """An application may need it unprotected, and have installed this toolkit for another driver."""
    here(driver)
    distribution = "SQLAlchemy" if driver == "sqlalchemy" else driver
    _installed_as(tmp_path, distribution, "0.1")
    steps = [_without(MISSING[driver][0]), "import adapters, bulkhead\nbulkhead.install()"]
    done = run_python(
        "\n".join(steps if order == "driver first" else reversed(steps))
        + f"\nbulkhead.install()\nassert {driver!r} not in adapters.installed()",
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.stderr.count(f"{distribution} 0.1 is not supported") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("driver", "lost"), [(driver, lost) for driver, (_, lost) in MISSING.items()])
def test_a_driver_that_is_not_as_expected_is_left_as_it_is_with_one_warning(
    run_python: RunPython, driver: str, lost: str
) -> None:
    """All of it or nothing: half a driver patched would be worse than none."""
    here(driver)
    done = run_python(f"""
driver = {driver!r}
{_without(lost)}
{ATTRIBUTES}
before = attributes()
import adapters, bulkhead
for _ in range(2):
    bulkhead.install()
    adapters.install({driver!r})
assert {driver!r} not in adapters.installed()
after = attributes()
changed = [key for key in before if after[key] is not before[key]]
assert not changed, changed
""")
    assert done.stderr.count("cannot be patched; it is left alone") == 1


def test_an_unsupported_psycopg_pool_is_left_alone_and_psycopg_is_not(run_python: RunPython, tmp_path: Path) -> None:
    here("psycopg", "psycopg_pool")
    _installed_as(tmp_path, "psycopg-pool", "3.1.9")
    done = run_python(
        """
import psycopg_pool
before = vars(psycopg_pool.ConnectionPool)["getconn"], vars(psycopg_pool.ConnectionPool)["__init__"]
import bulkhead, adapters
bulkhead.install()
assert adapters.installed() == ["psycopg"], adapters.installed()
assert (vars(psycopg_pool.ConnectionPool)["getconn"], vars(psycopg_pool.ConnectionPool)["__init__"]) == before
""",
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.stderr.count("psycopg_pool 3.1.9 is not supported (3.2 or newer is)") == 1


def _without(name: str) -> str:
    """Source that imports the module of `name` and deletes it from there."""
    modules = [part for part in name.split(".")[:-1] if part.islower()]
    return f"import {'.'.join(modules)}\ndel {name}"


def _installed_as(folder: Path, distribution: str, version: str) -> None:
    """The metadata of another version, found first."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


def test_what_was_uninstalled_stays_untouched_when_it_is_imported_later_and_says_so(run_python: RunPython) -> None:
    """Options on its clients, `protect` and SQLAlchemy's plugin are errors then, never silence; until installed again."""
    here("redis", "httpx", "sqlalchemy")
    run_python("""
import adapters, bulkhead
adapters.install()
import sqlalchemy
adapters.uninstall()
import httpx, redis
assert adapters.installed() == []


def refused(kind, words, make):
    try:
        make()
    except kind as error:
        assert words in str(error), error
    else:
        raise SystemExit(f"silence: {words}")


given = bulkhead.options(name="inventory", tickets=16)
url = "sqlite://?plugin=bulkhead&bulkhead=inventory"
bulkhead.define("inventory", tickets=16)
makers = {
    "redis": lambda **options: redis.Redis(port=1, **options),
    "httpx": httpx.Client,
    "sqlalchemy": lambda **options: sqlalchemy.create_engine("sqlite://", **options),
}
for make in makers.values():
    refused(TypeError, "bulkhead", lambda: make(**given))
    refused(bulkhead.ConfigurationError, "none: call bulkhead.install() first", lambda: bulkhead.protect(make(), tickets=1))
refused(bulkhead.ConfigurationError, "not patched", lambda: sqlalchemy.create_engine(url))
assert bulkhead.resources() == {}, bulkhead.resources()
adapters.install()
assert adapters.installed() == ["httpx", "redis", "sqlalchemy"], adapters.installed()
for name, make in makers.items():
    make(**given)
    client = make()
    assert bulkhead.protect(client, name="protected", tickets=1) is client
sqlalchemy.create_engine(url)
assert len(bulkhead.resources()) >= 4, bulkhead.resources()
""")


def test_a_second_copy_of_the_toolkit_leaves_the_first_in_charge_and_says_so_once_a_driver(
    run_python: RunPython,
) -> None:
    """Known fault 72: whoever forgets our modules and imports them again (reloaders, isolated plugins)."""
    here("redis", "httpx", "sqlalchemy", "psycopg")
    done = run_python("""
import sys
import httpx, psycopg, redis, sqlalchemy
import adapters, bulkhead
for name in [name for name in sys.modules if name.partition(".")[0] in ("adapters", "bulkhead")]:
    del sys.modules[name]
import adapters as second
import bulkhead as other
other.install()
assert second is not adapters and other is not bulkhead
given = bulkhead.options(name="first", tickets=1)
closed = "host=127.0.0.1 port=1"
calls = {
    "redis": lambda client=redis.Redis(port=1, retry=None, **given): client.get("k"),
    "http": lambda client=httpx.Client(**given): client.get("http://127.0.0.1:1"),
    "sql": lambda engine=sqlalchemy.create_engine("sqlite://", **given): engine.connect().execute(sqlalchemy.text("SELECT 1")),
    "postgres": lambda: psycopg.connect(closed, **given),
}
for round in ("beside it", "after it was uninstalled"):
    for kind, call in calls.items():
        try:
            call()
        except (redis.ConnectionError, httpx.ConnectError, psycopg.OperationalError) as error:
            assert bulkhead.rejection(error) is None, (round, error)
        resource = bulkhead.find(f"{kind}:first")
        resource.open()
        try:
            call()
        except bulkhead.CircuitOpenError:
            resource.close()
        else:
            raise SystemExit(f"{kind}, {round}: not refused")
    second.uninstall()
""")
    told = [line for line in done.stderr.splitlines() if "another copy of this toolkit" in line]
    assert len(told) == 4, done.stderr


def test_protect_says_what_it_cannot_protect(run_python: RunPython) -> None:
    here("redis")
    told = run_python("""
import bulkhead
for _ in range(2):
    try:
        bulkhead.protect({}, name="inventory", tickets=16)
    except bulkhead.ConfigurationError as error:
        print(error)
    bulkhead.install()
    import redis
""").stdout.splitlines()
    assert told == [
        (
            "protect() cannot protect a builtins.dict; drivers patched: none: call bulkhead.install() first. "
            "psycopg connections take bulkhead= when they are made"
        ),
        (
            "protect() cannot protect a builtins.dict; drivers patched: redis. "
            "psycopg connections take bulkhead= when they are made"
        ),
    ]

"""`bulkhead doctor`: what it finds, what it calls wrong, and its exit status."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

import pytest

import adapters
import bulkhead
from bulkhead.console.doctor import SUPPORTED, SWITCHES

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from cli.starting import Command

GOOD = """
import bulkhead
bulkhead.install()
import redis
cache = redis.Redis(**bulkhead.options(name="inventory", tickets=16))
payments = bulkhead.resource("payments", tickets=4)
"""
FORGOT = """
import redis
cache = redis.Redis()
"""
FORGOT_WITH_OPTIONS = """
import bulkhead
import redis
cache = redis.Redis(**bulkhead.options(name="inventory", tickets=16))
"""


def wrong_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert "Traceback" not in done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("!! ")]


def test_all_is_well_with_every_driver_patched(command: Command) -> None:
    for name in ("redis", "psycopg", "psycopg_pool", "sqlalchemy", "httpx"):
        pytest.importorskip(name)
    done = command("doctor")
    assert (done.returncode, wrong_lines(done)) == (0, [])
    assert done.stdout.count(": patched, /") >= 5
    assert "name your application's module" in done.stdout
    assert done.stdout.endswith("all is well\n")


def test_without_any_driver_all_is_well_too(command_without_drivers: Command) -> None:
    done = command_without_drivers("doctor")
    assert (done.returncode, wrong_lines(done)) == (0, [])
    for name, (_, minimum, _) in SUPPORTED.items():
        assert f"{name}: not installed (supported from {minimum})" in done.stdout


def test_the_clients_of_an_application_are_listed_with_their_options(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("redis")
    (tmp_path / "shop.py").write_text(GOOD, encoding="utf-8")
    done = command("doctor", "shop")
    assert (done.returncode, wrong_lines(done)) == (0, [])
    assert "redis:inventory: " in done.stdout
    assert "tickets=16" in done.stdout
    assert "call:payments: " in done.stdout


def test_an_application_that_forgot_install_is_told_so(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("redis")
    (tmp_path / "shop.py").write_text(FORGOT, encoding="utf-8")
    done = command("doctor", "shop")
    (wrong,) = wrong_lines(done)
    assert "shop never calls bulkhead.install()" in wrong
    assert done.returncode == 1


def test_options_on_a_client_of_an_unpatched_driver_are_told_with_their_cause(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("redis")
    (tmp_path / "shop.py").write_text(FORGOT_WITH_OPTIONS, encoding="utf-8")
    first, second = wrong_lines(command("doctor", "shop"))
    assert "shop cannot be imported: TypeError" in first
    assert "never calls bulkhead.install()" in second


def test_a_module_that_does_not_exist_is_the_only_complaint(command: Command) -> None:
    done = command("doctor", "shop.wsgi")
    (wrong,) = wrong_lines(done)
    assert "shop.wsgi cannot be imported: ModuleNotFoundError" in wrong
    assert done.returncode == 1


def test_a_module_may_be_named_as_for_gunicorn_and_uvicorn(command: Command, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import bulkhead\nbulkhead.install()\napp = None\n", encoding="utf-8")
    done = command("doctor", "shop:app")
    assert (done.returncode, wrong_lines(done)) == (0, [])


@pytest.mark.parametrize("file", ["shop.py", "./shop.py", "web/shop.py", ""])
def test_a_file_in_place_of_a_module_is_told_and_not_imported(command: Command, tmp_path: Path, file: str) -> None:
    (tmp_path / "shop.py").write_text("print('imported')\n", encoding="utf-8")
    done = command("doctor", file)
    (wrong,) = wrong_lines(done)
    assert f"{file!r} is not the name of a module" in wrong
    assert "imported\n" not in done.stdout
    assert "adapters: " in done.stdout
    assert done.returncode == 1


def test_an_application_that_exits_while_it_is_imported_does_not_end_the_report(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text("import bulkhead\nbulkhead.install()\nraise SystemExit(0)\n", encoding="utf-8")
    done = command("doctor", "shop")
    assert "shop cannot be imported: SystemExit" in wrong_lines(done)[0]
    assert "adapters: " in done.stdout
    assert done.returncode == 1


def test_a_foreign_package_named_adapters_is_told_with_its_path(command: Command, tmp_path: Path) -> None:
    """The application's own folder comes first on the path, as under gunicorn."""
    foreign = tmp_path / "adapters"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("", encoding="utf-8")
    done = command("doctor")
    (wrong,) = wrong_lines(done)
    assert str(foreign / "__init__.py") in wrong
    assert done.returncode == 1


def test_a_folder_named_adapters_without_init_does_not_get_in_the_way(command: Command, tmp_path: Path) -> None:
    """Python prefers a package further down the path to a folder without `__init__.py`."""
    (tmp_path / "adapters").mkdir()
    assert command("doctor").returncode == 0


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_in_the_environment_is_told(command: Command, switch: str) -> None:
    done = command("doctor", env={switch: "1"})
    (wrong,) = wrong_lines(done)
    assert f"{switch} is set" in wrong
    assert done.returncode == 1


def test_a_switch_that_is_set_to_0_is_none(command: Command) -> None:
    assert command("doctor", env=dict.fromkeys(SWITCHES, "0")).returncode == 0


def test_versions_that_are_supported_are_those_that_the_adapters_accept() -> None:
    bulkhead.install()
    for name, minimum, adapter in SUPPORTED.values():
        if name == "psycopg_pool" or importlib.util.find_spec(name) is None:
            continue
        importlib.import_module(name)
        driver = adapters._drivers()[adapter]
        assert ".".join(map(str, driver.minimum)) == minimum

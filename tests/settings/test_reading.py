"""Which file is read, the environment over it, and where each value came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import bulkhead
from bulkhead import settings
from bulkhead.settings.kinds import number_for

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunPython
    from settings.conftest import Write


def test_without_file_and_variables_everything_has_its_default() -> None:
    now = settings.load()
    assert now == settings.Settings()
    assert (now.tenancy.enabled, now.tenancy.max_concurrent_requests, now.file) == (False, 0, None)
    assert now.origin("tenancy.header") == "default"


def test_bulkhead_toml_in_the_current_folder_is_found(write: Write) -> None:
    write('[tenancy]\nheader = "X-Account"\n')
    now = settings.load()
    assert (now.tenancy.header, now.file) == ("X-Account", "bulkhead.toml")
    assert now.origin("tenancy.header") == "bulkhead.toml"
    assert now.origin("tenancy.hold") == "default"


def test_the_table_in_pyproject_is_found_and_bulkhead_toml_goes_before_it(write: Write) -> None:
    write("[tool.other]\nx = 1\n", "pyproject.toml")
    assert settings.load().file is None
    write("[tool.bulkhead.server]\nmax_concurrent_requests = 7\n", "pyproject.toml")
    assert settings.load().server.max_concurrent_requests == 7
    assert settings.current().origin("server.max_concurrent_requests") == "pyproject.toml"
    write("[server]\nmax_concurrent_requests = 8\n")
    assert settings.load().server.max_concurrent_requests == 8


def test_a_path_goes_before_bulkhead_settings_which_goes_before_the_folder(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("[server]\nmax_concurrent_requests = 1\n")
    write("[server]\nmax_concurrent_requests = 2\n", "etc/named.toml")
    write("[tool.bulkhead.server]\nmax_concurrent_requests = 3\n", "etc/pyproject.toml")
    assert settings.load().server.max_concurrent_requests == 1
    monkeypatch.setenv("BULKHEAD_SETTINGS", "etc/named.toml")
    assert settings.load().server.max_concurrent_requests == 2
    now = settings.load("etc/pyproject.toml")
    assert now.server.max_concurrent_requests == 3
    assert now.origin("server.max_concurrent_requests") == "etc/pyproject.toml"


def test_a_reload_reads_the_same_file_from_another_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Daemons go to another folder once they run."""
    write("[server]\nmax_concurrent_requests = 1\n")
    settings.load()
    monkeypatch.chdir("/")
    write("[server]\nmax_concurrent_requests = 2\n")
    assert settings.reload().server.max_concurrent_requests == 2


def test_the_environment_wins_over_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write('[tenancy]\nmax_concurrent_requests = 4\nhold = "body"\n[resources.inventory]\ntickets = 9\n')
    monkeypatch.setenv("BULKHEAD_TENANCY__MAX_CONCURRENT_REQUESTS", "8")
    monkeypatch.setenv("BULKHEAD_RESOURCES__INVENTORY__TICKETS", "4")
    monkeypatch.setenv("BULKHEAD_RESOURCES__PAYMENTS__TENANT_TICKETS", "2")
    now = settings.load()
    assert (now.tenancy.max_concurrent_requests, now.tenancy.hold) == (8, "body")
    assert {name: (one.tickets, one.tenant_tickets) for name, one in now.resources.items()} == {
        "inventory": (4, None),
        "payments": (None, 2),
    }
    variable = "environment BULKHEAD_TENANCY__MAX_CONCURRENT_REQUESTS"
    assert now.origin("tenancy.max_concurrent_requests") == variable
    assert now.origin("tenancy.hold") == "bulkhead.toml"
    assert now.origin("resources.payments.tenant_tickets").endswith("PAYMENTS__TENANT_TICKETS")


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("BULKHEAD_TENANCY__ENABLED", "true", "tenancy.enabled", True),
        ("BULKHEAD_TENANCY__ENABLED", "False", "tenancy.enabled", False),
        ("BULKHEAD_TENANCY__PUBLIC_PATHS", '["/health", "/metrics"]', "tenancy.public_paths", ("/health", "/metrics")),
        ("BULKHEAD_TENANCY__PUBLIC_PATHS", "/health", "tenancy.public_paths", ("/health",)),
        ("BULKHEAD_TENANCY__MAX_WEBSOCKETS", '{"acme": 2, "default": 1}', "tenancy.max_websockets", None),
        ("BULKHEAD_TENANCY__MAX_WEBSOCKETS", "{acme = 2, default = 1}", "tenancy.max_websockets", None),
        ("BULKHEAD_TENANCY__SESSION_KEY", "17", "tenancy.session_key", "17"),
        ("BULKHEAD_TENANCY__JWT_KEY", "0017", "tenancy.jwt_key", "0017"),
        ("BULKHEAD_TENANCY__JWT_KEY", '"quoted" = [', "tenancy.jwt_key", '"quoted" = ['),
        ("BULKHEAD_TENANCY__JWT_ISSUER", "none", "tenancy.jwt_issuer", "none"),
        ("BULKHEAD_BULKHEAD__MAXIMUM_RESOURCES", "none", "bulkhead.maximum_resources", None),
        ("BULKHEAD_BULKHEAD__MINIMUM_LRU_TIME", "2.5", "bulkhead.minimum_lru_time", 2.5),
        ("BULKHEAD_RESOURCES__A__CANCEL_COUNTS_AFTER", "none", "resources.a.cancel_counts_after", None),
        ("BULKHEAD_RESOURCES__A__CANCEL_COUNTS_AFTER", "auto", "resources.a.cancel_counts_after", "auto"),
        ("BULKHEAD_RESOURCES__A__CANCEL_COUNTS_AFTER", "3", "resources.a.cancel_counts_after", 3.0),
        ("bulkhead_tenancy__header", "X-Lower", "tenancy.header", "X-Lower"),
    ],
)
def test_a_variable_means_what_its_key_takes(
    variable: str, text: str, key: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    now = settings.load()
    found = now.values()[key]
    if key == "tenancy.max_websockets":
        assert {whose: number_for(found, whose) for whose in ("acme", "other")} == {"acme": 2, "other": 1}
    else:
        assert (found, type(found)) == (value, type(value))
    assert now.origin(key) == f"environment {variable}"


def test_tables_are_merged_and_single_entries_can_be_set(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("[tenancy]\nmax_concurrent_requests = { acme = 20, default = 4 }\nmax_websockets = { acme = 2 }\n")
    monkeypatch.setenv("BULKHEAD_TENANCY__MAX_CONCURRENT_REQUESTS__DEFAULT", "8")
    monkeypatch.setenv("BULKHEAD_TENANCY__MAX_WEBSOCKETS", "5")
    now = settings.load()
    assert now.tenancy.max_concurrent_requests == {"acme": 20, "default": 8}
    assert now.tenancy.max_websockets == 5
    assert now.origin("tenancy.max_concurrent_requests") == (
        "bulkhead.toml and environment BULKHEAD_TENANCY__MAX_CONCURRENT_REQUESTS__DEFAULT"
    )


def test_a_tenant_without_a_number_of_its_own_has_the_default_s_and_zero_is_no_limit() -> None:
    table = {"acme": 2, "free": 0}
    assert [number_for(table, whose) for whose in ("acme", "free", "other")] == [2, 0, 0]
    assert number_for({**table, "default": 7}, "other") == 7
    assert (number_for(3, "any"), number_for(len, "any")) == (3, 3)


def test_a_variable_finds_a_resource_whose_name_no_variable_can_have(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write('[resources."Payments-API.v2"]\ntickets = 3\n')
    monkeypatch.setenv("BULKHEAD_RESOURCES__PAYMENTS_API_V2__TICKETS", "5")
    assert {name: one.tickets for name, one in settings.load().resources.items()} == {"Payments-API.v2": 5}
    write('[resources."payments-api"]\ntickets = 3\n[resources.payments_api]\ntickets = 4\n')
    monkeypatch.setenv("BULKHEAD_RESOURCES__PAYMENTS_API__TICKETS", "5")
    monkeypatch.delenv("BULKHEAD_RESOURCES__PAYMENTS_API_V2__TICKETS")
    with pytest.raises(bulkhead.ConfigurationError, match="could mean 'payments-api' or 'payments_api'"):
        settings.load()


def test_an_empty_variable_is_no_setting(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("[server]\nmax_concurrent_requests = 2\n")
    monkeypatch.setenv("BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS", "")
    monkeypatch.setenv("BULKHEAD_SERVR__MAX_CONCURRENT_REQUESTS", "")
    assert settings.load().server.max_concurrent_requests == 2


def test_other_variables_of_ours_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BULKHEAD_DISABLED", "BULKHEAD_RUNTIME_DIR", "BULKHEAD_SETTINGS_X", "BULKHEAD_SERVER_NAME"):
        monkeypatch.setenv(name, "0")
    assert settings.load() == settings.Settings()


def test_an_origin_is_asked_for_by_a_key_that_exists(write: Write) -> None:
    write("[resources.inventory]\ntickets = 2\n")
    now = settings.load()
    assert now.origin("resources.inventory.tickets") == "bulkhead.toml"
    assert now.origin("resources.inventory.timeout") == "default"
    with pytest.raises(bulkhead.ConfigurationError, match=r"did you mean 'tenancy\.header'"):
        now.origin("tenancy.heder")


def test_current_reads_the_settings_if_nobody_did(write: Write) -> None:
    write("[server]\nmax_concurrent_requests = 2\n[resources.inventory]\ntickets = 2\n")
    now = settings.current()
    assert now.server.max_concurrent_requests == 2
    assert bulkhead.resource("inventory").limit == 2
    assert settings.current() is now


def test_a_name_of_the_file_is_a_definition_for_clients(write: Write) -> None:
    write('[resources.inventory]\ntickets = 2\n[resources.db]\nidentifier = "sql:main"\ntickets = 3\n')
    settings.load()
    assert bulkhead.resource("inventory").limit == 2
    assert bulkhead.resource("db").identifier == "sql:main"


def test_nothing_is_imported_where_there_is_nothing_to_read(tmp_path: Path, run_python: RunPython) -> None:
    told = run_python(
        f"""
import os, sys
os.chdir({str(tmp_path)!r})
from bulkhead import settings
settings.load()
print(*sorted({{"pydantic", "pydantic_settings", "watchfiles"}} & set(sys.modules)))
os.environ["BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS"] = "3"
settings.load()
print("pydantic_settings" in sys.modules, "watchfiles" in sys.modules)
"""
    )
    assert told.stdout.splitlines() == ["", "True False"]


def test_where_the_extra_is_missing_the_error_names_it(write: Write, run_python: RunPython) -> None:
    path = write("[server]\nmax_concurrent_requests = 2\n")
    told = run_python(
        """
import sys
sys.modules["pydantic_settings"] = sys.modules["watchfiles"] = None
import bulkhead
from bulkhead import settings
for step in (lambda: settings.load(sys.argv[1]), settings.watch):
    try:
        step()
    except bulkhead.ConfigurationError as error:
        print(error)
""",
        str(path),
    ).stdout
    assert f"{path}: settings are read with pydantic-settings" in told
    assert 'pip install "bulkhead-toolkit[settings]"' in told
    assert 'pip install "bulkhead-toolkit[watch]"' in told

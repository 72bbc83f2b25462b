"""What is wrong is found before anything changes, all of it, with file and key; and no secret is ever told."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import bulkhead
from bulkhead import settings
from bulkhead.option_rows import Refused, keep, row, rows_of, whole
from bulkhead.settings import sections
from bulkhead.settings.kinds import texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from settings.conftest import Write

SECRET = "correct-horse-battery"


def refusal(path: str | Path | None = None) -> str:
    """What load() says."""
    with pytest.raises(bulkhead.ConfigurationError) as caught:
        settings.load(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tenancy]\nheadr = 'X'", "tenancy has no key 'headr': did you mean 'header'?"),
        ("[tenency]\nheader = 'X'", "there is no section [tenency]: did you mean 'tenancy'?"),
        ("[queue]\nx = 1", "there is no section [queue]: known are bulkhead, tenancy, server, memory, jobs, resources"),
        ("retry_after = 3", "retry_after stands outside any section; it is a key of [tenancy]"),
        ("server = 3", "server must be a table, [server], not 3"),
        ("[resources]\ninventory = 3", "resources.inventory must be a table, [resources.NAME], not 3"),
        ("[resources.a]\nticket = 3", "resources.a has no key 'ticket': did you mean 'tickets'?"),
        ("[resources.a]\ntickets = 0", "resources.a.tickets must be a whole number from 1 to 1,000,000, or None"),
        ("[resources.a]\nis_failure = 'ValueError'", "resources.a.is_failure can only be given in code"),
        ("[resources.a]\ndynamic = true", "resources.a.dynamic can only be given in code"),
        ("[resources.a]\nerror_threshold = 3", "resources.a: error_timeout and success_threshold missing"),
        ("[resources.a]\ncircuit_breaker = false", "resources.a: there is nothing to enforce"),
        ("[resources.a]\ntickets = 3\ntenant_quota = 0.5\ntenant_tickets = 1", "resources.a: tenant_quota stands"),
        ("[resources.'']\ntickets = 3", "resources.'' is no name of a resource: it is empty"),
        ("[server]\nmax_concurrent_requests = true", "server.max_concurrent_requests must be a whole number"),
        ("[server]\nmax_concurrent_requests = -1", "must be a whole number from 0 to 1,000,000, not -1"),
        ("[server]\nmax_concurrent_requests = 1e3", "must be a whole number from 0 to 1,000,000, not 1000.0"),
        ("[tenancy]\nenabled = 'yes'", "tenancy.enabled must be True or False, not 'yes'"),
        ("[tenancy]\nsource = 'cookie'", "tenancy.source must be 'header', 'subdomain', 'session', 'jwt' or (in"),
        ("[tenancy]\nheader = 'X Tenant'", "tenancy.header must be the name of an HTTP header, not 'X Tenant'"),
        ("[tenancy]\ndomain = '.example.org'", "tenancy.domain must be a domain name without port"),
        ("[tenancy]\nretry_after = 0", "tenancy.retry_after must be a whole number from 1"),
        ("[tenancy]\nhold = 'tail'", "tenancy.hold must be 'head' or 'body', not 'tail'"),
        ("[tenancy]\nmissing = 'ignore'", "tenancy.missing must be 'reject' or 'share' or 'allow', not 'ignore'"),
        (
            "[tenancy]\npublic_paths = ['health']",
            "tenancy.public_paths must be a list of patterns that begin with / or *",
        ),
        ("[tenancy]\nmax_websockets = { acme = -1 }", "the number of 'acme' is -1"),
        ("[tenancy]\nmax_websockets = { '' = 1 }", "this tenant id cannot be used: it is empty"),
        ("[tenancy]\nenabled = true\nsource = 'subdomain'", 'tenancy.domain is needed with source = "subdomain"'),
        (
            "[tenancy]\nenabled = true\nsource = 'jwt'\njwt_algorithms = ['RS256']",
            'tenancy.jwt_key is needed with source = "jwt"',
        ),
        ("[tenancy]\njwt_algorithms = ['none']", "tenancy.jwt_algorithms must be a list of names of algorithms"),
        ("[tenancy]\njwt_algorithms = ['HS256', 'RS256']", "tenancy.jwt_algorithms mixes HS… with signatures"),
        (
            "[tenancy]\nenabled = true\njwt_key = 'x'",
            'jwt_key does nothing with source = "header", so no token would be',
        ),
        ("[bulkhead]\nunknown_tenant = 'deny'", "bulkhead.unknown_tenant must be 'allow' or 'share' or 'reject'"),
        (
            "[bulkhead]\nmaximum_resources = 20\nmaximum_lru_size = 50",
            "bulkhead.maximum_resources 20 is below maximum_lru_size (50)",
        ),
        ("[tenancy\n", "is no TOML: "),
        ("[tenancy]\nhold = 'head'\nhold = 'body'", "is no TOML: Cannot overwrite a value"),
        (f"[tenancy]\nretry_after = {'9' * 5_000}", "is no TOML: "),  # more digits than Python reads
        (f"[tenancy]\nretry_after = {'[' * 5_000}", "cannot be read: it is nested too deeply"),
        ("\ufeff[tenancy]\nhold = 'head'", "is no TOML: it begins with a byte order mark"),
        ('[resources."a\\nb"]\ntickets = 0', "'a\\nb' is no name of a resource: it holds a control character"),
        ('["a\\nb"]\nx = 1', "there is no section ['a\\nb']: known are"),
        ('resources."a\\nb" = 1', "resources.'a\\nb' must be a table"),
    ],
)
def test_each_fault_names_file_and_key_and_what_is_accepted(write: Write, text: str, says: str) -> None:
    write(text)
    told = refusal()
    assert told.startswith("bulkhead.toml: ")
    assert says in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("BULKHEAD_TENENCY__HEADER", "X", "there is no section 'tenency': did you mean 'tenancy'?"),
        ("BULKHEAD_TENANCY__HEADR", "X", "tenancy has no key 'headr': did you mean 'header'?"),
        ("BULKHEAD_TENANCY_HEADER", "X", "two underscores stand between section and key: BULKHEAD_TENANCY__HEADER"),
        ("BULKHEAD_RESOURCES_A_TICKETS", "3", "two underscores stand between section and key"),
        ("BULKHEAD_TENANCY", "{}", "a section is no value; set single keys, BULKHEAD_TENANCY__KEY"),
        ("BULKHEAD_RESOURCES__A", "{tickets = 3}", "names no key; the form is BULKHEAD_RESOURCES__INVENTORY__TICKETS"),
        ("BULKHEAD_TENANCY__", "3", "names no key; the form is BULKHEAD_TENANCY__KEY"),
        ("BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS", "many", "must be a whole number from 0 to 1,000,000, not 'many'"),
        ("BULKHEAD_RESOURCES__A__TICKETS", "3; rm", "resources.a.tickets must be a whole number"),
        ("BULKHEAD_RESOURCES__A__TICKETS__B", "3", "resources.a.tickets must be a whole number"),
        ("BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS", "9" * 5_000, "must be a whole number from 0 to 1,000,000, not "),
        ("BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS", "[" * 60_000, "must be a whole number from 0 to 1,000,000, not "),
        ("BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS", '{"a":' * 20_000, "must be a whole number from 0 to 1,000,000, "),
    ],
)
def test_a_fault_of_the_environment_names_the_variable(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    told = refusal()
    assert told.startswith(f"environment {variable}: ")
    assert says in told


def test_a_variable_that_is_there_twice_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_TENANCY__ENABLED", "false")
    monkeypatch.setenv("bulkhead_tenancy__enabled", "true")
    assert refusal() == "environment bulkhead_tenancy__enabled: is BULKHEAD_TENANCY__ENABLED again; unset one"


def test_variables_of_others_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISABLED", "TICKETS_DISABLED", "RUNTIME_DIR", "SERVICE_HOST", "PORT_80_TCP", "SERVER_PORT", ""):
        monkeypatch.setenv(f"BULKHEAD_{name}", "0")
    assert settings.load().origins == {}


def test_a_value_and_a_part_of_it_cannot_both_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_TENANCY__MAX_WEBSOCKETS", "3")
    monkeypatch.setenv("BULKHEAD_TENANCY__MAX_WEBSOCKETS__ACME", "3")
    assert "is a part of BULKHEAD_TENANCY__MAX_WEBSOCKETS, which is also set" in refusal()


def test_all_faults_are_told_at_once_and_nothing_changes(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("[tenancy]\nheadr = 'X'\nhold = 'tail'\n[servr]\n[resources.a]\ntickets = 0\n[resources.b]\ntickets = 1\n")
    monkeypatch.setenv("BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS", "many")
    lines = refusal().splitlines()
    assert lines[0] == "5 settings cannot be used:"
    for key in (
        "tenancy has no key 'headr'",
        "tenancy.hold",
        "[servr]",
        "resources.a.tickets",
        "max_concurrent_requests",
    ):
        assert sum(key in line for line in lines) == 1
    with pytest.raises(bulkhead.ConfigurationError, match="no options are defined"):
        bulkhead.resource("b")


def test_a_named_file_that_is_missing_is_an_error(write: Write, tmp_path: Path) -> None:
    assert refusal("other.toml") == "other.toml: there is no such file"
    (tmp_path / "folder").mkdir()
    assert refusal("folder") == "folder: is no file"
    write("[tool.other]\n", "pyproject.toml")
    assert refusal("pyproject.toml") == "pyproject.toml: has no table [tool.bulkhead]"
    write("[tool]\nbulkhead = 3\n", "pyproject.toml")
    assert refusal() == "pyproject.toml: [tool.bulkhead] is no table"
    (tmp_path / "latin.toml").write_bytes(b'[tenancy]\nheader = "\xe4"\n')
    assert refusal("latin.toml").startswith("latin.toml: is no TOML: ")


def test_a_pyproject_that_is_no_toml_counts_only_if_it_names_us(write: Write) -> None:
    write("[broken\n", "pyproject.toml")
    assert settings.load().file is None
    write("[tool.bulkhead.server]\nbroken\n", "pyproject.toml")
    assert refusal().startswith("pyproject.toml: is no TOML: ")


def test_settings_are_strict_where_options_are_lax(write: Write) -> None:
    bulkhead.defaults(force_config_validation=False)
    write("[resources.a]\ntickets = 3\nerror_threshold = 3\nforce_config_validation = false\n")
    assert "resources.a: error_timeout and success_threshold missing" in refusal()


def test_options_that_code_defines_otherwise_are_an_error_in_the_file(write: Write) -> None:
    bulkhead.define("a", tickets=3)
    write("[resources.a]\ntickets = 3\n")
    settings.load()
    bulkhead.define("b", tickets=3)
    write("[resources.a]\ntickets = 3\n[resources.b]\ntickets = 4\n")
    assert "bulkhead.toml: resources.b is also defined in code by bulkhead.define(), with other options" in refusal()


def test_no_secret_is_told(write: Write, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bulkhead")
    write("[tenancy]\nenabled = true\nsource = 'jwt'\njwt_algorithms = ['HS256']\n")
    monkeypatch.setenv("BULKHEAD_TENANCY__JWT_KEY", SECRET)
    now = settings.load()
    assert now.tenancy.jwt_key == SECRET
    monkeypatch.setenv("BULKHEAD_TENANCY__JWT_KEY", SECRET * 2)
    settings.reload()
    told = [repr(now), repr(now.tenancy), str(now.told()), caplog.text]
    monkeypatch.setenv("BULKHEAD_TENANCY__JWT_KEY__X", SECRET)
    told.append(refusal())
    monkeypatch.delenv("BULKHEAD_TENANCY__JWT_KEY__X")
    monkeypatch.setenv("BULKHEAD_TENANCY__JWT_KYE", SECRET)
    monkeypatch.setenv("BULKHEAD_TENANCY__DOMAIN", f"redis://user:{SECRET}@host")
    told.append(refusal())
    write(f"[tenancy]\njwt_key = ['{SECRET}']\n")
    monkeypatch.delenv("BULKHEAD_TENANCY__JWT_KEY")
    told.append(refusal())
    for url in (f"redis://user:a/{SECRET}@host", f"redis://user:a@{SECRET}@host"):
        write(f"[tenancy]\njwt_key = ['{SECRET}']\ndomain = '{url}'\n[resources.a]\nname = '{url}'\ntickets = 0\n")
        told.append(refusal())
    write(f"[tenancy]\njwt_key = ['{SECRET}']\n")
    told += [refusal(), caplog.text]
    assert "jwt_key must be a text that is not empty" in told[-2]
    assert "tenancy.jwt_key: (hidden) -> (hidden)" in caplog.text
    assert [text for text in told if SECRET in text] == []


def test_a_log_line_tells_no_tenant_id(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bulkhead")
    write("[tenancy]\nmax_websockets = { acme = 2 }\n")
    settings.load()
    write("[tenancy]\nmax_websockets = { acme = 3 }\n")
    settings.reload()
    assert "tenancy.max_websockets: <a table of 1> -> <a table of 1>" in caplog.text
    assert "acme" not in caplog.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """What a part of its own would register."""

    workers: int = row(2, "threads", "how many", whole(1))
    spare: int = row(1, "threads", "of these, kept free", whole(0))


def later_rules(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if values["spare"] >= values["workers"]:
        yield "spare", "leaves nobody to work"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "_sections", dict(sections._sections))
    settings.section("later", Later, later_rules)


@pytest.mark.usefixtures("later")
def test_a_part_registers_its_section_and_has_all_of_this(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.load().of(Later) == Later()
    write("[later]\nworkers = 5\n")
    monkeypatch.setenv("BULKHEAD_LATER__SPARE", "3")
    now = settings.load()
    assert now.of(Later) == Later(workers=5, spare=3)
    assert (now.origin("later.workers"), now.of(settings.Server)) == ("bulkhead.toml", now.server)
    monkeypatch.setenv("BULKHEAD_LATER__SPARE", "5")
    assert refusal() == "environment BULKHEAD_LATER__SPARE: later.spare leaves nobody to work"


def test_a_kind_of_value_that_tells_more_tells_nothing_of_a_secret() -> None:
    one = row((), "", "keys", texts("keys", "[a-z]+"), marks=("secret",)).metadata["row"]  # type: ignore[attr-defined]
    with pytest.raises(Refused) as caught:
        keep("later.keys", ["Secret 1"], one)
    assert str(caught.value) == "later.keys must be a list of keys, not what was given (its value is not shown)"


@pytest.mark.usefixtures("later")
def test_a_section_has_one_owner_and_rows_only() -> None:
    settings.section("later", Later, later_rules)
    with pytest.raises(bulkhead.ConfigurationError, match="already registered by Later"):
        settings.section("later", settings.Server)
    for name in ("resources", "two__parts", "Upper", "with-dash"):
        with pytest.raises(bulkhead.ConfigurationError, match=f"{name!r} cannot be the name of a section"):
            settings.section(name, Later)
    with pytest.raises(bulkhead.ConfigurationError, match="is no dataclass whose fields are all rows"):
        settings.section("other", dataclass(type("Plain", (), {"__annotations__": {"x": int}, "x": 1})))
    with pytest.raises(bulkhead.ConfigurationError, match="no section of the settings is a Path"):
        settings.load().of(type("Path", (), {}))


def test_defaults_of_every_row_are_accepted_by_it() -> None:
    for known in sections.sections().values():
        for name, one in rows_of(known.kind).items():
            default = getattr(known.kind(), name)
            assert one.values.keep(default) == default
            assert one.meaning
            assert re.search(r"\w", one.values.says)

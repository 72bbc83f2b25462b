"""`bulkhead config`: what is wrong with a file, and what holds here and why."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from cli.starting import ROOT, runner

from bulkhead.option_rows import rows_of
from bulkhead.option_set import Options
from bulkhead.settings.sections import sections

if TYPE_CHECKING:
    from pathlib import Path

    from cli.starting import Command
    from settings.conftest import Write

GOOD = """
[tenancy]
enabled = true
source = "jwt"
jwt_algorithms = ["RS256"]
max_concurrent_requests = { default = 8, "a cme" = 32 }
[resources.inventory]
tickets = 16
[resources."pay ments"]
tenant_tickets = 2
"""
KEY = {"BULKHEAD_TENANCY__JWT_KEY": "correct-horse-battery"}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """`bulkhead …` in the folder of the test."""
    return runner(tmp_path, [sys.executable])


def test_check_lists_every_fault_and_ends_with_1(write: Write, command: Command) -> None:
    write("[tenancy]\nheadr = 'X'\nhold = 'tail'\n[servr]\n", "some.toml")
    done = command("config", "check", "some.toml", env={"BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS": "many"})
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "!! some.toml: there is no section [servr]: did you mean 'server'?",
        "!! some.toml: tenancy has no key 'headr': did you mean 'header'?",
        "!! some.toml: tenancy.hold must be 'head' or 'body', not 'tail'",
        (
            "!! environment BULKHEAD_SERVER__MAX_CONCURRENT_REQUESTS: server.max_concurrent_requests must be a whole "
            "number from 0 to 1,000,000, not 'many'"
        ),
        "   some.toml: 4 to be put right",
    ]
    assert done.stderr == ""


def test_check_of_a_good_file_ends_with_0(write: Write, command: Command) -> None:
    write(GOOD)
    done = command("config", "check", "bulkhead.toml", env=KEY)
    assert (done.returncode, done.stdout) == (0, "   bulkhead.toml: all is well, keys set: 9\n")
    assert command("config", "check", env=KEY).stdout == done.stdout


def test_check_of_a_file_that_is_missing_ends_with_1(command: Command) -> None:
    done = command("config", "check", "other.toml")
    assert done.returncode == 1
    assert "!! other.toml: there is no such file" in done.stdout
    page = " ".join((ROOT / "docs" / "settings.md").read_text(encoding="utf-8").split())
    assert "ends with 1 if there is anything to be put right, a file that is not there included" in page
    assert command("config", "check").stdout == "   no settings file here: all is well, keys set: 0\n"


def test_show_prints_every_value_and_where_it_comes_from(write: Write, command: Command) -> None:
    write(GOOD, "etc/prod.toml")
    done = command("config", "show", "--file", "etc/prod.toml", env=KEY)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "# etc/prod.toml"
    found = {tuple(part.strip() for part in line.split("#")) for line in lines if " # " in line}
    for pair in (
        ('source = "jwt"', "etc/prod.toml, needs a restart"),
        ("jwt_key = (hidden)", "environment BULKHEAD_TENANCY__JWT_KEY"),
        ('max_concurrent_requests = {"default" = 8, "a cme" = 32}', "etc/prod.toml"),
        ("tickets = 16", "etc/prod.toml"),
        ("domain = none", "default"),
        ("retry_after = 1", "default"),
    ):
        assert pair in found
    assert '[resources."pay ments"]' in lines
    assert "[resources.inventory]" in lines
    assert not [line for line in lines if line.startswith("error_timeout")]
    assert KEY["BULKHEAD_TENANCY__JWT_KEY"] not in done.stdout + done.stderr


def test_show_as_json_has_every_key(write: Write, command: Command) -> None:
    write(GOOD)
    done = command("config", "show", "--json", env=KEY)
    found = json.loads(done.stdout)
    assert found["file"] == "bulkhead.toml"
    expected = {f"{name}.{key}" for name, known in sections().items() for key in rows_of(known.kind)}
    expected |= {f"resources.{name}.{key}" for name in ("inventory", "pay ments") for key in rows_of(Options)}
    assert set(found["settings"]) == expected
    assert found["settings"]["tenancy.jwt_key"] == {
        "value": "(hidden)",
        "origin": "environment BULKHEAD_TENANCY__JWT_KEY",
        "changes_at": "reload",
    }
    assert found["settings"]["tenancy.max_concurrent_requests"]["value"] == {"default": 8, "a cme": 32}
    assert found["settings"]["resources.inventory.maximum_tenants"] == {
        "value": 10_000,
        "origin": "default",
        "changes_at": "restart",
    }


def test_show_of_settings_that_cannot_be_used_says_why(write: Write, command: Command) -> None:
    write("[tenancy]\nhold = 'tail'\n")
    done = command("config", "show")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "!! bulkhead.toml: tenancy.hold must be 'head' or 'body', not 'tail'\n"


def test_without_the_extra_it_says_what_to_install(write: Write, tmp_path: Path) -> None:
    write(GOOD)
    (tmp_path / "pydantic_settings.py").write_text("raise ImportError('no such module')\n", encoding="utf-8")
    done = runner(tmp_path, [sys.executable])("config", "check")
    assert done.returncode == 2
    assert 'pip install "bulkhead-toolkit[settings]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_use_is_explained(command: Command) -> None:
    done = command("config")
    assert done.returncode == 2
    assert "WHAT" in done.stderr
    told = command("config", "show", "--help").stdout
    assert "--json" in told
    assert "--file" in told

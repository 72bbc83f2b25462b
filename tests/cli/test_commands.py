"""The command line: what it takes, what it refuses, and its exit statuses."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

import bulkhead.cli
from bulkhead.option_set import process_table, table

if TYPE_CHECKING:
    from cli.starting import Command


def test_options_prints_the_tables(command: Command) -> None:
    assert command("options").stdout == table()
    assert command("options", "--defaults").stdout == process_table()


def test_version_is_that_of_the_distribution(command: Command) -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"bulkhead {metadata.version('bulkhead-toolkit')}\n")


def test_version_of_a_checkout_that_is_not_installed_says_so(command_without_drivers: Command) -> None:
    done = command_without_drivers("--version")
    assert (done.returncode, done.stdout) == (0, "bulkhead, of a version that is not known: it is not installed\n")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["docter"], "invalid choice: 'docter'"),
        (["demo", "--seconds", "0"], "'0' is no number of seconds from 1 to 600"),
        (["demo", "--seconds", "nan"], "'nan' is no number of seconds"),
        (["demo", "--only", "redis"], "invalid choice: 'redis'"),
        (["demo", "--picture", "demo.gif"], "ends neither in .svg"),
        (["demo", "--picture", "nowhere/demo.svg"], "there is no folder"),
    ],
)
def test_wrong_use_says_what_is_wrong_and_exits_with_2(command: Command, arguments: list[str], says: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_demo_help_explains_both_scenes(command: Command) -> None:
    told = command("demo", "--help").stdout
    for word in ("SIGSTOP", "floods", "without and with protection", "extra `demo`", "--seconds", "--picture"):
        assert word in told
    assert max(map(len, told.splitlines())) <= 80


def test_the_module_file_is_a_command_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bulkhead.cli", "options"], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == table()


def test_a_reader_that_stops_reading_is_no_error() -> None:
    """`bulkhead options | head -1`: no traceback."""
    with subprocess.Popen(
        [sys.executable, "-m", "bulkhead", "options"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.close()
        assert writer.stderr.read() == b""
        assert writer.wait(timeout=30) == 128 + signal.SIGPIPE


def test_a_demo_without_its_extra_says_what_to_install(command_without_drivers: Command) -> None:
    done = command_without_drivers("demo", "--no-picture")
    assert done.returncode == 2
    assert "pip install 'bulkhead-toolkit[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_main_returns_the_status_to_the_script_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert bulkhead.cli.main(["options"]) == 0
    assert capsys.readouterr().out == table()

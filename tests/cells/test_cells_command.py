"""`bulkhead cells show | diff | rebalance | promote | publish`, as their users run them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cells.map_server import MapServer
from cli.starting import environment, runner

import bulkhead.cli
from bulkhead.cells import MapVersion, load
from bulkhead.cells.map_files import parse
from bulkhead.hashing import SLOTS

if TYPE_CHECKING:
    from cli.starting import Command

MAP = """
version = 7
[[cells]]
name = "eu-1"
url = "https://eu-1.example.com"
standby_url = "https://eu-1.west.example.com"
[[cells]]
name = "eu-2"
url = "https://eu-2.example.com"
standby_url = "https://eu-2.west.example.com"
state = "draining"
[pins]
acme = "eu-2"
[tenants]
globex = "moving"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cells.toml").write_text(MAP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder: Path) -> Command:
    return runner(folder, [sys.executable])


class Run:
    """The command in this process."""

    def __init__(self, caught: pytest.CaptureFixture[str]) -> None:
        self._caught = caught

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        status = bulkhead.cli.main(["cells", *arguments])
        out, err = self._caught.readouterr()
        return status, out, err


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    assert folder.is_dir()
    return Run(capsys)


def test_show_prints_cells_pins_and_tenants_in_plain_columns(command: Command) -> None:
    done = command("cells", "show", "cells.toml")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "map 0.7 (epoch.version), 2 cells, an even split, hash xxh64"
    assert lines[3].split() == ["eu-2", "draining", "8192", "50.0%", "8192-16383", "1", "https://eu-2.example.com"]
    assert lines[4:] == ["standby URLs: all cells", "not served: globex (moving)"]


def test_show_finds_a_tenants_cell(run: Run) -> None:
    status, out, _ = run("show", "cells.toml", "--tenant", "acme", "--tenant", "globex", "--json")
    rows = json.loads(out)
    assert status == 0
    assert [(row["tenant"], row["cell"], row["by"], row["served"]) for row in rows] == [
        ("acme", "eu-2", "pin", "yes"),
        ("globex", "eu-1", "hash", "503: moving"),
    ]
    assert "hash  https://eu-1.example.com  503: moving" in run("show", "cells.toml", "--tenant", "globex")[1]


def test_show_as_json_is_a_map_with_the_slots_of_each_cell(run: Run) -> None:
    told = json.loads(run("show", "cells.toml", "--json")[1])
    assert told.pop("slots") == {"eu-1": ["0-8191"], "eu-2": ["8192-16383"]}
    assert parse(json.dumps(told), "x") == load("cells.toml")


@pytest.mark.no_cover  # which takes longer than the command
def test_show_takes_no_time_however_many_cells_there_are(run: Run, folder: Path) -> None:
    cells = "".join(f'[[cells]]\nname = "c{n}"\nurl = "http://c{n}"\n' for n in range(SLOTS))
    pins = "".join(f'tenant-{n} = "c{n}"\n' for n in range(SLOTS))
    (folder / "many.toml").write_text(f"version = 1\n{cells}[pins]\n{pins}", encoding="utf-8")
    began = time.process_time()
    told = json.loads(run("show", "many.toml", "--json")[1])
    assert time.process_time() - began < 8
    assert told["slots"] == {f"c{n}": [str(n)] for n in range(SLOTS)}
    assert run("show", "many.toml")[1].splitlines()[-1].split()[2:-1] == ["1", "0.0%", "16383", "1"]


def test_show_reads_a_map_from_a_url(run: Run) -> None:
    pytest.importorskip("httpx")
    server = MapServer()
    server.text = MAP
    try:
        assert "map 0.7" in run("show", server.url)[1]
        server.status = 404
        status, _, err = run("show", server.url)
    finally:
        server.stop()
    assert status == 2
    assert err.endswith("answers 404\n")


def test_a_map_that_cannot_be_used_lists_its_faults_with_file_and_key(run: Run, folder: Path) -> None:
    (folder / "bad.toml").write_text("version = 0\n[[cells]]\nname = 'a'\nurl = 'h'\nslots = '5-3'", encoding="utf-8")
    for arguments in (["show", "bad.toml"], ["diff", "cells.toml", "bad.toml"], ["publish", "bad.toml"]):
        status, out, err = run(*arguments)
        assert (status, out) == (2, "")
        for says in ("bad.toml: version must", "bad.toml: cell 'a': url must", "bad.toml: cell 'a': slots: '5-3'"):
            assert says in err
    status, _, err = run("show", "none.toml")
    assert (status, err) == (2, "bulkhead: none.toml: cannot be read: No such file or directory\n")


def test_rebalance_and_diff_and_publish_in_a_row(run: Run, folder: Path) -> None:
    status, out, err = run("rebalance", "cells.toml", "--add", "eu-3=https://eu-3.example.com", "--out", "new.toml")
    assert (status, out) == (0, "")
    assert "map 0.7 -> 0.8: 5461 of 16384 slots move, 33.3%" in err
    (folder / "ids").write_text("".join(f"tenant-{n}\n" for n in range(3000)), encoding="utf-8")
    status, out, _ = run("diff", "cells.toml", "new.toml", "--tenants", "ids", "--json")
    told = json.loads(out)
    assert status == 1
    assert (told["slots_moved"], told["even_split"], told["tenants_looked_at"]) == (5461, False, 3000)
    assert told["tenant_share"] == pytest.approx(1 / 3, abs=0.05)
    assert len(told["tenants"]) == round(told["tenant_share"] * 3000)
    assert {one["to"] for one in told["tenants"]} == {"eu-3"}
    status, out, _ = run("diff", "cells.toml", "new.toml", "--tenants", "ids")
    assert status == 1
    assert "5461 of 16384 slots move, 33.3%" in out
    assert "more; --json lists all" in out
    assert len(out.splitlines()) < 40
    assert run("publish", "new.toml", "--to", "cells.toml")[::2] == (0, "   cells.toml: map 0.8\n")
    assert run("diff", "cells.toml", "new.toml")[0] == 0


def test_a_diff_of_even_splits_tells_the_share_of_tenants_that_move(run: Run, folder: Path) -> None:
    for count in (8, 9):
        cells = "".join(f'[[cells]]\nname = "c{n}"\nurl = "http://c{n}"\n' for n in range(count))
        (folder / f"{count}.toml").write_text(f"version = {count}\n{cells}", encoding="utf-8")
    status, out, _ = run("diff", "8.toml", "9.toml")
    assert status == 1
    assert "!! an even split over 9 cells instead of 8: 50.0% of all tenants move" in out
    assert "moves about 1/9 of them" in out
    (folder / "ids").write_text("".join(f"tenant-{n}\n" for n in range(2000)), encoding="utf-8")
    assert "% of the given tenants move" in run("diff", "8.toml", "9.toml", "--tenants", "ids")[1]
    assert "!! the new map's version is not higher" in run("diff", "9.toml", "8.toml")[1]


def test_a_diff_tells_moves_that_should_not_be(run: Run, folder: Path) -> None:
    (folder / "new.toml").write_text(
        MAP.replace("version = 7", "version = 8") + 'initech = "frozen"\n', encoding="utf-8"
    )
    assert run("diff", "cells.toml", "new.toml")[:2] == (0, "map 0.7 -> 0.8\n   no slot moves\n")
    swapped = MAP.replace('"eu-1"', "x").replace('"eu-2"', '"eu-1"').replace("x\n", '"eu-2"\n', 1)
    (folder / "new.toml").write_text('hash = "fnv1a64"\n' + swapped, encoding="utf-8")
    out = run("diff", "cells.toml", "new.toml")[1]
    assert "!! 1 moves are from a cell that is down, or to one that takes nothing new" in out
    assert "!! the hash is another one" in out


def test_ids_from_standard_input_and_ids_that_are_none(command: Command, run: Run, folder: Path) -> None:
    (folder / "ids").write_bytes(b"a\n\n b \nc\x07\n")
    status, out, err = run("diff", "cells.toml", "cells.toml", "--tenants", "ids")
    assert (status, out) == (2, "")
    assert err == "bulkhead: ids, line 4: this tenant id cannot be used: it holds a control character\n"
    (folder / "ids").write_bytes(b"a\n\xff\n")
    assert "is not UTF-8" in run("diff", "cells.toml", "cells.toml", "--tenants", "ids")[2]
    assert (
        run("diff", "cells.toml", "cells.toml", "--tenants", "none")[2] == "bulkhead: none: No such file or directory\n"
    )
    assert command("cells", "diff", "cells.toml", "cells.toml", "--tenants", "-").stdout.endswith("no slot moves\n")


def test_progress_is_told_where_somebody_watches(folder: Path) -> None:
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "bulkhead", "cells", "diff", "cells.toml", "cells.toml", "--tenants", "-"]
    with subprocess.Popen(
        command, cwd=folder, env=environment({}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal
    ) as process:
        os.close(terminal)
        assert process.stdin
        assert process.stdout
        os.set_blocking(screen, False)
        seen, deadline = b"", time.monotonic() + 30
        while b"000 tenants" not in seen:
            assert time.monotonic() < deadline
            process.stdin.write(b"acme\n" * 1000)
            process.stdin.flush()
            with contextlib.suppress(BlockingIOError):
                seen += os.read(screen, 65536)
        process.stdin.close()
        assert b"000 tenants move, 0.0%" in process.stdout.read()
        assert process.wait(30) == 0
    os.close(screen)


def test_promote_prints_the_map_at_its_standby_urls(run: Run) -> None:
    status, out, err = run("promote", "cells.toml")
    made = parse(out, "x")
    assert status == 0
    assert "2 cells at their standby URLs" in err
    assert [cell.url for cell in made.router.cells] == [
        "https://eu-1.west.example.com",
        "https://eu-2.west.example.com",
    ]
    assert made.stamp == MapVersion(0, 8)
    assert parse(run("promote", "cells.toml", "--json")[1], "x") == made
    Path("west.toml").write_text(out, encoding="utf-8")
    status, out, err = run("promote", "west.toml")
    assert (status, out) == (2, "")
    assert "standby_url is missing; nothing is promoted" in err


def test_publish_raises_the_version_and_the_epoch(run: Run) -> None:
    old = Path("cells.toml").read_text(encoding="utf-8")
    Path("old.toml").write_text(old.replace("version = 7", "version = 2"), encoding="utf-8")
    assert parse(run("publish", "old.toml")[1], "x").stamp == MapVersion(0, 2)
    assert Path("cells.toml").read_text(encoding="utf-8") == old
    assert run("publish", "old.toml", "--to", "cells.toml")[2] == "   cells.toml: map 0.8\n"
    assert run("publish", "old.toml", "--to", "cells.toml", "--new-epoch")[2] == "   cells.toml: map 1.9\n"
    assert load("cells.toml").stamp == MapVersion(1, 9)
    assert run("publish", "old.toml", "--to", "new.json")[0] == 0
    assert json.loads(Path("new.json").read_text(encoding="utf-8"))["version"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rebalance", "cells.toml", "--add", "eu-3"], "--add takes NAME=URL, not 'eu-3'"),
        (["rebalance", "cells.toml", "--add", "eu-1=http://x"], "cell 'eu-1': there is one of this name already"),
        (["rebalance", "cells.toml", "--add", "x=http://x", "--out", "nowhere/x.toml"], "nowhere/x.toml: No such file"),
        (["publish", "cells.toml", "--to", "nowhere/x.toml"], "nowhere/x.toml: cannot be written: No such file"),
        (["show", "cells.toml", "--tenant", ""], "this tenant id cannot be used: it is empty"),
        (["show", "ftp://x/y"], "give an http(s) URL, not 'ftp://x/y'"),
        (["haproxy", "ftp://x/y", "--out", "out"], "give an http(s) URL, not 'ftp://x/y'"),
        (["rebalance", "cells.toml", "--add", "eu-9=foo"], "--add eu-9=foo: cell 'eu-9': url must be http"),
        (["rebalance", "cells.toml", "--add", "x=http://u:hunter2@h"], "--add x=http://***@h: cell 'x': url must not"),
        (["serve", "cells.toml", "--domain", "example.com"], "--source subdomain and --domain go together"),
        (["serve", "cells.toml", "--source", "subdomain"], "--source subdomain and --domain go together"),
    ],
)
def test_wrong_use_says_what_is_wrong_and_exits_with_2(run: Run, arguments: list[str], says: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "bulkhead: " in err
    assert says in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--port", "99999"], "argument --port: '99999' is no port, 0 to 65535"),
        (["serve", "--port", "-1"], "argument --port: "),
        (["serve", "--read-timeout", "0"], "argument --read-timeout: must be a number of seconds, above 0, not 0.0"),
        (["serve", "--connect-timeout", "nan"], "argument --connect-timeout: must be a number of seconds"),
        (["serve", "--connect-timeout", "x"], "argument --connect-timeout: must be a number of seconds"),
        (["serve", "--header", "a b"], "argument --header: 'a b' is no name of a header, of letters, digits and -"),
        (["serve", "--cell-header", "é"], "argument --cell-header: 'é' is no name of a header"),
        (["serve", "--trust", "foo"], "argument --trust: 'foo' is no network, such as 10.0.0.0/8"),
        (["haproxy", "--out", "out", "--trust", "foo"], "argument --trust: 'foo' is no network"),
        (["serve", "--keep", ""], "argument --keep: is empty"),
        (["serve", "--cell-header", "Host"], "argument --cell-header: 'Host' has a meaning of its own"),
        (["publish", "--to", ""], "argument --to: is empty"),
        (["promote", "--out", ""], "argument --out: is empty"),
        (["haproxy", "--out", ""], "argument --out: is empty"),
        (["show", ""], "argument MAP: is empty"),
        (["diff", "", "--tenants", "ids"], "argument OLD: is empty"),
        (["haproxy", "--out", "out", "--bind", ""], "argument --bind: is empty"),
        (["haproxy", "--out", "out", "--stats-socket", "'"], 'argument --stats-socket: "\'" holds characters'),
    ],
)
def test_a_wrong_option_is_told_by_its_name(
    arguments: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bulkhead.cli.main(["cells", *arguments, "cells.toml"])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
    assert not (folder / "out").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["cells show cells.toml", "options", "doctor"])
def test_a_full_disk_is_told(folder: Path, words: str, unbuffered: str) -> None:
    command = [sys.executable, "-m", "bulkhead", *words.split()]
    changes = environment({"PYTHONUNBUFFERED": unbuffered})
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, cwd=folder, env=changes, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "bulkhead: standard output: No space left on device\n")


@pytest.mark.parametrize("part", ["serve", "haproxy"])
def test_usage_names_the_map_as_the_other_parts_do(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bulkhead.cli.main(["cells", part, "--help"])
    told = capsys.readouterr().out
    assert "MAP" in told.partition("\n\n")[0]
    assert "X-Tenant-ID" in told
    assert "may be repeated" in " ".join(told.split())


def test_haproxy_reads_a_map_from_a_url(run: Run, folder: Path) -> None:
    pytest.importorskip("httpx")
    server = MapServer()
    server.text = MAP
    try:
        assert run("haproxy", server.url, "--out", "out")[0] == 0
    finally:
        server.stop()
    assert (folder / "out" / "haproxy.cfg").exists()


@pytest.mark.parametrize("part", ["show", "diff", "rebalance", "promote", "publish"])
def test_help_is_enough_to_use_it(
    part: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        bulkhead.cli.main(["cells", part, "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--json" in told
    assert max(map(len, told.splitlines())) <= 90


def test_on_a_terminal_tables_are_drawn_and_ids_are_no_markup(folder: Path) -> None:
    pytest.importorskip("rich")
    (folder / "cells.toml").write_text(MAP.replace("globex", '"[red]globex"'), encoding="utf-8")
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "bulkhead", "cells", "show", "cells.toml", "--tenant", "[red]globex"],
        env=environment({"TERM": "xterm", "COLUMNS": "100"}),
        stdout=terminal,
    )
    os.close(terminal)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while chunk := os.read(screen, 65536):
            seen += chunk
    os.close(screen)
    assert process.wait(timeout=30) == 0
    assert "│ [red]globex │" in seen.decode()

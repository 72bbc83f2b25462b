"""Map files: what they say, what is wrong with them, versions, and tenants that are not served."""

from __future__ import annotations

import json
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkhead.cells import Cell, CellMap, CellRouter, MapVersion, RetryAfter, load
from bulkhead.cells.map_files import json_text, parse, toml_text, write_if_newer
from bulkhead.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

TWO = """
[[cells]]
name = "a"
url = "http://a"
[[cells]]
name = "b"
url = "http://b"
"""


def made(version: int = 1, **more: Any) -> CellMap:
    return CellMap(CellRouter([Cell("a", "http://a"), Cell("b", "http://b")]), version, **more)


def faults(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, "cells.toml")
    return str(caught.value)


ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@pytest.mark.no_cover
@given(
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.sampled_from(["xxh64", "fnv1a64"]),
    st.dictionaries(ids, st.sampled_from(["a", "b"]), max_size=4),
    st.dictionaries(ids, st.sampled_from(["moving", "frozen"]), max_size=4),
    st.floats(0, 86_400),
    st.integers(0, 1),
)
def test_what_is_written_is_read_again(
    version: int, epoch: int, hash_name: Any, pins: Any, tenants: Any, seconds: float, explicit: int
) -> None:
    first = Cell("a", "http://a/base", ["0-99", 16383] if explicit else (), "https://a.west", "draining")
    second = Cell("b", "https://b:444", ("100-16382",) if explicit else (), state="down")
    one = CellMap(CellRouter([first, second], hash_name, pins), version, epoch, tenants, RetryAfter(moving=seconds))
    for text in (toml_text(one), json_text(one)):
        assert parse(text, "x") == one
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TWO, "version is missing"),
        ("version = 0" + TWO, "version must be a whole number, 1 or more, not 0"),
        ("version = true" + TWO, "version must be a whole number"),
        ("version = 1.5" + TWO, "version must be a whole number"),
        ("version = 1\nepoch = -1" + TWO, "epoch must be a whole number, 0 or more"),
        ("version = 1\nverison = 2" + TWO, "verison is no key of a map: did you mean 'version'?"),
        ("version = 1", "cells are missing"),
        ("version = 1\ncells = 7", "cells must be tables"),
        ("version = 1\ncells = []", "there are no cells"),
        ("version = 1\n[[cells]]\nname = 'a'", "cells 1 ('a').url is missing"),
        ("version = 1\n[[cells]]\nurl = 'http://h'", "cells 1.name is missing"),
        ("version = 1\n[[cells]]\nname = 'a'\nurl = 'http://h'\nslot = 1", "cells 1 ('a').slot is no key of a map"),
        ("version = 1\n[[cells]]\nname = 'a'\nurl = 'http://h'\nslots = {}", "cell 'a': slots: {} is neither"),
        ("version = 1\n[[cells]]\nname = 'a'\nurl = 'http://h'\nslots = [[1]]", "cell 'a': slots: [1] is neither"),
        ("version = 1\n[[cells]]\nname = 'a'\nurl = 'http://h'\nslots = '0-9'", "no cell has slots 10-16383"),
        ("version = 1\n[[cells]]\nname = 7\nurl = 'http://h'", "cell 7: the name must be"),
        ("version = 1\nhash = 'md5'" + TWO, "hash must be one of xxh64, fnv1a64"),
        ("version = 1" + TWO + "[pins]\nacme = 'c'", "pins.'acme': there is no cell 'c'"),
        ("version = 1" + TWO + "[pins]\nacme = 7", "pins.'acme': there is no cell 7"),
        ("version = 1\npins = 3" + TWO, "pins must be a table, [pins], not 3"),
        ("version = 1" + TWO + "[tenants]\nacme = 'gone'", "tenants.'acme' must be one of moving, frozen"),
        ("version = 1" + TWO + '[tenants]\n"" = "moving"', "tenants.'': this tenant id cannot be used: it is empty"),
        ("version = 1" + TWO + "[retry_after]\nmoving = -1", "retry_after.moving must be a number of seconds"),
        ("version = 1" + TWO + "[retry_after]\nfrozen = nan", "retry_after.frozen must be a number of seconds"),
        ("version = 1" + TWO + "[retry_after]\nslow = 1", "retry_after.slow is no key of a map"),
        ("version = ", "is neither TOML nor JSON"),
        ('{"version": 1, "version": 2}', "a key stands twice in one object"),
        ("[" * 5000, "is neither TOML nor JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(text: str, says: str) -> None:
    told = faults(text)
    assert says in told or (says == "is neither TOML nor JSON" and "nested too deeply" in told)
    assert "cells.toml: " in told


def test_all_faults_of_a_file_are_told_at_once() -> None:
    text = faults("epoch = -1\nhash = 'md5'\nx = 1" + TWO + "[pins]\nacme = 'c'\n[tenants]\nglobex = 'gone'")
    for says in ("6 faults", "x is no key", "version is missing", "epoch must", "hash must", "pins.'acme'", "'globex'"):
        assert says in text
    assert text.count("\n  cells.toml: ") == 6


def test_no_fault_of_a_cell_hides_another() -> None:
    text = faults(
        "version = 0\n[[cells]]\nurl = 'ftp://h'\nslots = '5-3'\nx = 1\n"
        "[[cells]]\nname = 'a b'\nurl = 7\nstate = 'ill'\nslots = {}\n"
        "[[cells]]\nname = 'c'\nslots = ['x', 7]\nstandby_url = 'h'\n"
        "[[cells]]\nname = 'd'\nurl = 'http://d'\n[pins]\nacme = 'z'\n'' = 'z'"
    )
    for says in (
        "version must", "cells 1.x is no key", "cells 1.name is missing", "cell 'unnamed-1': url must be http",
        "cell 'unnamed-1': slots: '5-3' is inverted", "cell 'a b': the name must", "cell 'a b': url must be a text",
        "cell 'a b': state must", "cell 'a b': slots: {} is neither", "cells 3 ('c').url is missing",
        "cell 'c': slots: 'x' is neither", "cell 'c': standby_url must", "cell 'd': slots are missing",
        "pins.'acme': there is no cell 'z'", "pins.'': there is no cell 'z'", "pins.'': this tenant id cannot be used",
    ):  # fmt: skip
        assert says in text
    assert text.startswith("16 faults in a map of cells:")


def test_seconds_are_written_as_people_write_them() -> None:
    text = toml_text(made(retry_after=RetryAfter(2, 60.0, 0.5)))
    assert '"moving" = 2\n"frozen" = 60\n"down" = 0.5\n' in text


def test_a_file_that_is_not_there_or_no_text_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: cannot be read: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bin.toml").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ConfigurationError, match=r"bin\.toml: is neither TOML nor JSON"):
        load(tmp_path / "bin.toml")


def test_maps_are_ordered_by_epoch_then_version() -> None:
    stamps = [made(9).stamp, made(1, epoch=1).stamp, made(2, epoch=1).stamp, made(1, epoch=2).stamp]
    assert stamps == sorted(stamps)
    assert [MapVersion.parse(str(one)) for one in stamps] == stamps
    assert str(stamps[0]) == "0.9"


@pytest.mark.parametrize(
    "text", [None, "", "7", "0.", ".7", "1.2.3", "-1.2", "0.7 ", "\u0663.\u0661", "9" * 19 + ".1", "1." + "9" * 30]
)
def test_a_version_out_of_a_header_that_is_none_is_none(text: str | None) -> None:
    assert MapVersion.parse(text) is None


def test_known_fault_86_a_tenant_that_is_moved_gets_its_refusal_alone() -> None:
    now = made(tenants={"acme": "moving", "globex": "frozen", "7": "moving"}, retry_after=RetryAfter(2, 30, 9))
    refused = {tenant: now.refusal(tenant) for tenant in ("acme", "globex", "initech", 7, 8)}
    assert {tenant: one and (one.reason, one.retry_after) for tenant, one in refused.items()} == {
        "acme": ("moving", 2),
        "globex": ("frozen", 30),
        "initech": None,
        7: ("moving", 2),
        8: None,
    }


def test_known_fault_90_a_cell_that_is_down_refuses_its_own_tenants_only() -> None:
    now = CellMap(CellRouter([Cell("a", "http://a", state="down"), Cell("b", "http://b", state="draining")]))
    seen = set[tuple[str, str | None]]()
    for number in range(200):
        cell, refused = now.route(f"t-{number}")
        seen.add((cell.name, refused and refused.reason))
    assert seen == {("a", "down"), ("b", None)}


def test_a_map_is_immutable_and_checked_also_in_code() -> None:
    now = made(tenants={"acme": "moving"})
    with pytest.raises(AttributeError):
        now.version = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        now.tenants["x"] = "moving"  # type: ignore[index]
    with pytest.raises(ConfigurationError, match="version must be"):
        now.replace(version=0)
    assert len({now, now.replace(version=2)}) == 2


# ---- writing


def test_a_file_is_replaced_only_by_a_higher_version(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    assert write_if_newer(file, made(5))
    assert not write_if_newer(file, made(5, tenants={"acme": "moving"}))
    assert not write_if_newer(file, made(4))
    assert write_if_newer(file, made(1, epoch=1))
    assert load(file) == made(1, epoch=1)
    assert json.loads(file.read_text(encoding="utf-8"))["epoch"] == 1
    assert [one.name for one in tmp_path.iterdir()] == ["cells.json"]


def test_many_writers_leave_the_highest_version_and_readers_never_see_half_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cells.toml"
    write_if_newer(file, made(1))
    ended, seen = threading.Event(), list[int]()

    def read() -> None:
        while not ended.is_set():
            seen.append(load(file).version)

    def write(first: int) -> None:
        for version in range(first, 60, 4):
            write_if_newer(file, made(version))

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(first,)) for first in range(1, 5)]
    for one in (reader, *writers):
        one.start()
    for one in writers:
        one.join()
    ended.set()
    reader.join()
    assert seen == sorted(seen)
    assert load(file).version == 59


def test_a_file_that_is_replaced_keeps_its_permissions_and_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "cells.toml", tmp_path / "link.toml"
    write_if_newer(file, made(1))
    file.chmod(0o640)
    link.symlink_to(file)
    assert write_if_newer(link, made(2))
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert load(file).version == 2

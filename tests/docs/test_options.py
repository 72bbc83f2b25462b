"""What the pages say about options, process values and environment variables is what the code has."""

from __future__ import annotations

import difflib
import re
import runpy
from typing import TYPE_CHECKING

import bulkhead
from bulkhead.option_rows import defaults_of, rows_of
from bulkhead.process_values import ProcessValues, disabled

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
NAMED = [*rows_of(bulkhead.Options), *rows_of(ProcessValues)]
# Arguments of drivers and of the test kit that look like ours or stand where ours could.
THEIRS = {"pool_timeout", "retry", "socket_timeout", "latency", "seconds", "host", "port", "url", "plugin", "bulkhead"}


def test_the_tables_on_the_pages_are_those_of_the_code(root: Path) -> None:
    write = runpy.run_path(str(root / "tests" / "docs" / "write_tables.py"))
    assert {root / "README.md", root / "docs" / "settings.md"} <= set(write["PAGES"])
    for page in write["PAGES"]:
        told = f"{page.name} is behind: run `python tests/docs/write_tables.py`"
        assert page.read_text(encoding="utf-8") == write["written"](page), told


def test_no_option_is_mentioned_under_a_wrong_name(page: Path) -> None:
    """Words in code that are nearly an option's name, and arguments of our functions that are none."""
    known = {*NAMED, *THEIRS}
    code = [found.group() for found in CODE.finditer(page.read_text(encoding="utf-8"))]
    words = {word for piece in code for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", piece)} - known
    near = {word: difflib.get_close_matches(word, NAMED, 1, 0.85) for word in words}
    assert not {word: names for word, names in near.items() if names}

    given = {
        name
        for piece in code
        for call in re.findall(r"(?:bulkhead\.(?:options|resource|define|defaults)|\.update)\(([^()]*)\)", piece)
        for name in re.findall(r"\b(\w+) ?=", call)
    }
    assert given <= known


def test_defaults_named_in_choosing_numbers_are_the_defaults(root: Path) -> None:
    page = (root / "docs" / "choosing-numbers.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"`(\w+)`[^.`]{0,40} is (\S+) by default", page))
    defaults = defaults_of(bulkhead.Options)
    assert told
    assert {name: float(value) for name, value in told.items()} == {name: defaults[name] for name in told}


def test_environment_variables_on_the_pages_are_read_somewhere(root: Path, page: Path) -> None:
    source = "\n".join(
        file.read_text(encoding="utf-8")
        for folder in ("bulkhead", "adapters", "tests")
        for file in root.joinpath(folder).rglob("*.py")
    )
    told = set(re.findall(r"\b(?:BULKHEAD|TOXIPROXY)_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
    assert {name for name in told if name not in source and name != "BULKHEAD_CONFIG_WARNING"} == set()


def test_every_switch_of_the_environment_is_in_the_readme(root: Path, readme: str) -> None:
    source = (root / "bulkhead" / "process_values.py").read_text(encoding="utf-8")
    switches = set(re.findall(r'"(BULKHEAD_[A-Z_]+)"', source))
    assert switches
    assert {name for name in switches if f"`{name}`" not in readme} == set()


def test_a_switch_of_the_environment_is_off_for_the_words_that_the_readme_lists(
    readme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = re.search(r"unset, empty,(.*?)mean not disabled", readme, re.DOTALL)
    assert sentence
    words = re.findall(r"`(\w+)`", sentence[1])
    assert words
    for word in ["", *words]:
        monkeypatch.setenv("BULKHEAD_DISABLED", word)
        assert not disabled("all")
    monkeypatch.setenv("BULKHEAD_DISABLED", "1")
    assert disabled("all")

"""Links lead somewhere, the changelog keeps its form, and what the README says of the project is so."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from bulkhead.cli import parser
from bulkhead.console.doctor import SUPPORTED

if TYPE_CHECKING:
    from pathlib import Path

KINDS_OF_CHANGE = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


@pytest.fixture
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_within_the_repository_lead_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    wrong: list[str] = []
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            wrong.append(target)
    assert not wrong


def test_every_page_of_docs_is_linked_from_the_readme(root: Path, readme: str) -> None:
    assert [one.name for one in sorted(root.glob("docs/*.md")) if f"(docs/{one.name})" not in readme] == []


def test_the_changelog_keeps_the_form_of_keep_a_changelog(root: Path, project: dict[str, Any]) -> None:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.startswith("# Changelog\n")
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d", version) for version in versions[1:]]
    assert all(released), versions
    numbers = [tuple(map(int, one.groups())) for one in released if one]
    assert numbers == sorted(numbers, reverse=True)
    current = tuple(map(int, project["project"]["version"].split(".")))
    assert all(number <= current for number in numbers)


def test_each_line_of_the_changelog_is_a_sentence_under_a_kind_of_change(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    body = text[text.index("## [Unreleased]") :]
    assert set(re.findall(r"^### (.*)$", body, re.MULTILINE)) <= set(KINDS_OF_CHANGE)
    items = [" ".join(item.split()) for item in re.findall(r"^- (.*?)(?=\n- |\n\n|\Z)", body, re.MULTILINE | re.DOTALL)]
    assert items
    assert [item for item in items if not item.endswith(".")] == []


def test_make_targets_on_the_pages_exist(root: Path, page: Path) -> None:
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    told = set(re.findall(r"(?:`|^ {4}|^)make ([a-z-]+)", text, re.MULTILINE))
    assert told <= targets


def test_driver_versions_are_the_same_in_readme_pyproject_and_doctor(readme: str, project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    wanted = {
        match["name"].lower(): match["version"]
        for extra in ("redis", "psycopg", "sqlalchemy", "httpx")
        for one in extras[extra]
        if (match := re.match(r"(?P<name>[\w-]+)(?:\[\w+\])?>=(?P<version>[\d.]+)", one))
    }
    assert len(wanted) == 5
    told = {name.lower().replace("_", "-"): version for name, version in re.findall(r"([\w-]+) ≥ ([\d.]+)", readme)}
    assert told == wanted
    checked = {name.lower(): minimum for name, (_, minimum, _) in SUPPORTED.items()}
    assert {name: checked[name] for name in wanted} == wanted


def test_python_versions_are_the_same_in_readme_and_pyproject(readme: str, project: dict[str, Any]) -> None:
    told = re.search(r"CPython (3\.\d+) to (3\.\d+)", readme)
    assert told
    classifiers = [one.rpartition(" ")[2] for one in project["project"]["classifiers"] if ":: 3." in one]
    assert (classifiers[0], classifiers[-1]) == told.groups()
    assert project["project"]["requires-python"] == f">={told[1]}"


def test_the_readme_names_every_extra_for_users(readme: str, project: dict[str, Any]) -> None:
    extras = {name for name in project["project"]["optional-dependencies"] if not name.startswith(("test", "check"))}
    assert {"all", "cells", "demo"} < extras
    assert [name for name in sorted(extras) if f"[{name}]" not in readme] == []


def test_the_readme_names_every_command(readme: str) -> None:
    commands = re.findall(r"^ {4}(\w+)", parser().format_help(), re.MULTILINE)
    assert len(commands) == 5
    assert [name for name in commands if f"`bulkhead {name}" not in readme] == []


def test_what_memory_cells_have_to_do_with_cells_is_said(root: Path) -> None:
    text = " ".join((root / "docs" / "memory.md").read_text(encoding="utf-8").split())
    told = "Memory cells (`bulkhead.memory.cells`) have nothing to do with the [cells](cells.md) of `bulkhead.cells`"
    assert told in text


def test_the_benchmarks_of_memory_cells_are_those_of_that_name(root: Path) -> None:
    source = (root / "tests" / "benchmarks" / "__main__.py").read_text(encoding="utf-8")
    groups = dict(re.findall(r'^    "([\w-]+)": \(.*, (\w+)\.\w+, \d+\),$', source, re.MULTILINE))
    (told,) = re.findall(r'--only ([^"]*)"', (root / "docs" / "memory.md").read_text(encoding="utf-8"))
    assert [groups[word] for word in told.split()] == ["uploads", "memory_cells"]

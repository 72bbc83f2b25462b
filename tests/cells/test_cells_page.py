"""docs/cells.md: the quick start runs as pasted, and what it says of the proxy and HAProxy is what they do."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from cells.cell_servers import Cells, cells

import bulkhead
from bulkhead.cells import MapUnavailableError, haproxy
from bulkhead.cli import parser

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cells.md").read_text(encoding="utf-8")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cells]:
    with cells() as found:
        found.reset(tmp_path)
        yield found
    for identifier in bulkhead.resources():
        if identifier.startswith("cell:"):
            bulkhead.unregister(identifier)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_quick_start_of_routing_clients_runs_as_pasted(
    two: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = re.search(r"^```python\n(.*?)^```$", section("Routing clients"), re.MULTILINE | re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(compile(found[1], "docs/cells.md", "exec"), names)  # noqa: S102  the page
    names["client"].close()
    names["source"].stop()
    for tenant in ("acme", "globex"):
        assert tenant in two.apps[two.map.router.for_tenant(tenant).name].tenants


def snippet(title: str, beginning: str) -> str:
    found = re.findall(r"^```python\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    (one,) = (text for text in found if text.startswith(beginning))
    return str(one)


def test_a_map_in_code_gives_what_the_page_says() -> None:
    names: dict[str, Any] = {}
    text = snippet("Reading it", "from bulkhead.cells import Cell, CellMap, CellRouter\n")
    exec(compile(text, "docs/cells.md", "exec"), names)  # noqa: S102  the page
    for expression, comment in re.findall(r"^(router\..*)  # (.*)$", text, re.MULTILINE):
        assert eval(expression, names) == eval(comment)  # noqa: S307  the page
    assert (names["refused"].reason, names["refused"].retry_after) == ("moving", 1.0)


def test_a_source_of_ones_own_runs_as_the_page_says(tmp_path: Path) -> None:
    text = snippet("Reading it", "from bulkhead.cells import Cell, CellMap, CellRouter, MapSource")
    text = text.replace("/var/lib/shop", str(tmp_path))
    answers: list[Any] = [(7, [("eu-1", "https://eu-1.example.com")])]

    def read_cells_table() -> Any:
        if answers:
            return answers.pop()
        raise ConnectionError

    names: dict[str, Any] = {"read_cells_table": read_cells_table}
    exec(compile(text, "docs/cells.md", "exec"), names)  # noqa: S102  the page
    with names["source"] as source:
        assert source.current.version == 7
        with pytest.raises(MapUnavailableError, match="the table of cells cannot be read"):
            source.reload()
    assert (tmp_path / "cells.toml").exists()


def test_functions_of_the_page_are_public_and_their_arguments_are_theirs() -> None:
    told = re.findall(r"^\| `(\w+)\((\w+)", section("The command"), re.MULTILINE)
    assert {name for name, _ in told} == {"diff", "rebalance", "promote", "raise_version", "publish"}
    for name, first in told:
        assert next(iter(inspect.signature(getattr(bulkhead.cells, name)).parameters)) == first


def test_every_public_name_of_cells_is_on_the_page() -> None:
    missing = {name for name in bulkhead.cells.__all__ if not re.search(rf"\b{name}\b", PAGE)}
    assert not missing


def test_every_error_of_the_page_is_there() -> None:
    from bulkhead.cells import transport_errors  # noqa: PLC0415

    told = set(re.findall(r"^\| `(Httpx\w+)`", section("Routing clients"), re.MULTILINE))
    there = {name for name in vars(transport_errors) if name.startswith("Httpx")}
    assert told == there


def test_every_file_of_the_page_is_written(two: Cells) -> None:
    told = set(re.findall(r"^\| `([\w.]+)`", section("HAProxy"), re.MULTILINE))
    assert told | {"haproxy.cfg"} == set(haproxy.files(two.map))


def test_the_commands_of_the_page_can_be_given() -> None:
    line = re.search(r"^bulkhead (cells haproxy .*)$", section("HAProxy"), re.MULTILINE)
    assert line
    words = [one.strip('"') for one in re.findall(r'"[^"]*"|\S+', line[1])]
    given = parser().parse_args(words)
    assert (given.part, given.bind) == ("haproxy", ":443 ssl crt /etc/haproxy/site.pem")
    words = ["serve", "cells.toml", "--source", "subdomain", "--domain", "example.com", "--trust", "10.0.0.0/8"]
    given = parser().parse_args(["cells", *words])
    assert (given.domain, given.trust) == ("example.com", ["10.0.0.0/8"])


def test_the_picture_is_well_formed_and_small() -> None:
    picture = DOCS / "cells.svg"
    assert ET.parse(picture).getroot().tag.endswith("svg")  # noqa: S314  ours
    assert picture.stat().st_size < 10_000

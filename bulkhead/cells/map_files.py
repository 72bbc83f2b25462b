"""Maps as text and as files, TOML or JSON. The format is the first part of docs/cells.md; both have the same keys.

Written files are replaced at once and whole (a reader sees the old or the new one), and only by a higher version: the
comparison and the writing are under one lock of the folder, so that processes which write at the same time end with the
highest one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bulkhead.cells.cell import Cell
from bulkhead.cells.faults import refusal
from bulkhead.cells.maps import CellMap, RetryAfter
from bulkhead.cells.router import CellRouter
from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import nearest, shown

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

KEYS = ("version", "epoch", "hash", "cells", "pins", "tenants", "retry_after")
CELL_KEYS = ("name", "url", "slots", "standby_url", "state")
RETRY_KEYS = tuple(one.name for one in fields(RetryAfter))


# ---- reading


def load(path: str | os.PathLike[str]) -> CellMap:
    """The map in a file. ConfigurationError that lists all that is wrong, each with file and key."""
    try:
        octets = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{os.fspath(path)}: cannot be read: {error.strerror or type(error).__name__}"
        ) from None
    return parse(octets, os.fspath(path))


def parse(text: str | bytes, label: str) -> CellMap:
    """The map that a text says, TOML, or JSON if it begins with "{". `label`: its file or source, for errors."""
    raw = _tables(text, label)
    faults: list[str] = []
    _unknown(raw, KEYS, "", faults)
    cells = _cells(raw.get("cells"), faults)
    tables = {key: _table(raw, key, faults) for key in ("pins", "tenants", "retry_after")}
    _unknown(tables["retry_after"], RETRY_KEYS, "retry_after.", faults)
    if "version" not in raw:
        faults.append("version is missing; every map has one, 1 or more, that rises with each change")
    router = None
    if cells is not None:
        try:
            router = CellRouter(cells, raw.get("hash", "xxh64"), tables["pins"])
        except ConfigurationError as error:
            faults += _lines(error)
    made = None
    try:
        seconds = {key: value for key, value in tables["retry_after"].items() if key in RETRY_KEYS}
        numbers = {key: raw[key] for key in ("version", "epoch") if key in raw}
        # Without a router it is checked all the same: all faults are told at once.
        made = CellMap(router or _NO_ROUTER, tenants=tables["tenants"], retry_after=RetryAfter(**seconds), **numbers)
    except ConfigurationError as error:
        faults += _lines(error)
    if faults or router is None or made is None:
        raise refusal(faults, label)
    return made


_NO_ROUTER = CellRouter([Cell("none", "http://none.invalid")])


def _tables(text: str | bytes, label: str) -> dict[str, Any]:
    try:
        if isinstance(text, bytes):
            text = text.decode()
        if text.lstrip().startswith("{"):
            return dict(json.loads(text, object_pairs_hook=_without_twins))
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigurationError(f"{label}: cannot be read: it is nested too deeply") from None
    except ValueError as error:  # of both parsers, of decoding, of a number with more digits than Python reads
        raise ConfigurationError(f"{label}: is neither TOML nor JSON: {error}") from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two equal keys one would be lost without a word."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return made


def _cells(rows: object, faults: list[str]) -> list[Cell] | None:
    """The cells, if these are tables; what is wrong within the tables hides nothing else."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        faults.append("cells must be tables, [[cells]] with name and url" if rows is not None else "cells are missing")
        return None
    cells: list[Cell] = []
    for place, row in enumerate(rows, 1):
        where = f"cells {place} ({shown(row['name'])})." if "name" in row else f"cells {place}."
        _unknown(row, CELL_KEYS, where, faults)
        faults += [f"{where}{key} is missing" for key in ("name", "url") if key not in row]
        # What is missing is told; with something in its place the router finds what else is wrong.
        known: dict[str, Any] = {"name": f"unnamed-{place}", "url": "http://missing.invalid"}
        known |= {key: value for key, value in row.items() if key in CELL_KEYS}
        cells.append(Cell(**known))
    return cells


def _table(raw: dict[str, Any], key: str, faults: list[str]) -> dict[str, Any]:
    table = raw.get(key, {})
    if isinstance(table, dict):
        return table
    faults.append(f"{key} must be a table, [{key}], not {shown(table)}")
    return {}


def _unknown(table: dict[str, Any], known: tuple[str, ...], where: str, faults: list[str]) -> None:
    faults += [f"{where}{key} is no key of a map: {nearest(key, known)}" for key in table if key not in known]


def _lines(error: ConfigurationError) -> list[str]:
    first, *more = str(error).split("\n  ")
    return more or [first]


# ---- writing


def tables_of(cell_map: CellMap) -> dict[str, Any]:
    """The map as the tables of its file; keys that have their default are left out, `epoch` and `hash` are not."""
    router = cell_map.router
    cells: list[dict[str, Any]] = []
    for cell in router.cells:
        row: dict[str, Any] = {"name": cell.name, "url": cell.url}
        if cell.slots:
            row["slots"] = list(cell.slots)  # type: ignore[arg-type]  # a tuple since it was made
        if cell.standby_url is not None:
            row["standby_url"] = cell.standby_url
        if cell.state != "active":
            row["state"] = cell.state
        cells.append(row)
    made: dict[str, Any] = {"version": cell_map.version, "epoch": cell_map.epoch, "hash": router.hash}
    if cell_map.retry_after != RetryAfter():
        made["retry_after"] = {key: _whole(seconds) for key, seconds in asdict(cell_map.retry_after).items()}
    if router.pins:
        made["pins"] = dict(router.pins)
    if cell_map.tenants:
        made["tenants"] = dict(cell_map.tenants)
    made["cells"] = cells
    return made


def _whole(seconds: float) -> float:
    """As people write it: 60, not 60.0."""
    return int(seconds) if seconds == int(seconds) else seconds


def json_text(cell_map: CellMap) -> str:
    """The map as the text of a JSON file."""
    return json.dumps(tables_of(cell_map), indent=2, ensure_ascii=False) + "\n"


def toml_text(cell_map: CellMap) -> str:
    """The map as the text of a TOML file."""
    return "\n".join(_toml(tables_of(cell_map))) + "\n"


def _toml(tables: dict[str, Any]) -> Iterator[str]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield f"\n[{key}]"
            yield from (f"{_toml_value(name)} = {_toml_value(one)}" for name, one in value.items())
        elif key == "cells":
            for row in value:
                yield "\n[[cells]]"
                yield from (f"{name} = {_toml_value(one)}" for name, one in row.items())
        else:
            yield f"{key} = {_toml_value(value)}"


def _toml_value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    # JSON's escapes are escapes of TOML's basic strings, too; DEL, which only TOML escapes, is in no id.
    return json.dumps(value, ensure_ascii=False)


# ---- files


def write_if_newer(path: str | os.PathLike[str], cell_map: CellMap) -> bool:
    """Write the map, JSON if the name ends so, unless a map of the same or a higher version is there; was it written?

    A file that holds no map is replaced. OSError as the file system says.
    """
    file = Path(os.path.realpath(path))
    with locked(file):
        there = _peek(file)
        if there is not None and there.stamp >= cell_map.stamp:
            return False
        write(file, cell_map)
    return True


def write(file: Path, cell_map: CellMap) -> None:
    """Replace the file at once by one with this map; under `locked`. It keeps its permissions."""
    text = json_text(cell_map) if file.suffix == ".json" else toml_text(cell_map)
    fresh = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with fresh.open("x", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(opened.fileno(), file.stat().st_mode & 0o777)
            os.fsync(opened.fileno())
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def locked(file: Path) -> Generator[None]:
    """Nobody else who asks writes this file; by an advisory lock of its folder, so no other file is left there."""
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)  # closing would not do: a process forked meanwhile has it open, too
    finally:
        os.close(folder)


def _peek(file: Path) -> CellMap | None:
    try:
        return load(file)
    except ConfigurationError:
        return None

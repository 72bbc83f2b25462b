"""Where settings stand: one TOML file, and the environment over it. What they mean is not decided here.

Reading and merging is done by pydantic-settings (merging.py), which is imported only when there is a file or a
BULKHEAD_<SECTION>__<KEY> variable to read. Which file, and which variables are ours, is decided here.
"""

from __future__ import annotations

import os
import re
import tomllib
from codecs import BOM_UTF8
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import nearest, rows_of, shown
from bulkhead.settings.effective import without_credentials
from bulkhead.settings.sections import RESOURCES, sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

PREFIX = "BULKHEAD_"
PATH_VARIABLE = "BULKHEAD_SETTINGS"
FILE, PROJECT = "bulkhead.toml", "pyproject.toml"
DELIMITER = "__"
TABLE = ("tool", "bulkhead")


class Fault(NamedTuple):
    """One thing that is wrong: `where` it stands (file or variable), and a sentence that names the key."""

    where: str
    says: str

    def __str__(self) -> str:
        return without_credentials(f"{self.where}: {self.says}")


def named(name: str) -> str:
    """A name from the file for texts: as it stands there, unless it would end the line."""
    return name if name.isprintable() else shown(name)


class Place(NamedTuple):
    """Where settings were asked for: an explicit path or None, from this folder. Absolute: a chdir changes nothing."""

    path: Path | None
    folder: Path

    @classmethod
    def of(cls, path: str | os.PathLike[str] | None) -> Place:
        """The place that a path given by the user, else BULKHEAD_SETTINGS, else the current folder means."""
        folder = Path.cwd()
        given = path or os.environ.get(PATH_VARIABLE) or None
        return cls(None if given is None else folder / Path(given).expanduser(), folder)

    def label(self, file: Path) -> str:
        """The file's name for texts."""
        return str(file.relative_to(self.folder)) if file.is_relative_to(self.folder) else str(file)

    def candidates(self) -> list[Path]:
        """The files that are looked at, first first."""
        return [self.folder / FILE, self.folder / PROJECT] if self.path is None else [self.path]

    def find(self) -> Path | None:
        """The file to read, which may be missing if one is named; None = there is none."""
        if self.path is not None:
            return self.path
        own, project = self.candidates()
        if os.path.lexists(own):
            return own
        return project if _has_table(project) else None


def stamp(place: Place) -> tuple[object, ...]:
    """What changes when a file of this place is written, replaced, made or removed; symbolic links are followed."""
    found: list[object] = []
    for one in place.candidates():
        try:
            state = one.stat()
        except OSError:
            found.append(None)
        else:
            # The last one for a file that may be read by now.
            found.append((state.st_ino, state.st_size, state.st_mtime_ns, state.st_mode))
    return tuple(found)


def read_file(file: Path, label: str) -> dict[str, Any] | Fault:
    """The sections of the file as they stand there."""
    try:
        if not file.is_file():
            return Fault(label, "is no file" if file.exists() else "there is no such file")
        data: Any = _library(label).read(file)
    except ConfigurationError:  # a ValueError, too: the extra is missing
        raise
    except RecursionError:
        return Fault(label, "cannot be read: it is nested too deeply")
    except ValueError as error:  # of tomllib, of decoding, of a number with more digits than Python reads
        return Fault(label, f"is no TOML: {'it begins with a byte order mark' if _has_mark(file) else error}")
    except OSError as error:
        return Fault(label, f"cannot be read: {error.strerror or type(error).__name__}")
    if file.name == PROJECT:
        for name in TABLE:
            data = data.get(name) if isinstance(data, dict) else None
        if data is None:
            return Fault(label, "has no table [tool.bulkhead]")
    return data if isinstance(data, dict) else Fault(label, "[tool.bulkhead] is no table")


class Variables(NamedTuple):
    """The environment variables that are settings: their paths, and what is wrong with others that look like some."""

    values: Mapping[str, str]
    paths: Mapping[tuple[str, ...], str]
    faults: list[Fault]


def variables() -> Variables:
    """The settings in the environment. An empty variable counts as unset."""
    values: dict[str, str] = {}
    paths: dict[tuple[str, ...], str] = {}
    faults: list[Fault] = []
    for name, value in sorted(os.environ.items()):
        upper = name.upper()
        if not value or not upper.startswith(PREFIX):
            continue
        path = tuple(upper.removeprefix(PREFIX).lower().split(DELIMITER))
        wrong = _wrong(path)
        if wrong is not None:
            faults.append(Fault(f"environment {name}", wrong))
        elif len(path) > 1:
            if path in paths:
                faults.append(Fault(f"environment {name}", f"is {paths[path]} again; unset one"))
            values[upper.lower()] = value
            paths[path] = name
    faults += [
        Fault(f"environment {name}", f"is a part of {paths[path[:length]]}, which is also set; unset one")
        for path, name in paths.items()
        for length in range(2, len(path))
        if path[:length] in paths
    ]
    return Variables(values, paths, faults)


def _wrong(path: tuple[str, ...]) -> str | None:
    """Why a variable with this path is not a setting although it looks like one."""
    known = [*sections(), RESOURCES]
    if len(path) == 1:
        return _slip(path[0], known)
    written = DELIMITER.join(path).upper()
    if path[0] not in known:
        return f"there is no section {path[0]!r}: {nearest(path[0], known)}"
    if not all(path) or (path[0] == RESOURCES and len(path) == 2):
        example = "RESOURCES__INVENTORY__TICKETS" if path[0] == RESOURCES else f"{path[0].upper()}__KEY"
        return f"{written} names no key; the form is {PREFIX}{example}"
    return None


def _slip(word: str, known: list[str]) -> str | None:
    """One underscore where two are meant, or a section without a key."""
    for name in known:
        if word == name:
            return f"a section is no value; set single keys, {PREFIX}{name.upper()}__KEY"
        key = word.removeprefix(f"{name}_")
        if key != word and (name == RESOURCES or key in rows_of(sections()[name].kind)):
            return f"two underscores stand between section and key: {PREFIX}{name.upper()}{DELIMITER}{key.upper()}"
    return None


def exploded(found: Variables, names: Iterable[str]) -> tuple[dict[str, Any], dict[tuple[str, ...], str], list[Fault]]:
    """The variables as nested tables of texts, with resources under the names that the file has; path -> variable."""
    if not found.values:
        return {}, {}, []
    tables = _library("environment variables").exploded(found.values)
    renamed, faults = _renamed(tables.get(RESOURCES, {}), names)
    if RESOURCES in tables:
        tables[RESOURCES] = {renamed[name]: options for name, options in tables[RESOURCES].items() if name in renamed}
    paths = {
        (path[0], renamed.get(path[1], path[1]), *path[2:]) if path[0] == RESOURCES else path: variable
        for path, variable in found.paths.items()
    }
    return tables, paths, faults


def _renamed(written: Iterable[str], names: Iterable[str]) -> tuple[dict[str, str], list[Fault]]:
    """Names as variables write them -> names as the file does (`PAYMENTS_API` is "payments-api" there)."""
    by_form: dict[str, list[str]] = {}
    for name in names:
        by_form.setdefault(re.sub(r"[^a-z0-9]+", "_", name.lower()), []).append(name)
    faults = [
        Fault(
            f"environment {PREFIX}{RESOURCES.upper()}{DELIMITER}{name.upper()}{DELIMITER}…",
            f"could mean {' or '.join(map(shown, by_form[name]))}; set it in the file",
        )
        for name in written
        if len(by_form.get(name, ())) > 1
    ]
    return {name: by_form.get(name, [name])[0] for name in written}, faults


def merged(file: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    """Both together; the environment wins, key by key, within tables too."""
    if not environment:
        return file
    together: dict[str, Any] = _library("environment variables").merged(environment, file)
    return together


def _library(what: str) -> ModuleType:
    try:
        from bulkhead.settings import merging  # noqa: PLC0415  an extra, and only if there is something to read
    except ImportError as error:
        raise ConfigurationError(
            f"{what}: settings are read with pydantic-settings, which cannot be imported ({error}); "
            'pip install "bulkhead-toolkit[settings]"'
        ) from error
    return merging


def _has_mark(file: Path) -> bool:
    """Whether an editor has put U+FEFF before the text."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(BOM_UTF8)) == BOM_UTF8
    except OSError:
        return False


def _has_table(project: Path) -> bool:
    """Whether a pyproject.toml has settings for us. One that is no TOML but names them is for `read` to refuse."""
    try:
        text = project.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    try:
        data: Any = tomllib.loads(text)
    except (ValueError, RecursionError):
        return f"[{'.'.join(TABLE)}" in text
    for name in TABLE:
        data = data.get(name) if isinstance(data, dict) else None
    return data is not None

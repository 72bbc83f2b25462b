"""Where a transport's maps come from: what it needs of a source, a map that never changes, and a file.

What a source is and does that may change is map_source.py; one at a URL is http_source.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bulkhead.cells.errors import MapUnavailableError
from bulkhead.cells.map_files import parse
from bulkhead.cells.map_source import MapSource
from bulkhead.cells.maps import CellMap
from bulkhead.cells.router import CellRouter
from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import shown

if TYPE_CHECKING:
    from bulkhead.cells.maps import MapVersion


class Source(Protocol):
    """What a transport needs of a source."""

    @property
    def current(self) -> CellMap:
        """The map that is in force."""
        ...

    def refresh(self, not_older_than: MapVersion | None = None) -> CellMap:
        """The map in force, after a look for a newer one."""
        ...

    async def arefresh(self, not_older_than: MapVersion | None = None) -> CellMap:
        """The same for an event loop."""
        ...


class FixedSource:
    """A map that never changes, as a source."""

    def __init__(self, cell_map: CellMap) -> None:
        given: object = cell_map
        if not isinstance(given, CellMap):
            raise ConfigurationError(f"cell_map must be a CellMap, not {shown(given)}")
        self.current = given

    def refresh(self, not_older_than: MapVersion | None = None) -> CellMap:
        """The map; there is no other."""
        del not_older_than
        return self.current

    async def arefresh(self, not_older_than: MapVersion | None = None) -> CellMap:
        """The map; there is no other."""
        return self.refresh(not_older_than)

    def __repr__(self) -> str:
        return f"<FixedSource, map {self.current.stamp}>"


def as_source(given: CellRouter | CellMap | Source) -> Source:
    """A router, a map or a source, as a source. ConfigurationError for anything else."""
    if isinstance(given, CellRouter):
        return FixedSource(CellMap(given))
    if isinstance(given, CellMap):
        return FixedSource(given)
    if all(hasattr(given, name) for name in ("current", "refresh", "arefresh")):
        return given
    hint = f"; FileSource({given!r}) reads a file" if isinstance(given, (str, os.PathLike)) else ""
    raise ConfigurationError(f"routes must be a CellRouter, a CellMap or a source, not {shown(given)}{hint}")


class FileSource(MapSource):
    """A map file, TOML or JSON. `keep`: where to keep the last good map, for the time when the file is not."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep: str | os.PathLike[str] | None = None,
        *,
        minimum_interval: float = 2.0,
    ) -> None:
        label, self._path = os.fspath(path), Path(path).absolute()
        self._read_before: tuple[bytes, CellMap] | None = None
        super().__init__(self._read, str(label), keep, minimum_interval=minimum_interval)

    def _read(self) -> CellMap:
        """By its content, never by its time stamp, which may be the same after two changes within one tick."""
        try:
            octets = self._path.read_bytes()
        except OSError as error:
            text = error.strerror or type(error).__name__
            raise MapUnavailableError(f"{self.label}: cannot be read: {text}") from error
        before = self._read_before
        if before is not None and before[0] == octets:
            return before[1]
        fetched = parse(octets, self.label)
        self._read_before = octets, fetched
        return fetched

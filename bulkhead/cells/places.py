"""What a routing client keeps for each cell of the map in force: its resource, and whatever its library needs.

Used by the httpx transports and the proxy; knows neither. Everything hangs on the map that it was worked out from and
goes with it, so no answer of an older map outlives that map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from bulkhead.adapter import ConfigurationError, Options
from bulkhead.cells.maps import MapVersion
from bulkhead.cells.sources import as_source
from bulkhead.option_arguments import gathered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bulkhead.adapter import Adapter, Resource
    from bulkhead.cells.cell import Cell
    from bulkhead.cells.maps import CellMap
    from bulkhead.cells.sources import Source

P = TypeVar("P")

KIND: Final = "cell"
TENANT_HEADER: Final = "X-Tenant-ID"
VERSION_HEADER: Final = "X-Cell-Map-Version"
MISDIRECTED: Final = 421
_AT_ONCE: Final = 64
"""Cells whose resource is made at construction, so that options which contradict others are found there."""


class Places(Generic[P]):
    """The cells of one transport or proxy. `make(cell, resource)` is what its library needs.

    `options` are those of each cell's resource, `cell:<name>`. ConfigurationError if they name one: then all cells
    would have the same circuit.
    """

    def __init__(
        self, routes: object, adapter: Adapter, options: Mapping[str, Any], make: Callable[[Cell, Resource], P]
    ) -> None:
        given = gathered(Options, options) or Options()
        if given.name is not None or given.identifier is not None:
            raise ConfigurationError(
                "the options of a routing client have no name: each cell has a resource of its own, cell:<name>"
            )
        self.source: Source = as_source(routes)  # type: ignore[arg-type]  # it says what is wrong
        self._adapter, self._options, self._make = adapter, given, make
        self._kept: tuple[CellMap | None, dict[str, P]] = None, {}
        self._stamp: tuple[CellMap | None, bytes] = None, b""
        now = self.source.current
        for cell in now.router.cells[:_AT_ONCE]:
            self.of(now, cell)

    def of(self, now: CellMap, cell: Cell) -> P:
        """The place of a cell of this map."""
        kept = self._kept
        if kept[0] is not now:
            kept = self._kept = now, {}
        try:
            return kept[1][cell.name]
        except KeyError:
            resource = cast("Resource", self._adapter.bind(self._options, name=cell.name))
            place = kept[1][cell.name] = self._make(cell, resource)
            return place

    def stamp(self, now: CellMap) -> bytes:
        """The version of this map as a header has it."""
        kept = self._stamp
        if kept[0] is not now:
            kept = self._stamp = now, str(now.stamp).encode()
        return kept[1]


def wanted(asked: MapVersion, told: str | None) -> MapVersion:
    """The version that a map must have after a 421: the cell's, if that is newer than ours, else any newer one."""
    version = None if told is None else MapVersion.parse(told)
    if version is not None and version > asked:
        return version
    return MapVersion(asked.epoch, asked.version + 1)


def local(location: str, cell: Cell, public: str) -> str:
    """A Location of the cell's, as those see it who reach the cell through us; others' stay as they are.

    `public`: the scheme and host that stand for the cells; "" where a path says enough.
    """
    base_scheme, _, rest = cell.base.partition("://")
    host, slash, path = rest.partition("/")
    base_path = slash + path
    scheme, mark, after = location.partition("://")
    if location.startswith("//"):
        scheme, mark, after = base_scheme, "://", location[2:]
    if mark and scheme.lower() in ("http", "https"):
        end = next((at for at, letter in enumerate(after) if letter in "/?#"), len(after))
        default = ":443" if base_scheme.lower() == "https" else ":80"
        if after[:end].lower().removesuffix(default) != host.lower().removesuffix(default):
            return location
        target = after[end:]
    elif location.startswith("/") and base_path:
        target, public = location, ""
    else:
        return location
    below = target[len(base_path) :]
    if not target.startswith(base_path) or (base_path and below[:1] not in ("", "/", "?", "#")):
        return location
    if below.startswith(("//", "/\\")):  # alone it would lead to another host (RFC 3986, 4.2)
        below = f"/.{below}"
    return public + (below if below.startswith("/") else f"/{below}")

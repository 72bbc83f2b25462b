"""One cell as a map names it, and what can be wrong with cells one by one; their slots are router.py's. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from bulkhead.cells.paths import cell_url_fault
from bulkhead.errors import ConfigurationError
from bulkhead.hashing import SLOTS
from bulkhead.option_rows import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

State = Literal["active", "draining", "down"]
STATES = get_args(State)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Cell:
    """One full deployment of the application. Checked by the router that it becomes a part of.

    `name`: 1 to 64 letters, digits, ".", "_" and "-". `url`: http or https, host, perhaps a port and a base path.
    `slots`: "0-8191", "16000", 7, or several; () in every cell of a router = an even split in their order.
    `standby_url`: where the cell is in the passive region. `state`: "active"; "draining": routed as active, gets
    nothing new; "down": its tenants get 503.
    """

    name: str
    url: str
    slots: str | int | Iterable[str | int] = ()
    standby_url: str | None = None
    state: State = "active"
    base: str = field(init=False, repr=False, compare=False)
    """The URL without a trailing slash."""

    def __post_init__(self) -> None:
        several = isinstance(self.slots, (list, tuple, range, set, frozenset)) or hasattr(self.slots, "__next__")
        object.__setattr__(self, "slots", tuple(self.slots) if several else (self.slots,))  # type: ignore[arg-type]
        url: object = self.url  # whatever a file says
        object.__setattr__(self, "base", url.rstrip("/") if isinstance(url, str) else "")


def cells_of(cells: object) -> tuple[Cell, ...]:
    """The cells, if they are some; ConfigurationError for anything else."""
    try:
        found: tuple[Any, ...] = tuple(cells)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigurationError(f"cells must be several, [Cell(name, url), …], not {shown(cells)}") from None
    for one in found:
        if not isinstance(one, Cell):
            raise ConfigurationError(f"cells must be Cell(name, url) each, not {shown(one)}")
    return found


def cell_faults(cells: tuple[Cell, ...]) -> list[str]:
    """What is wrong with cells one by one, slots aside."""
    if not cells:
        return ["there are no cells; at least one is needed"]
    faults: list[str] = []
    if len(cells) > SLOTS:
        faults.append(f"there are {len(cells)} cells, at most {SLOTS} are possible, one for each slot")
    seen: set[object] = set()
    for cell in cells:
        name: object = cell.name
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            faults.append(f'cell {shown(name)}: the name must be 1 to 64 letters, digits, ".", "_" or "-"')
        elif name in seen:
            faults.append(f"cell {name!r}: the name is used twice")
        else:
            seen.add(name)
        for key in ("url", "standby_url"):
            url = getattr(cell, key)
            wrong = None if key == "standby_url" and url is None else cell_url_fault(url)
            if wrong:
                faults.append(f"cell {shown(name)}: {key} {wrong}")
        if cell.state not in STATES:
            faults.append(f"cell {shown(name)}: state must be one of {', '.join(STATES)}, not {shown(cell.state)}")
    return faults

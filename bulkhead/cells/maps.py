"""A map of cells: a router, its version, and which tenants are not to be served now. Immutable, checked when made.

It knows no file (map_files.py) and no clock. Maps are ordered by their stamp (epoch, version) and by nothing else: of
two maps the higher one holds, whatever is written in them, so an old content is put back under a higher version and a
store that was restored from a backup gets a higher epoch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from bulkhead.cells.faults import refusal
from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import shown
from bulkhead.tenancy import tenant_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from bulkhead.cells.cell import Cell
    from bulkhead.cells.router import CellRouter

TenantState = Literal["moving", "frozen"]
TENANT_STATES = get_args(TenantState)
HIGHEST = 2**63 - 1  # a version, an epoch: what TOML and databases can hold

_STAMP = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})")


class MapVersion(NamedTuple):
    """What maps are ordered by; as text, in headers, "epoch.version"."""

    epoch: int
    version: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.version}"

    @classmethod
    def parse(cls, text: str | None) -> MapVersion | None:
        """What `str` gave; None for anything else: it comes out of a header."""
        found = _STAMP.fullmatch(text or "")
        if found is None or max(int(found[1]), int(found[2])) > HIGHEST:
            return None
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Seconds that clients are told to wait, 0 to 86,400, by the reason of the refusal."""

    moving: float = 1.0
    frozen: float = 60.0
    down: float = 5.0


class Refusal(NamedTuple):
    """Why a tenant is answered 503 with Retry-After instead of its cell's answer."""

    reason: Literal["moving", "frozen", "down"]
    cell: Cell
    retry_after: float


@dataclass(frozen=True, slots=True)
class CellMap:
    """`version`: 1 or more; `epoch`: 0 or more. `tenants`: id -> "moving" or "frozen"; all others are served.

    ConfigurationError that lists all that is wrong.
    """

    router: CellRouter
    version: int = 1
    epoch: int = 0
    tenants: Mapping[str, TenantState] = field(default_factory=dict[str, TenantState])
    retry_after: RetryAfter = RetryAfter()

    def __post_init__(self) -> None:
        self._refuse_others()
        faults: list[str] = []
        for key, least in (("version", 1), ("epoch", 0)):
            number: object = getattr(self, key)
            if type(number) is not int or not least <= number <= HIGHEST:
                faults.append(f"{key} must be a whole number, {least} or more, not {shown(number)}")
        for one in fields(RetryAfter):
            seconds: object = getattr(self.retry_after, one.name)
            if not _is_seconds(seconds):
                faults.append(f"retry_after.{one.name} must be a number of seconds, 0 to 86400, not {shown(seconds)}")
        states, wrong = _states(self.tenants)
        if faults or wrong:
            raise refusal([*faults, *wrong])
        object.__setattr__(self, "tenants", MappingProxyType(states))

    def _refuse_others(self) -> None:
        """ConfigurationError for arguments of another type, which is no fault of a map."""
        router: object = self.router
        if not hasattr(router, "for_tenant"):
            raise ConfigurationError(f"router must be a CellRouter, not {shown(router)}")
        if not hasattr(self.tenants, "items"):
            raise ConfigurationError(f"tenants must be a mapping, tenant to state, not {shown(self.tenants)}")
        if not isinstance(self.retry_after, RetryAfter):
            raise ConfigurationError(f"retry_after must be a RetryAfter, not {shown(self.retry_after)}")

    @property
    def stamp(self) -> MapVersion:
        """What this map is ordered by."""
        return MapVersion(self.epoch, self.version)

    def route(self, tenant: str | int | UUID) -> tuple[Cell, Refusal | None]:
        """The tenant's cell, and why it is not to be asked now; None = it may be."""
        cell = self.router.for_tenant(tenant)
        if self.tenants:
            state = self.tenants.get(tenant if type(tenant) is str else tenant_text(tenant))
            if state is not None:
                return cell, Refusal(state, cell, getattr(self.retry_after, state))
        if cell.state == "down":
            return cell, Refusal("down", cell, self.retry_after.down)
        return cell, None

    def refusal(self, tenant: str | int | UUID) -> Refusal | None:
        """Why the tenant's cell is not to be asked now; None = it may be."""
        return self.route(tenant)[1]

    def replace(self, **changes: Any) -> CellMap:
        """A map with these fields instead, checked anew. It is another map: give it a higher version."""
        return replace(self, **changes)

    def __hash__(self) -> int:
        return hash(self.stamp)

    def __repr__(self) -> str:
        return f"<CellMap {self.stamp}, {len(self.router.cells)} cells>"

    def __reduce__(self) -> tuple[Any, ...]:
        return CellMap, (self.router, self.version, self.epoch, dict(self.tenants), self.retry_after)


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and math.isfinite(value) and 0 <= value <= 86_400


def _states(tenants: Mapping[Any, Any]) -> tuple[dict[str, TenantState], list[str]]:
    kept: dict[str, TenantState] = {}
    faults: list[str] = []
    for tenant, state in tenants.items():
        try:
            kept[tenant_text(tenant)] = state
        except ConfigurationError as error:
            faults.append(f"tenants.{shown(tenant)}: {error}")
        if state not in TENANT_STATES:
            faults.append(f"tenants.{shown(tenant)} must be one of {', '.join(TENANT_STATES)}, not {shown(state)}")
    return kept, faults

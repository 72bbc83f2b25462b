"""All shared cases as one class. A driver's test module subclasses it and gives two fixtures: harness_type, server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drivers.cases_circuit import CircuitCases
from drivers.cases_options import OptionCases
from drivers.cases_patching import PatchingCases
from drivers.cases_tickets import TicketCases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from drivers.harness import Harness


@pytest.mark.anyio
class DriverSuite(TicketCases, CircuitCases, OptionCases, PatchingCases):
    """Every case, for the harnesses that `harness_type` yields."""

    @pytest.fixture
    async def harness(self, harness_type: type[Harness], server: Any) -> AsyncIterator[Harness]:
        made = harness_type(server)
        yield made
        await made.close()

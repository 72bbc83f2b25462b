"""Every test of this folder starts from the process-wide values and definitions that a fresh process has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bulkhead import definitions
from bulkhead.process_values import ProcessValues, process

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def as_in_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = process.values
    process.values = ProcessValues()
    monkeypatch.setattr(definitions, "_known", {})
    monkeypatch.setattr(definitions, "_resolver", None)
    for name in ("BULKHEAD_DISABLED", "BULKHEAD_CIRCUIT_BREAKER_DISABLED", "BULKHEAD_TICKETS_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    yield
    process.values = before

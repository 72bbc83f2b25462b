"""Each test of the edge begins without limits, settings, policies, memory cells and connections to what another left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import bulkhead
from bulkhead import settings
from bulkhead.memory import cells
from bulkhead.settings.live import live

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # no settings file is here
    for name in os.environ:
        if name.startswith("BULKHEAD_"):
            monkeypatch.delenv(name)
    kept = (live.now, live.place, live.seen, live.followers)
    live.now, live.place, live.seen, live.followers = None, None, (), ()
    settings.on_change(cells._follow)
    before = set(bulkhead.resources())
    yield
    cells._given, cells._started, cells._following = {}, False, ()
    for cell in cells:
        cells.evict(cell.tenant)
    live.now, live.place, live.seen, live.followers = kept
    bulkhead.unknown_tenant("allow")
    for identifier in set(bulkhead.resources()) - before:
        bulkhead.unregister(identifier)

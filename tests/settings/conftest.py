"""A folder of its own for each test, and the process as if it had just begun."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Protocol

import pytest

from bulkhead import definitions, registry, tenancy
from bulkhead.process_values import ProcessValues, process
from bulkhead.settings.live import live

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Write(Protocol):
    """Writes a settings file, bulkhead.toml if no other is named, and returns its path."""

    def __call__(self, text: str, name: str = "bulkhead.toml") -> Path: ...


@pytest.fixture(autouse=True)
def as_in_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("pydantic_settings")
    for name in list(os.environ):
        if name.startswith("BULKHEAD_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(definitions, "_known", {})
    monkeypatch.setattr(definitions, "_superseded", {})
    values, policy = process.values, tenancy.policy()
    process.values = ProcessValues()
    before = (live.now, live.place, live.seen, live.followers)
    live.now, live.place, live.seen, live.followers = None, None, (), ()
    live._news = deque()
    known = set(registry.resources())
    yield
    for identifier in set(registry.resources()) - known:
        registry.unregister(identifier)
    live.now, live.place, live.seen, live.followers = before
    process.values = values
    tenancy.unknown_tenant(policy)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(text)`: at once, as an editor does it: never half of the file."""

    def put(text: str, name: str = "bulkhead.toml") -> Path:
        path, new = tmp_path / name, tmp_path / f"{name}.new"
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8")
        new.replace(path)
        return path

    return put

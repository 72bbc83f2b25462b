"""A registry that only the test knows, and its clock, which is moved by hand."""

from __future__ import annotations

import pytest
from stories import Clock

from bulkhead.registry import Registry

pytest.register_assert_rewrite("core.circuit_story")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def own(clock: Clock) -> Registry:
    return Registry(clock)

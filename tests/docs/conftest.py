"""The pages that users read."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "toxiproxy" / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `page` runs for each page."""
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def readme() -> str:
    """README.md."""
    return (ROOT / "README.md").read_text(encoding="utf-8")

"""The documented forms type-check: tests/typing under mypy --strict and pyright."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CHECKERS = {
    "mypy": ["mypy", "--strict", "tests/typing"],
    "pyright": ["pyright", "--pythonpath", sys.executable, "tests/typing"],
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_documented_forms_type_check_and_the_wrong_ones_do_not(root: Path, checker: str) -> None:
    """Both report ignore comments that hide nothing, so each wrong form in tests/typing is known to be an error."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker]], cwd=root, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

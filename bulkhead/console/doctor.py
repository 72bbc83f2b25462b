"""`bulkhead doctor`: is this installation what it should be, and what is protected.

It imports the drivers that are installed, and the application's own module if it is named, and tells what it found.
It changes nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

import bulkhead
from bulkhead.process_values import disabled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Literal

# distribution -> the module to import, the first version that is supported, the adapter that patches it
SUPPORTED = {
    "redis": ("redis", "5.2", "redis"),
    "psycopg": ("psycopg", "3.1.20", "psycopg"),
    "psycopg-pool": ("psycopg_pool", "3.2", "psycopg"),
    "SQLAlchemy": ("sqlalchemy", "2.0.58", "sqlalchemy"),
    "httpx": ("httpx", "0.27", "httpx"),
    "httpx2": ("httpx2", "2", "httpx2"),
}
SWITCHES: dict[str, Literal["all", "circuit_breaker", "tickets"]] = {
    "BULKHEAD_DISABLED": "all",
    "BULKHEAD_CIRCUIT_BREAKER_DISABLED": "circuit_breaker",
    "BULKHEAD_TICKETS_DISABLED": "tickets",
}


class Finding(NamedTuple):
    """One line of the report. `wrong`: something that needs doing."""

    text: str
    wrong: bool = False


def report(application: str | None = None) -> tuple[str, bool]:
    """The report, and whether all is well. `application`: a module to import first, also as gunicorn's "shop:app"."""
    findings = list(_findings(None if application is None else application.partition(":")[0]))
    wrong = sum(one.wrong for one in findings)
    findings.append(Finding("all is well" if not wrong else f"lines above that need doing something: {wrong}"))
    return "\n".join(("!! " if one.wrong else "   ") + one.text for one in findings), not wrong


def _findings(application: str | None) -> Iterator[Finding]:
    yield Finding(f"Python {platform.python_version()} at {sys.executable}")
    told = _version("bulkhead-toolkit") or "(not installed as a distribution)"
    yield Finding(f"bulkhead {told}: {bulkhead.__file__}")
    began = None if application is None else _begin(application)
    if began is not None and began.wrong:
        yield began
    forgotten = application is not None and _was_found(application) and "adapters" not in sys.modules
    if forgotten:
        yield Finding(
            f"{application} never calls bulkhead.install() (or import adapters): its clients are unprotected; "
            "call it at the top of the first module that is loaded",
            wrong=True,
        )
    try:
        bulkhead.install()
    except bulkhead.ConfigurationError as error:
        yield Finding(str(error), wrong=True)
    else:
        adapters = sys.modules["adapters"]
        yield Finding(f"adapters: {adapters.__file__}")
        yield from _drivers(adapters.installed)
    yield from _environment()
    yield from _resources(application)


def _begin(application: str) -> Finding:
    """Import the application."""
    if not _is_name(application):
        return Finding(
            f"{application!r} is not the name of a module; give it as `import` has it: shop.wsgi, not shop/wsgi.py",
            wrong=True,
        )
    try:
        importlib.import_module(application)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return Finding(f"{application} cannot be imported: {type(error).__name__}: {error}", wrong=True)
    return Finding(f"{application} is imported")


def _is_name(application: str) -> bool:
    return all(part.isidentifier() for part in application.split(".")) and not application.endswith(".py")


def _was_found(application: str) -> bool:
    """Whether there is such a module (or its package), even if it cannot be imported."""
    if not _is_name(application):
        return False
    package = application.partition(".")[0]
    return package in sys.modules or importlib.util.find_spec(package) is not None


def _drivers(installed: Callable[[], list[str]]) -> Iterator[Finding]:
    for distribution, (name, minimum, adapter) in SUPPORTED.items():
        found = _version(distribution)
        if found is None:
            yield Finding(f"{distribution}: not installed (supported from {minimum})")
            continue
        try:
            module = importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  a broken driver belongs into the report
            yield Finding(f"{distribution} {found} cannot be imported: {type(error).__name__}: {error}", wrong=True)
            continue
        done = adapter in installed() and _at_least(found, minimum)
        state = "patched" if done else f"NOT patched, its clients are unprotected (supported from {minimum})"
        yield Finding(f"{distribution} {found}: {state}, {_place(module)}", wrong=not done)


def _environment() -> Iterator[Finding]:
    """Switches that are on. BULKHEAD_DISABLED switches all parts off, so those are told only without it."""
    for name, part in SWITCHES.items():
        if disabled(part) and (part == "all" or not disabled("all")):
            yield Finding(f"{name} is set: {part.replace('_', ' ')} switched off", wrong=True)


def _resources(application: str | None) -> Iterator[Finding]:
    found = bulkhead.resources()
    if not found:
        hint = "" if application else "; name your application's module to see its clients: bulkhead doctor myapp"
        yield Finding(f"no client is configured in this process{hint}")
    for _, resource in sorted(found.items()):
        yield Finding(f"{resource.identifier}: {resource.options!r}")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _at_least(found: str, minimum: str) -> bool:
    """Compare the numbers that a version begins with."""
    numbers = [[int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", text)[0])] for text in (found, minimum)]
    return numbers[0] >= numbers[1]


def _place(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "no file")

"""Settings: one TOML file, and the environment over it. What neither sets is as code has it, or off.

settings.load()              at start-up: bulkhead.toml, else [tool.bulkhead] of pyproject.toml, and BULKHEAD_… over it
settings.reload_on_sighup()  limits change without a restart
settings.current().tenancy   what is in force; settings.current().origin("tenancy.header") says where it came from

Code that sets the same things (`bulkhead.define`, `bulkhead.defaults`) goes on to work; where both say something
different about one resource it is an error. docs/settings.md lists every key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bulkhead.settings.effective import Settings
from bulkhead.settings.live import Following, live
from bulkhead.settings.parts import Jobs, Memory
from bulkhead.settings.renewal import Watch, reload_on_sighup, watch
from bulkhead.settings.sections import Bulkhead, Server, Tenancy, section
from bulkhead.settings.sources import Place

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

__all__ = [
    "Bulkhead",
    "Following",
    "Jobs",
    "Memory",
    "Server",
    "Settings",
    "Tenancy",
    "Watch",
    "current",
    "load",
    "on_change",
    "reload",
    "reload_on_sighup",
    "section",
    "watch",
]


def load(path: str | os.PathLike[str] | None = None) -> Settings:
    """Read the settings and let them hold; once, at start-up.

    `path`: a TOML file, or a pyproject.toml with a table [tool.bulkhead]; None = the file that BULKHEAD_SETTINGS names,
    else bulkhead.toml or such a pyproject.toml in the current folder, else the environment alone. ConfigurationError
    that lists all that is wrong, each with file and key; then nothing changes.
    """
    return live.renew(Place.of(path))


def reload() -> Settings:
    """Read the same file and the environment again; whoever follows is told, by this thread or one that reloads now.

    All of it or nothing: ConfigurationError for a file with any fault, which is also logged, and the settings from
    before hold. What needs a restart keeps its value, and the log says so.
    """
    return live.renew(None)


def current() -> Settings:
    """The settings in force; immutable. Read as by `load()` if nobody did."""
    now = live.now
    return live.begin() if now is None else now


def on_change(function: Callable[[Settings], object]) -> Following:
    """Call the function with the new settings after each reload that changed some.

    To miss none, ask for `current()` after this. A bound method is held weakly: it goes with its object.
    """
    return live.on_change(function)

"""All that is wrong with a map, as one error: whoever writes a map wants the whole list, not the first line of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bulkhead.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence


def refusal(faults: Sequence[str], where: str = "") -> ConfigurationError:
    """One or several faults, each in a line with the file (`where`) that it is in."""
    lines = [f"{where}: {one}" if where else one for one in faults]
    if len(lines) == 1:
        return ConfigurationError(lines[0])
    return ConfigurationError("\n  ".join([f"{len(lines)} faults in a map of cells:", *lines]))

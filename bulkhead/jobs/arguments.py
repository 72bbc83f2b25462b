"""Arguments of jobs as JSON text, and the sentence about the one that is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from bulkhead.errors import ConfigurationError

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def as_json(job: str, arguments: dict[str, Any]) -> str:
    """The arguments as a JSON object. ConfigurationError names the first one that is none, and where inside it."""
    try:
        text = _encode(arguments)
    except (TypeError, ValueError, RecursionError):
        text = None
    if text is not None and not any(isinstance(value, (Mapping, list, tuple)) for value in arguments.values()):
        return text
    for name, value in arguments.items():
        fault = _fault(value, name, 0)
        if fault is not None:
            raise ConfigurationError(f"job {job!r}: arguments are JSON, and {fault}; pass an id or a plain value")
    if text is None:
        raise ConfigurationError(f"job {job!r}: arguments are JSON, and these are none")
    return text


def from_json(text: str) -> dict[str, Any]:
    """What the handler is called with."""
    found: dict[str, Any] = json.loads(text)
    return found


_DEEPEST = 100


def _fault(value: Any, where: str, depth: int) -> str | None:
    """Keys that are no text would come back as text: no error of `json`, but not what was given."""
    if depth > _DEEPEST:
        return f"{where[: where.find('[')]!r} is nested more than {_DEEPEST} deep, or holds itself"
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                return f"{where!r} has a key of type {type(key).__name__}"
            if (fault := _fault(inner, f"{where}[…]", depth + 1)) is not None:
                return fault
        return None
    if isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            if (fault := _fault(inner, f"{where}[{index}]", depth + 1)) is not None:
                return fault
        return None
    try:
        _encode(value)
    except (TypeError, ValueError, RecursionError):
        if isinstance(value, float):
            return f"{where!r} is {value}, which JSON does not have"
        if isinstance(value, int):  # else it is always JSON
            return f"{where!r} is a whole number of more than {sys.get_int_max_str_digits():,} digits"
        return f"{where!r} is of type {type(value).__name__}"
    return None

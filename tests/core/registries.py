"""Words for tests of a registry of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bulkhead.option_set import Options

if TYPE_CHECKING:
    from bulkhead.registry import Registry


def add(own: Registry, *names: str, **options: Any) -> None:
    for name in names:
        own.get(f"call:{name}", Options(**options))


def names(own: Registry) -> list[str]:
    return [identifier.removeprefix("call:") for identifier in own.resources()]

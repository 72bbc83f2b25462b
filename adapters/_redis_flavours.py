"""One text for sync and asyncio: templates that differ by `{a}` ("async ") and `{w}` ("await "), and what they make.

As in bulkhead.guard: two hand-written copies would drift apart, and wrappers of `*args, **kwargs` cost more per call.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def compiled(template: str, names: Mapping[str, Any], *, is_async: bool, **parts: str) -> dict[str, Any]:
    """The functions of a template, by name. `names`: its globals; `parts`: what else stands in braces."""
    source = template.format(a="async " if is_async else "", w="await " if is_async else "", **parts)
    made = dict(names)
    exec(compile(source, f"<bulkhead: redis, {'asyncio' if is_async else 'sync'}>", "exec"), made)  # noqa: S102
    return made


def named(name: str, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A wrapper that goes by the name of what it replaces."""

    def made(original: Any) -> Any:
        replacement = make(original)
        functools.update_wrapper(replacement, original)
        replacement.__name__ = name
        return replacement

    return made

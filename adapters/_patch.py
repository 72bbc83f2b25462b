"""How a driver's attributes are replaced and restored. The only file that knows wrapt.

Hot methods are replaced by plain functions with the driver's own signature (`replace`); constructors, connect and
the like by wrapt's wrappers (`wrap`), which cost several microseconds a call but fit every signature. Both are
idempotent, also against a second copy of this toolkit, and are undone by putting the very same attribute back. Where
another tool has wrapped ours meanwhile, ours stays below it and passes everything through (`Driver.off`).
"""

from __future__ import annotations

import logging
import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("bulkhead")
DISTRIBUTION = "bulkhead-toolkit"
MARK = "__bulkhead__"
_ABSENT = object()
# The first supported version of each distribution. Known here, because adapters cannot even be imported beside drivers
# that are much older: they lack names that the adapters import.
MINIMUM: dict[str, tuple[int, ...]] = {
    "redis": (5, 2),
    "psycopg": (3, 1, 20),
    "psycopg-pool": (3, 2),
    "SQLAlchemy": (2, 0, 58),
    "httpx": (0, 27),
    "httpx2": (2,),
}


class Driver:
    """The patches of one driver. `off`: uninstalled; wrappers that could not be removed pass through."""

    def __init__(self, name: str, distribution: str, minimum: tuple[int, ...] | None = None) -> None:
        self.name, self.distribution = name, distribution
        self.minimum = MINIMUM[distribution] if minimum is None else minimum
        self.off = True
        self.applied = False
        self._warned = False
        self._left = False
        self._done: list[tuple[Any, str, Any, Any]] = []  # owner, attribute, what its __dict__ held, what we put there
        # Patches that another tool had wrapped when they were to be restored: still in place below it.
        self._covered: list[tuple[Any, str, Any, Any]] = []

    @property
    def version(self) -> str | None:
        """The installed version; None: not installed."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return None

    @property
    def supported(self) -> bool:
        """Is the installed version new enough?"""
        found = self.version
        return found is not None and release(found) >= self.minimum

    def apply(self, patch: Callable[[], None]) -> bool:
        """Run `patch` once; False, and one warning, if the installed version is not supported. It is left alone."""
        if self.applied:
            return True
        if not self.supported:
            self.leave_alone()
            return False
        self.off = False
        self.applied = True
        try:
            patch()
        except BaseException:
            self.restore()  # all of a driver or nothing
            raise
        return True

    def leave_alone(self) -> None:
        """Say once that the installed version is not supported."""
        if not self._warned:
            self._warned = True
            log.warning(
                "[BULKHEAD] %s %s is not supported (%s or newer is); it is left alone and its clients are unprotected",
                self.distribution,
                self.version,
                ".".join(map(str, self.minimum)),
            )

    def replace(self, owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
        """Put `make(original)` in the place of a plain function of a class or module."""
        original = getattr(owner, attribute)
        if self._still_below(owner, attribute):
            return
        if foreign(original):
            self._leave_to_the_other_copy(owner, attribute)
            return
        replacement = make(original)
        setattr(replacement, MARK, DISTRIBUTION)
        if not hasattr(replacement, "__wrapped__"):
            replacement.__wrapped__ = original
        self._put(owner, attribute, replacement)

    def wrap(self, owner: Any, attribute: str, wrapper: Callable[[Any, Any, Any, Any], Any]) -> None:
        """Wrap a function, method or classmethod with wrapt: `wrapper(wrapped, instance, args, kwargs)`."""
        if self._still_below(owner, attribute):
            return
        if foreign(getattr(owner, attribute)):
            self._leave_to_the_other_copy(owner, attribute)
            return
        held = vars(owner).get(attribute, _ABSENT)
        original = getattr(owner, attribute) if held is _ABSENT else held
        replacement = wrapt.FunctionWrapper(original, self._unless_off(wrapper))
        setattr(replacement, "_self" + MARK, DISTRIBUTION)
        self._put(owner, attribute, replacement)

    def _leave_to_the_other_copy(self, owner: Any, attribute: str) -> None:
        if not self._left:
            self._left = True
            log.warning(
                "[BULKHEAD] %s is patched by another copy of this toolkit (%s.%s, perhaps more), which stays in charge",
                self.name,
                getattr(owner, "__name__", owner),
                attribute,
            )

    def put(self, owner: Any, attribute: str, value: Any) -> None:
        """Put a value that is no function of the driver's (a parser in a table, an alias) where it can be restored."""
        if not self._still_below(owner, attribute):
            self._put(owner, attribute, value)

    def _unless_off(self, wrapper: Callable[[Any, Any, Any, Any], Any]) -> Callable[[Any, Any, Any, Any], Any]:
        def unless_off(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            if self.off:
                return wrapped(*args, **kwargs)
            return wrapper(wrapped, instance, args, kwargs)

        return unless_off

    def _put(self, owner: Any, attribute: str, value: Any) -> None:
        held = vars(owner).get(attribute, _ABSENT)
        self._done.append((owner, attribute, held, value))
        setattr(owner, attribute, value)

    def _still_below(self, owner: Any, attribute: str) -> bool:
        """Is our earlier patch still there, below another tool's? Then it works again, and a second is not put on top.

        False if what is there now is the driver's own again.
        """
        for patch in self._covered:
            if patch[0] is owner and patch[1] == attribute:
                self._covered.remove(patch)
                if vars(owner).get(attribute, _ABSENT) is patch[2]:
                    return False
                self._done.append(patch)
                return True
        return False

    def restore(self) -> list[str]:
        """Put everything back. Returns what another tool has wrapped meanwhile: that passes through."""
        self.off = True
        self.applied = False
        covered: list[str] = []
        for owner, attribute, held, ours in reversed(self._done):
            if vars(owner).get(attribute, _ABSENT) is not ours:
                self._covered.append((owner, attribute, held, ours))
                covered.append(f"{getattr(owner, '__name__', owner)}.{attribute}")
                continue
            if held is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, held)
        self._done = []
        return covered

    def __repr__(self) -> str:
        return f"<{self.name} {self.version} {'patched' if self.applied else 'not patched'}>"


def foreign(function: Any) -> bool:
    """Is this function, or one that it wraps, ours already?"""
    seen = 0
    while function is not None and seen < 50:
        names = getattr(function, "__dict__", {})
        if MARK in names or getattr(function, "_self" + MARK, None) is not None:
            return True
        function = getattr(function, "__wrapped__", None)
        seen += 1
    return False


def release(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with: "8.1.0rc1" -> (8, 1, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def when_imported(module: str, then: Callable[[Any], object]) -> None:
    """Call `then(module)` now if the module is imported, else as soon as it is."""
    wrapt.register_post_import_hook(then, module)

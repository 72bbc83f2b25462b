"""The failure that opened a circuit, kept without what it would keep alive.

A stored exception holds its traceback, and through that frames, connections, tickets and another tenant's data. So a
circuit keeps a recipe: class, arguments and plain attributes. Each rejection gets a fresh copy as its `__cause__`.
"""

from __future__ import annotations

from functools import partial
from types import WrapperDescriptorType
from typing import TYPE_CHECKING, Any, cast

from bulkhead.errors import BulkheadError

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN = (str, int, float, bool, type(None), bytes)


class Failure(BulkheadError):
    """Stands for a failure that could not be copied: its type and text."""


class Cause:
    """A recipe for copies of one exception. `text` is what its `str()` said.

    `fresh()` makes a copy without traceback, context and cause. Every refusal of an open circuit asks for one, so it is
    a C callable wherever the exception has nothing but arguments.
    """

    __slots__ = ("fresh", "text")

    fresh: Callable[[], BaseException]

    def __init__(self, error: BaseException) -> None:
        try:
            self.text = f"{type(error).__qualname__}: {error}"
        except Exception:  # noqa: BLE001  a foreign __str__ must not reach into the user's call
            self.text = type(error).__qualname__
        kind = type(error)
        # A constructor written in Python may want other arguments than `args`: it is not called.
        plain = isinstance(cast("Any", kind).__init__, WrapperDescriptorType)
        make: Callable[[], BaseException] = (
            partial(kind, *error.args) if plain else partial(cast("Any", kind.__new__), kind, *error.args)
        )
        # What is not plain (a connection, a request, a result) is None in the copy.
        state = {
            name: value if isinstance(value, _PLAIN) else None for name, value in getattr(error, "__dict__", {}).items()
        }
        self.fresh = partial(_with_state, make, state) if state else make
        if not self._copies(error):
            self.fresh = partial(Failure, self.text)

    def _copies(self, error: BaseException) -> bool:
        if not all(isinstance(argument, _PLAIN) for argument in error.args):
            return False
        try:
            twin = self.fresh()
            return type(twin) is type(error) and twin.args == error.args and str(twin) == str(error)
        except Exception:  # noqa: BLE001  a foreign __str__ must not reach into the user's call
            return False

    def __repr__(self) -> str:
        return f"<Cause {self.text}>"


def _with_state(make: Callable[[], BaseException], state: dict[str, Any]) -> BaseException:
    twin = make()
    twin.__dict__.update(state)
    return twin

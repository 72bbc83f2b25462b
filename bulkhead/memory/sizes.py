"""What an object takes in memory, as far as it can tell; and which numbers of bytes can be charged.

The size of the object itself, with its capacity and not its length; never what a view's other views or a container's
items take. Nothing here counts anything.
"""

from __future__ import annotations

from array import array
from operator import index
from sys import getsizeof
from typing import TYPE_CHECKING, Any

from bulkhead.option_rows import shown
from bulkhead.settings.kinds import MAXIMUM_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN_SIZE = (bytes, bytearray, array)


def real_size(one: Any, size: Callable[[Any], int] | None = None) -> int:
    """Bytes that `one` takes: what `size(one)` says, else what it says itself.

    bytes, bytearray, array.array: sys.getsizeof, spare room included. memoryview: itself and all that it shows. Others:
    their `nbytes` (NumPy, Arrow). TypeError for what has none.
    """
    if size is not None:
        return size(one)
    if issubclass(type(one), _OWN_SIZE):  # isinstance would take a proxy for what it stands for
        return getsizeof(one)
    if type(one) is memoryview:
        return getsizeof(one) + one.nbytes
    try:
        return index(one.nbytes)
    except (AttributeError, TypeError):
        raise TypeError(
            f"the size of {type(one).__name__} is not known: bytes, bytearray, memoryview, array.array and whatever "
            "has `nbytes` (NumPy, Arrow) tell theirs; for others give a function, charge_for(it, size=sys.getsizeof), "
            "or charge the number, charge(n)"
        ) from None


def checked(size: object) -> int:
    """The number of bytes to charge. TypeError, ValueError."""
    if type(size) is bool or not issubclass(type(size), int):
        raise TypeError(f"a number of bytes is an int, not {type(size).__name__}")
    exact = int.__int__(size)  # type: ignore[arg-type]  # a subclass may compare and convert as it likes
    if not 0 <= exact <= MAXIMUM_BYTES:
        raise ValueError(f"a number of bytes is from 0 to 2**63 - 1, not {shown(exact)}")
    return exact

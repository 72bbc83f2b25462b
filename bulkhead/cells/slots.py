"""Sets of hash slots as people write and read them: "0-8191", "16000", 7, or several of these. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bulkhead.hashing import SLOTS
from bulkhead.option_rows import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LAST = SLOTS - 1

_WRITTEN = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")


def read(one: object) -> range | str:
    """The slots that one entry names, or what is wrong with it."""
    if isinstance(one, int) and not isinstance(one, bool):
        first = last = one
    else:
        found = _WRITTEN.fullmatch(one) if isinstance(one, str) else None
        if found is None:
            return f"{shown(one)} is neither a slot nor a range FIRST-LAST"
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
    if first > last:
        return f"{shown(one)} is inverted; write {last}-{first}"
    if not 0 <= first <= last <= LAST:
        return f"{shown(one)} is out of range, slots are 0-{LAST}"
    return range(first, last + 1)


def merged(slots: Iterable[int]) -> Iterator[range]:
    """Ranges that hold these slots, ascending; neighbours are joined."""
    first = last = -2
    for slot in sorted(slots):
        if slot > last + 1:
            if first >= 0:
                yield range(first, last + 1)
            first = slot
        last = slot
    if first >= 0:
        yield range(first, last + 1)


def written(ranges: Iterable[range]) -> tuple[str, ...]:
    """The form that `read` reads: ("0-8191", "16000")."""
    return tuple(str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in ranges)


def told(slots: Iterable[int]) -> str:
    """A set of slots for a text: "slot 7", "slots 0-5, 9"."""
    parts = written(merged(slots))
    return f"slot{'' if len(parts) == 1 and '-' not in parts[0] else 's'} {', '.join(parts)}"

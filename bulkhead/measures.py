"""Numbers of parts of the toolkit that are no resource, for monitoring: who has some registers how to read them.

`bulkhead.metrics` shows what is registered here beside the resources'. It is told nothing of the part, and the part
nothing of Prometheus. Labels must come from code and configuration, never from a tenant or a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple


class Measure(NamedTuple):
    """A metric. `name` without the suffix that its type adds; `help` one sentence."""

    name: str
    help: str
    labels: tuple[str, ...]
    kind: Literal["counter", "gauge", "summary"]
    """A counter never goes back. A gauge of several processes is their sum. A summary has two numbers: times, sum."""


class Number(NamedTuple):
    """What a measure is now, for these values of its labels."""

    measure: Measure
    labels: tuple[str, ...]
    value: float
    times: int = 0
    """Of a summary: how many; `value` is their sum."""


Read = Callable[[], Iterable[Number]]

_readers: list[Read] = []
_rejections: dict[str, Callable[[], int]] = {}


def add(read: Read) -> None:
    """Ask this function at each scrape, in any thread; for the life of the process. It must not raise."""
    if read not in _readers:
        _readers.append(read)


def add_rejections(kind: str, read: Callable[[], int]) -> None:
    """Where the number of refusals at the limit of one tenant is read: bulkhead_tenant_rejections_total{kind}."""
    _rejections[kind] = read


def numbers() -> list[Number]:
    """All numbers of now."""
    return [number for read in tuple(_readers) for number in read()]


def rejections() -> dict[str, int]:
    """Refusals by kind."""
    return {kind: read() for kind, read in tuple(_rejections.items())}

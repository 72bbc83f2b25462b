"""Lanes for Celery, Dramatiq, RQ, arq: the name of the queue that a tenant's job goes to. No broker is known here.

Their workers serve lanes as queues: with 8 lanes and 2 per tenant a noisy tenant fills at most 2 of 8 queues. Caps and
the fair order within a lane they do not have; those are the runners'.
"""

from __future__ import annotations

from random import choice
from typing import TYPE_CHECKING

from bulkhead.errors import ConfigurationError
from bulkhead.hashing import shuffle_shard
from bulkhead.option_rows import MAXIMUM_COUNT, shown
from bulkhead.tenancy import tenant_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    Choose = Callable[[Sequence[str]], str]


def lane_queue(
    tenant: str | int | UUID | None,
    prefix: str,
    lanes: int,
    lanes_per_tenant: int = 2,
    choose: Choose = choice,
) -> str:
    """The queue for a job of this tenant: one of its lanes, `<prefix>-<lane>`.

    `choose` is given the names of the tenant's queues, in order, and returns one of them: by chance, or the shortest,
    say. Without a tenant any lane will do. Every process gets the same lanes for the same numbers (a permanent
    contract, `bulkhead.hashing.shuffle_shard`); workers must serve all of `lane_queues(prefix, lanes)`.
    ConfigurationError for numbers below 1, for a prefix that is no text, and for a choice that is none of the names.
    """
    _check(prefix, lanes, lanes_per_tenant)
    mine = range(lanes) if tenant is None else shuffle_shard(tenant_text(tenant), lanes, lanes_per_tenant)
    names = [f"{prefix}-{lane}" for lane in mine]
    chosen = choose(names)
    if chosen not in names:
        raise ConfigurationError(f"choose() must return one of {', '.join(names)}, not {shown(chosen)}")
    return chosen


def lane_queues(prefix: str, lanes: int) -> list[str]:
    """The names of all lanes' queues, for the workers."""
    _check(prefix, lanes, 1)
    return [f"{prefix}-{lane}" for lane in range(lanes)]


def _check(prefix: object, lanes: object, lanes_per_tenant: object) -> None:
    for name, number in (("lanes", lanes), ("lanes_per_tenant", lanes_per_tenant)):
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAXIMUM_COUNT:
            raise ConfigurationError(f"{name} must be a whole number from 1 to {MAXIMUM_COUNT:,}, not {shown(number)}")
    if not isinstance(prefix, str) or not prefix:
        raise ConfigurationError(f"the prefix of queues must be a text that is not empty, not {shown(prefix)}")

"""Which errors of redis-py mean that the server is in trouble. No state, no I/O.

redis-py sorts errors by what a caller may do, not by what they say about the server: "out of memory" and "the cluster
is down" are ResponseErrors, a wrong password is a ConnectionError. The table is in order; the first line that fits
decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    MaxConnectionsError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    WatchError,
)

from bulkhead.adapter import Outcome, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bulkhead.adapter import Options, Site

# Said by a server that answers and is no good all the same; redis-py has no classes for them.
SICK = ("LOADING ", "MISCONF ", "NOREPLICAS ", "BUSY ", "CLUSTERDOWN ", "MASTERDOWN ")
OOM = "OOM command not allowed"  # also quoted in the errors of Lua scripts before Redis 7
# Of the pool, not of the server: it had no connection to spare.
POOL_IS_EMPTY = "No connection available."
# Of a connection that Sentinel manages: the next one goes to the new primary.
DEMOTED = "The previous master is now a slave"
REPLY = "_bulkhead_reply"  # what the server said, noted before redis-py puts the command of a pipeline in front of it

_LOCAL = (AuthenticationError, AuthorizationError, MaxConnectionsError, NoPermissionError, ReadOnlyError)
_SICK = (BusyLoadingError, ClusterDownError, MasterDownError, InvalidResponse)


def outcome(error: Exception, options: Options) -> Outcome:
    """What an error of redis-py, or of the socket below it, tells the circuit."""
    for kinds, told in _TABLE:
        if isinstance(error, kinds):
            return told if isinstance(told, Outcome) else told(error, options)
    return Outcome.IGNORED  # DataError, PubSubError, LockError; a reply that the user's callback could not digest


def _of_answer(error: Exception, options: Options) -> Outcome:
    text = getattr(error, REPLY, None) or str(error)
    if isinstance(error, OutOfMemoryError) or OOM in text:
        return Outcome.SUCCESS if options.open_circuit_on_oom is False else Outcome.FAILURE
    return Outcome.FAILURE if text.startswith(SICK) else Outcome.SUCCESS


def _of_connection(error: Exception, options: Options) -> Outcome:  # noqa: ARG001  as its sibling
    return Outcome.IGNORED if str(error) in (POOL_IS_EMPTY, DEMOTED) else Outcome.FAILURE


_TABLE: tuple[tuple[tuple[type[Exception], ...], Outcome | Callable[[Exception, Options], Outcome]], ...] = (
    (_LOCAL, Outcome.IGNORED),
    (_SICK, Outcome.FAILURE),
    ((ResponseError,), _of_answer),
    ((WatchError,), Outcome.SUCCESS),
    ((redis.ConnectionError,), _of_connection),
    ((redis.TimeoutError, OSError), Outcome.FAILURE),
)


def error_replies(replies: Iterable[Any], commands: Iterable[Any]) -> list[Exception]:
    """The errors in what a pipeline returned, those inside replies of EXEC too."""
    found: list[Exception] = []
    for reply, command in zip(replies, commands, strict=False):
        if isinstance(reply, Exception):
            found.append(reply)
        elif isinstance(reply, list) and command[0][0] in ("EXEC", b"EXEC", "exec"):
            found += [one for one in reply if isinstance(one, Exception)]
    return found


def worst(errors: list[Exception], site: Site, options: Options) -> Exception:
    """Of several error replies the one that says most about the server."""
    told: dict[Outcome, Exception] = {}
    for error in errors:
        told.setdefault(verdict(error, site, options, None, None), error)
    return told.get(Outcome.FAILURE) or told.get(Outcome.SUCCESS) or errors[0]

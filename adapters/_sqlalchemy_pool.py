"""The pool of one engine: connects are guarded calls, and checked-out connections may be limited per tenant.

Both hooks sit on the pool object and move on to the pool that replaces it when the engine is disposed of. A connection
ticket is taken before the pool's own queue, so a tenant at its limit never waits in it, and is kept on the pool's
record of that connection until the record is checked in (closed, invalidated, reset failed, garbage) or detached.
Nothing is ever refused inside the pool's checkout or ping: that would destroy healthy connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from bulkhead.adapter import inside, unmark

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.pool import Pool

    from adapters._sqlalchemy_calls import Guards


def hook(pool: Pool, guards: Guards) -> None:
    """Guard the connects of a pool, and its checkouts where each is a connection of its own."""
    pool._creator = _connecting(pool._invoke_creator, guards)  # noqa: SLF001  the setter rebuilds _invoke_creator
    if not isinstance(pool, (SingletonThreadPool, StaticPool)):  # these lend one connection several times
        event.listen(pool, "checkin", _returned)
        event.listen(pool, "detach", _returned)
        _hook_checkout(pool, guards)


def _connecting(original: Callable[[Any], Any], guards: Guards) -> Callable[..., Any]:
    def connect(connection_record: Any = None) -> Any:  # the signature that the pool looks for
        if guards.driver.off:
            return original(connection_record)
        resource, site = guards.resource(), guards.connection
        if inside(resource.identifier):
            return original(connection_record)
        ticket, give, shared, give_shared, failed = guards.enter(resource, site)
        started = resource.clock()
        around = resource.mark()
        try:
            if resource.limits_time:
                connection = guards.limits.connect(resource, ticket, original, connection_record)
            else:
                connection = original(connection_record)
        except BaseException as error:
            unmark(around)
            failed(ticket, shared, error, site, started)
            del ticket, shared
            raise
        unmark(around)
        give_shared(shared)
        give(ticket)
        return connection

    return connect


def _hook_checkout(pool: Any, guards: Guards) -> None:
    original, recreate = pool.connect, pool.recreate

    def connect() -> Any:
        if guards.driver.off:
            return original()
        resource = guards.resource()
        if resource.options.tenant_connections is None:
            return original()
        checkout = resource.checkout(guards.connection)
        try:
            fairy = original()
            fairy._connection_record.bulkhead_checkout = checkout  # noqa: SLF001  what the events are given
        except BaseException:
            checkout.end()
            raise
        return fairy

    def recreate_hooked() -> Any:
        successor = recreate()
        _hook_checkout(successor, guards)
        return successor

    pool.connect, pool.recreate = connect, recreate_hooked


def _returned(dbapi_connection: Any, connection_record: Any) -> None:  # noqa: ARG001  the signature of the events
    checkout = vars(connection_record).pop("bulkhead_checkout", None)
    if checkout is not None:
        checkout.end()

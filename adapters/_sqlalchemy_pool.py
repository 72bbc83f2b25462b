"""Pools: an engine's connects are guarded calls, and checked-out connections may be limited per tenant.

Two limits, each with its ticket. `tenant_connections` belongs to one engine: its hook sits on the pool object and moves
on to the pool that replaces it when the engine is disposed of. `max_db_connections` belongs to the process: its hook
is `Pool.connect` of all pools. Both are taken before the pool's own queue, so a tenant at its limit never waits in it,
and go back when the pool's record of that connection is checked in (closed, invalidated, reset failed, garbage) or
the connection is detached. Nothing is ever refused inside the pool's checkout or ping: that would destroy healthy
connections. Pools that lend one connection several times (StaticPool, SingletonThreadPool) have neither limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.pool import SingletonThreadPool, StaticPool

from bulkhead.adapter import connections, inside, nesting, unmark

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.pool import Pool

    from adapters._patch import Driver
    from adapters._sqlalchemy_calls import Guards
    from bulkhead.adapter import Checkout, Site

caps = connections.caps
_LEND_ONE_SEVERAL_TIMES = (SingletonThreadPool, StaticPool)


def hook(pool: Pool, guards: Guards) -> None:
    """Guard the connects of a pool, and its checkouts where each is a connection of its own."""
    pool._creator = _connecting(pool._invoke_creator, guards)  # noqa: SLF001  the setter rebuilds _invoke_creator
    if not isinstance(pool, _LEND_ONE_SEVERAL_TIMES):
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


# ---- checkouts


def _hook_checkout(pool: Any, guards: Guards) -> None:
    original, recreate = pool.connect, pool.recreate

    def connect() -> Any:
        if guards.driver.off:
            return original()
        resource = guards.resource()
        if resource.options.tenant_connections is None:
            return original()
        return _checked_out(original, resource.checkout(guards.connection))

    def recreate_hooked() -> Any:
        successor = recreate()
        _hook_checkout(successor, guards)
        return successor

    pool.connect, pool.recreate = connect, recreate_hooked


def capped(driver: Driver, site: Site, original: Callable[[Pool], Any]) -> Callable[[Pool], Any]:
    """What replaces `Pool.connect`, for all pools: each checkout takes one of the tenant's max_db_connections."""

    def lend(pool: Pool) -> Any:
        checkout = None if isinstance(pool, _LEND_ONE_SEVERAL_TIMES) else connections.checkout(site)
        if checkout is None:
            return original(pool)
        around = nesting.mark(connections.LENDING)
        try:
            return _checked_out(lambda: original(pool), checkout)
        finally:
            unmark(around)

    def connect(self: Pool) -> Any:
        if caps.on and not driver.off:
            return lend(self)
        return original(self)

    return connect


class _GivesBack:
    """What a record calls when it is checked in, and drops when its connection is invalidated."""

    __slots__ = ("checkout",)

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout

    def __call__(self, dbapi_connection: object) -> None:  # noqa: ARG002  what records hand over
        self.checkout.end()


def _checked_out(original: Callable[[], Any], checkout: Checkout) -> Any:
    """A connection of the pool that gives the ticket back when it is returned; an error gives it back now."""
    try:
        fairy = original()
        record = fairy._connection_record  # noqa: SLF001  nothing public is told of a check-in at no cost for others
        if record is None:  # a listener has detached it
            checkout.end()
        else:
            record.finalize_callback.append(_GivesBack(checkout))
    except BaseException:
        checkout.end()
        raise
    return fairy


def detaching(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """What replaces `detach`: before the pool can lend the record again its tickets are taken off it."""

    def detach(self: Any) -> None:
        record = self._connection_record
        if record is None:
            original(self)
            return
        ours = [one for one in record.finalize_callback if isinstance(one, _GivesBack)]
        for one in ours:
            record.finalize_callback.remove(one)
        try:
            original(self)
        finally:
            for one in ours:
                one.checkout.end()

    return detach

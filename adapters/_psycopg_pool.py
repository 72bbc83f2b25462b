"""psycopg_pool: callers are refused at once while the circuit is open; the pool's own work takes no tickets.

A pool connects in workers, for nobody in particular: their connects take no ticket, no probe and no tenant, but their
failures count, and while the circuit is half-open they go one at a time. `getconn` asks the circuit before it queues,
so that nobody waits for a connection that cannot come, and takes the tenant's connection tickets: that of the pool's
own limit (tenant_connections), and whatever the pool's options that of the process (max_db_connections). `putconn`
gives both back; the latter also the end of the connection itself.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from adapters._psycopg_errors import adapter
from bulkhead.adapter import Late, connections, detached, inside, resolver

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from adapters._patch import Driver
    from bulkhead.adapter import Checkout, Resource

    Bind = Callable[[object, tuple[Any, ...], dict[str, Any]], Resource | Late | None]
    Tickets = tuple[Checkout | None, Checkout | None]  # of tenant_connections, of max_db_connections

caps = connections.caps

in_worker: ContextVar[bool] = ContextVar("bulkhead_psycopg_worker", default=False)
"""Is this code run by a worker of a pool?"""

# Who connects now, by resource. `setdefault` is atomic enough: a second lock for one resource lets one connect more by.
_turns: weakref.WeakKeyDictionary[Resource, threading.Lock] = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_turns.clear)  # the parent's workers do not run in the child


@contextmanager
def background(resource: Resource) -> Generator[None]:
    """A connect that a pool makes by itself."""
    turn = None
    if resource.state == "half_open":
        turn = _turns.setdefault(resource, threading.Lock())
        if not turn.acquire(blocking=False):
            raise adapter.connection.errors.open(resource.identifier, None, None)
    try:
        yield
    except BaseException as error:
        resource.report(error, adapter.connection)
        raise
    finally:
        if turn is not None:
            turn.release()


def patch_pool(driver: Driver, module: Any, bind: Bind) -> None:
    """Patch both kinds of pool; the pools without connections of their own inherit from them."""

    def init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **_bound_once(instance, args, kwargs, bind))

    for pool in (module.ConnectionPool, module.AsyncConnectionPool):
        driver.wrap(pool, "__init__", init)
        driver.wrap(pool, "worker", _worker)
    driver.replace(module.ConnectionPool, "getconn", lambda original: _getconn(driver, original, bind))
    driver.replace(module.AsyncConnectionPool, "getconn", lambda original: _async_getconn(driver, original, bind))
    driver.replace(module.ConnectionPool, "putconn", lambda original: _putconn(driver, original))
    driver.replace(module.AsyncConnectionPool, "putconn", lambda original: _async_putconn(driver, original))


def _bound_once(pool: Any, args: Any, kwargs: dict[str, Any], bind: Bind) -> dict[str, Any]:
    """Wrong options raise where the pool is built (its workers would swallow that), and callables are asked once.

    Where conninfo or kwargs are callables themselves nothing is known yet: each connection tells.
    """
    conninfo, given = args[0] if args else kwargs.get("conninfo", ""), kwargs.get("kwargs") or {}
    if callable(conninfo) or callable(given):
        return kwargs
    own = dict(given)
    raw = own.pop("bulkhead", None)
    if raw is None and resolver() is None:
        return kwargs
    pool.bulkhead_bound = bind(raw, (conninfo,), own)
    return {**kwargs, "kwargs": {**own, "bulkhead": pool.bulkhead_bound or False}}


def _worker(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    """Threads begin with an empty context, tasks with the context, tenant included, of whoever opened the pool."""
    if inspect.iscoroutinefunction(wrapped):

        async def work_async() -> None:
            in_worker.set(True)
            await wrapped(*args, **kwargs)

        return detached(work_async)()

    def work() -> None:
        in_worker.set(True)
        wrapped(*args, **kwargs)

    return detached(work)()


def _resource_of(pool: Any, bind: Bind) -> Resource | None:
    """The resource of a pool's connections; None: unprotected, or not known before its first connection."""
    try:
        bound = pool.bulkhead_bound
    except AttributeError:
        if callable(pool.kwargs) or callable(pool.conninfo):
            return None
        kwargs = dict(pool.kwargs or {})
        bound = pool.bulkhead_bound = bind(kwargs.pop("bulkhead", None), (pool.conninfo,), kwargs)
    return bound.now() if isinstance(bound, Late) else bound


def _ask(pool: Any, bind: Bind) -> Tickets | None:
    """Refuse while the circuit is open, else take the tenant's connection tickets."""
    resource, own = _resource_of(pool, bind), None
    if resource is not None and not inside(resource.identifier):
        resource.check(adapter.connection)
        if resource.options.tenant_connections is not None:
            own = resource.checkout(adapter.connection)
    if not caps.on:
        return None if own is None else (own, None)
    try:
        # For an engine of SQLAlchemy that makes its connections of this pool: its checkout was counted.
        cap = None if inside(connections.LENDING) else connections.checkout(adapter.connection)
    except BaseException:
        _end(own)
        raise
    return own, cap


def _end(*tickets: Checkout | None) -> None:
    for ticket in tickets:
        if ticket is not None:
            ticket.end()


def _given(pool: Any, connection: Any, tickets: Tickets | None) -> None:
    if not hasattr(pool, "bulkhead_bound"):
        pool.bulkhead_bound = connection.bulkhead
    if tickets is not None:
        connection.bulkhead_checkout = tickets


def _take_from(connection: Any) -> Tickets | None:
    """The connection's tickets, taken off before the pool may hand the connection to somebody else."""
    tickets, connection.bulkhead_checkout = connection.bulkhead_checkout, None
    return tickets  # type: ignore[no-any-return]


def closed(tickets: Tickets | None) -> None:
    """A connection with these tickets was closed: the process has one less. Its place in the pool is not free yet."""
    if tickets is not None:
        _end(tickets[1])


def _getconn(driver: Driver, original: Callable[..., Any], bind: Bind) -> Callable[..., Any]:
    def getconn(self: Any, timeout: float | None = None) -> Any:
        if driver.off:
            return original(self, timeout)
        tickets = _ask(self, bind)
        try:
            connection = original(self, timeout)
        except BaseException:
            _end(*(tickets or ()))
            raise
        _given(self, connection, tickets)
        return connection

    return getconn


def _async_getconn(driver: Driver, original: Callable[..., Any], bind: Bind) -> Callable[..., Any]:
    async def getconn(self: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109  the driver's signature
        if driver.off:
            return await original(self, timeout)
        tickets = _ask(self, bind)
        try:
            connection = await original(self, timeout)
        except BaseException:
            _end(*(tickets or ()))
            raise
        _given(self, connection, tickets)
        return connection

    return getconn


def _putconn(driver: Driver, original: Callable[..., Any]) -> Callable[..., Any]:
    def putconn(self: Any, conn: Any) -> Any:
        if driver.off:
            return original(self, conn)
        tickets = _take_from(conn)
        try:
            original(self, conn)
        except ValueError:  # it is not this pool's: it stays with the caller
            conn.bulkhead_checkout, tickets = tickets, None
            raise
        finally:
            _end(*(tickets or ()))

    return putconn


def _async_putconn(driver: Driver, original: Callable[..., Any]) -> Callable[..., Any]:
    async def putconn(self: Any, conn: Any) -> Any:
        if driver.off:
            return await original(self, conn)
        tickets = _take_from(conn)
        try:
            await original(self, conn)
        except ValueError:
            conn.bulkhead_checkout, tickets = tickets, None
            raise
        finally:
            _end(*(tickets or ()))

    return putconn

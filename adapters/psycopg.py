"""psycopg 3, sync and async, and psycopg_pool: every connect and every statement behind tickets and circuit.

    psycopg.connect(dsn, **bulkhead.options(name="main", tickets=20))
    ConnectionPool(dsn, kwargs=bulkhead.options(name="main", tickets=20))

A connection keeps the resource it was made with. This file has connects and what is patched; statements are in
_psycopg_calls.py, the pool in _psycopg_pool.py, what errors mean in _psycopg_errors.py.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import weakref
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as e
from psycopg.conninfo import conninfo_to_dict

from adapters import _patch
from adapters._psycopg_calls import ACTIVE, release, wait_hook
from adapters._psycopg_errors import (
    PsycopgCallTimeoutError,
    PsycopgCircuitOpenError,
    PsycopgResourceBusyError,
    PsycopgUnknownTenantError,
    adapter,
    outcome,
)
from adapters._psycopg_limits import SLEEPS, Deadline, limited
from adapters._psycopg_pool import background, closed, in_worker, patch_pool
from bulkhead.adapter import Late, Resource, inside, resolver, unmark

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "PsycopgCallTimeoutError",
    "PsycopgCircuitOpenError",
    "PsycopgResourceBusyError",
    "PsycopgUnknownTenantError",
    "adapter",
    "apply",
    "driver",
    "outcome",
]

log = logging.getLogger("bulkhead")
driver = _patch.Driver("psycopg", "psycopg")
pool_version = _patch.Driver("psycopg_pool", "psycopg-pool")

_NOT_FOR_LIBPQ = frozenset(inspect.signature(psycopg.Connection.connect).parameters) - {"kwargs"}
_SECRETS = ("password", "passfile", "sslpassword")
_deadline: ContextVar[Deadline | None] = ContextVar("bulkhead_psycopg_connect", default=None)
_warned: weakref.WeakSet[Resource] = weakref.WeakSet()


# ---- which resource


def bind(raw: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Resource | Late | None:
    """The resource of a connection that is made with these arguments of `connect`, `bulkhead=` taken out."""
    if raw is False or (raw is None and resolver() is None):
        return None
    if isinstance(raw, (Resource, Late)):
        return raw  # a pool's, bound when the pool was built
    known = {name: value for name, value in kwargs.items() if name not in _NOT_FOR_LIBPQ and value is not None}
    with suppress(e.ProgrammingError):  # connect says what is wrong with it
        known = conninfo_to_dict(args[0] if args else kwargs.get("conninfo", ""), **known)
    host, port, dbname = _address(known)
    bound = adapter.bind(
        raw,
        name=_service(known) or f"{host}:{port}/{dbname}",
        host=host,
        port=int(port) if port.isdecimal() else None,
        extra={name: value for name, value in known.items() if name not in _SECRETS},
    )
    if isinstance(bound, Resource):
        _warn_if_blind(bound)
    return bound


def _service(known: dict[str, Any]) -> str | None:
    """A service of libpq's file stands for an address that only libpq looks up: two of them are no one resource."""
    service = known.get("service") or os.environ.get("PGSERVICE")
    return f"service={service}" if service and not (known.get("host") or known.get("hostaddr")) else None


def _address(known: dict[str, Any]) -> tuple[str, str, str]:
    """Host, port and database as libpq will take them, as far as that can be known without it."""

    def said(name: str, variable: str, default: str) -> str:
        return str(known.get(name) or os.environ.get(variable) or default)

    host = str(known.get("host") or known.get("hostaddr") or os.environ.get("PGHOST") or "localhost")
    return host, said("port", "PGPORT", "5432"), said("dbname", "PGDATABASE", said("user", "PGUSER", ""))


def _warn_if_blind(resource: Resource) -> None:
    """A PostgreSQL that hangs raises nothing: without a time limit its circuit sees nothing. Said once a resource."""
    options = resource.options
    if options.circuit_breaker and options.call_timeout is None and options.mode != "off" and resource not in _warned:
        _warned.add(resource)
        log.warning(
            "[BULKHEAD_CONFIG_WARNING]: %s: psycopg has no read time-out, so a PostgreSQL that hangs is no failure "
            "that this circuit could see; give call_timeout=",
            resource.identifier,
        )


def _resource_now(bound: Resource | Late) -> Resource:
    resource = bound.now() if isinstance(bound, Late) else bound
    _warn_if_blind(resource)
    return resource


# ---- connects


def _connect(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    bound = bind(kwargs.pop("bulkhead", None), args, kwargs)
    if bound is None:
        return _marked(wrapped(*args, **kwargs), None)
    resource = _resource_now(bound)
    if inside(resource.identifier):
        connection = wrapped(*args, **kwargs)
    elif in_worker.get():
        with background(resource):
            connection = _within(resource, None, wrapped, args, kwargs)
    else:
        ticket, give, shared, give_shared, failed = resource.enter(adapter.connection)
        try:
            connection = _within(resource, ticket, wrapped, args, kwargs)
        except BaseException as error:
            failed(ticket, shared, error, adapter.connection, None)
            del ticket, shared
            raise
        give_shared(shared)
        give(ticket)
    return _marked(connection, bound)


def _connect_of_others(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """`psycopg.connect` as another tool has wrapped it: it leads to psycopg's own method, or to ours."""
    bound = bind(kwargs.pop("bulkhead", None), args, kwargs)
    if bound is None:
        return _connect(wrapped, instance, args, {**kwargs, "bulkhead": False})

    def connect(*args: Any, **kwargs: Any) -> Any:
        around = _resource_now(bound).mark()
        try:
            return wrapped(*args, **kwargs)
        finally:
            unmark(around)

    return _connect(connect, instance, args, {**kwargs, "bulkhead": bound})


async def _connect_async(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    bound = bind(kwargs.pop("bulkhead", None), args, kwargs)
    if bound is None:
        return _marked(await wrapped(*args, **kwargs), None)
    resource = _resource_now(bound)
    if inside(resource.identifier):
        connection = await wrapped(*args, **kwargs)
    elif in_worker.get():
        with background(resource):
            connection = await _within_async(resource, None, wrapped, args, kwargs)
    else:
        ticket, give, shared, give_shared, failed = await resource.aenter(adapter.connection)
        started = resource.clock()
        try:
            connection = await _within_async(resource, ticket, wrapped, args, kwargs)
        except BaseException as error:
            failed(ticket, shared, error, adapter.connection, started)
            del ticket, shared
            raise
        give_shared(shared)
        give(ticket)
    return _marked(connection, bound)


def _marked(connection: Any, bound: Resource | Late | None) -> Any:
    """What `wait` reads, on the object itself: read from the class it would cost several times as much."""
    connection.bulkhead, connection.bulkhead_session = bound, None
    return connection


def _limit(resource: Resource, ticket: Any) -> Deadline | None:
    seconds = resource.time_limit(ticket) if resource.limits_time else None
    return None if seconds is None else Deadline(seconds, resource.identifier)


def _within(resource: Resource, ticket: Any, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    deadline = _limit(resource, ticket)
    del ticket
    token = _deadline.set(deadline)
    try:
        return wrapped(*args, **kwargs)
    except e.ConnectionTimeout as error:
        raise _ours(error, deadline) from None
    finally:
        _deadline.reset(token)


async def _within_async(resource: Resource, ticket: Any, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    deadline = _limit(resource, ticket)
    del ticket
    token = _deadline.set(deadline)
    try:
        return await wrapped(*args, **kwargs)
    except e.ConnectionTimeout as error:
        raise _ours(error, deadline) from None
    finally:
        _deadline.reset(token)


def _ours(error: e.ConnectionTimeout, deadline: Deadline | None) -> e.OperationalError:
    """Psycopg 3.1 has no wake-ups in a connect: there its own time-out is shortened, and reported as what it was."""
    return deadline.error() if deadline is not None and deadline.passed else error


def _connect_gen(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    gen = wrapped(*args, **kwargs)
    deadline = _deadline.get()
    return gen if deadline is None else limited(gen, deadline)


def _wait_conn(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    deadline = _deadline.get()
    if deadline is not None:
        left = max(0.001, deadline.until - monotonic())
        kwargs["timeout"] = min(kwargs.get("timeout") or left, left)
    return wrapped(*args, **kwargs)


# ---- the rest of a connection's life


def _close(original: Callable[..., Any]) -> Callable[..., Any]:
    def close(self: Any) -> None:
        if driver.off:
            original(self)
            return
        tickets = self.bulkhead_checkout  # a pool with close_returns may have lent it to somebody else at the end
        try:
            original(self)
        finally:
            if self.closed and not driver.off:
                release(self)
                closed(tickets)

    return close


def _close_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def close(self: Any) -> None:
        if driver.off:
            await original(self)
            return
        tickets = self.bulkhead_checkout  # a pool with close_returns may have lent it to somebody else at the end
        try:
            await original(self)
        finally:
            if self.closed and not driver.off:
                release(self)
                closed(tickets)

    return close


def _cancel(original: Callable[..., Any]) -> Callable[..., Any]:
    """`cancel` and what `cancel_safe` is made of: what they end is no sign of a slow server."""

    def cancel(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not driver.off and self.pgconn.transaction_status == ACTIVE:
            self.bulkhead_cancelled = monotonic()
        return original(self, *args, **kwargs)

    return cancel


def _enter_transaction(original: Callable[..., Any]) -> Callable[..., Any]:
    """While the circuit is open, refuse before the block begins: psycopg 3.3.9 would undo a BEGIN that never ran."""

    def enter(self: Any) -> Any:
        if not driver.off:
            _check(self._conn)
        return original(self)

    return enter


def _enter_transaction_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def enter(self: Any) -> Any:
        if not driver.off:
            _check(self._conn)
        return await original(self)

    return enter


def _check(connection: Any) -> None:
    bound = connection.bulkhead
    if bound is not None:
        resource = bound.now() if bound.late else bound
        if not inside(resource.identifier):
            resource.check(adapter.query)


# ---- patching


def apply() -> None:
    """Patch psycopg now, and psycopg_pool as soon as it is imported. What is patched already stays as it is."""
    driver.apply(_patch_driver)
    pool = sys.modules.get("psycopg_pool")
    if pool is not None:
        _patch_pool(pool)


def _patch_driver() -> None:
    base = psycopg.Connection.__mro__[1]  # what both kinds of connection inherit from
    for name in ("bulkhead", "bulkhead_session", "bulkhead_cancelled", "bulkhead_checkout"):
        driver.put(base, name, None)
    alias_is_plain = type(psycopg.connect) is type(psycopg.Connection.connect)
    for kind, connect, close in (
        (psycopg.Connection, _connect, _close),
        (psycopg.AsyncConnection, _connect_async, _close_async),
    ):
        driver.wrap(kind, "connect", connect)
        driver.replace(kind, "wait", lambda original: wait_hook(driver, original))
        driver.replace(kind, "close", close)
        if SLEEPS:
            driver.wrap(kind, "_wait_conn", _wait_conn)
    driver.wrap(base, "_connect_gen", _connect_gen)
    for name in ("cancel", "_cancel_gen"):
        if hasattr(base, name):
            driver.replace(base, name, _cancel)
    driver.replace(psycopg.Transaction, "__enter__", _enter_transaction)
    driver.replace(psycopg.AsyncTransaction, "__aenter__", _enter_transaction_async)
    if alias_is_plain:
        driver.put(psycopg, "connect", psycopg.Connection.connect)  # bound when psycopg was imported
    else:
        driver.wrap(psycopg, "connect", _connect_of_others)
    _patch.when_imported("psycopg_pool", _patch_pool)


def _patch_pool(module: Any) -> None:
    if not hasattr(module, "AsyncConnectionPool"):
        return  # half imported: it imports psycopg first, and calls for this adapter again when it is complete
    if not driver.applied or _patch.foreign(module.ConnectionPool.getconn):
        return
    if pool_version.supported:
        patch_pool(driver, module, bind)
    else:
        _leave_pool_alone()


@cache
def _leave_pool_alone() -> None:
    log.warning(
        "[BULKHEAD] psycopg_pool %s is not supported (%s or newer is); its getconn asks no circuit",
        pool_version.version,
        ".".join(map(str, pool_version.minimum)),
    )


apply()

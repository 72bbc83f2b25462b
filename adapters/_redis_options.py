"""How `bulkhead=` travels from a client, pool or URL to each of its connections, which is what calls are made with.

A pool is bound to its resource once, when it is made; its connection arguments carry the result, so every connection
of the pool has it, whoever makes it. `Redis(bulkhead=…)` hands it to the pool that it makes; a client that is given a
ready pool cannot have options of its own.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.sentinel

from bulkhead.adapter import Adapter, ConfigurationError, Late, Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from adapters._patch import Driver
    from bulkhead.adapter import Options

Wrapper = "Callable[[Any, Any, Any, Any], Any]"
CLIENTS = (redis.Redis, redis.asyncio.Redis)
POOLS = (redis.connection.ConnectionPool, redis.asyncio.connection.ConnectionPool)
SENTINEL_POOLS = (redis.sentinel.SentinelConnectionPool, redis.asyncio.sentinel.SentinelConnectionPool)
CONNECTIONS = (redis.connection.AbstractConnection, redis.asyncio.connection.AbstractConnection)
_SECRET = ("password", "username", "credential_provider", "ssl_password", "bulkhead")

# What Redis.__init__ was given, for the pool that it makes; False also keeps the resolver away.
_pending: ContextVar[Any] = ContextVar("bulkhead.redis.pending", default=None)


class Bound:
    """A resource in the connection arguments of a pool. Copies are itself; a pickle holds what the user gave."""

    __slots__ = ("raw", "resource")

    def __init__(self, resource: Resource | Late, raw: object) -> None:
        self.resource, self.raw = resource, raw

    def __copy__(self) -> Bound:
        return self

    def __deepcopy__(self, memo: object, /) -> Bound:
        return self

    def __reduce__(self) -> tuple[Callable[[object], object], tuple[object]]:
        return _itself, (self.raw,)

    def __repr__(self) -> str:
        return repr(self.resource)


def _itself(raw: object) -> object:
    return raw


def _default(function: Any, parameter: str) -> Any:
    """The default of a parameter, also of one that another tool has wrapped."""
    found = inspect.signature(inspect.unwrap(function)).parameters.get(parameter)
    return None if found is None else found.default


# Looked up before anything is patched.
READ_TIMEOUTS = {one: _default(one.__init__, "socket_timeout") for one in CONNECTIONS}
SIGNATURES = {one: inspect.signature(inspect.unwrap(one.__init__)) for one in CLIENTS}


def default_read_timeout(connection_class: Any) -> float | None:
    """The socket_timeout that connections have where none is given."""
    for one, found in READ_TIMEOUTS.items():
        if isinstance(connection_class, type) and issubclass(connection_class, one):
            return found if isinstance(found, (int, float)) else None
    return None


def _ready_pool(client: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The connection_pool among the arguments of Redis()."""
    for one, signature in SIGNATURES.items():
        if isinstance(client, one):
            names = list(signature.parameters)[1:]
            return kwargs.get("connection_pool") or dict(zip(names, args, strict=False)).get("connection_pool")
    return None


class Options4Redis:
    """Binds pools, clients and connections of one adapter."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def bound(self, raw: object, arguments: Mapping[str, Any], connection_class: Any, name: str | None) -> Bound | None:
        """The resource of whoever connects with these arguments, or None: unprotected."""
        if isinstance(raw, Bound):
            raw = raw.raw
        host, port, db = arguments.get("host", "localhost"), arguments.get("port", 6379), arguments.get("db", 0)
        path = arguments.get("path")
        if path is not None:
            host, port = str(path), None
        if name is None:
            name = f"{host}/{db}" if port is None else f"{host}:{port}/{db}"
        extra = {key: value for key, value in arguments.items() if key not in _SECRET}
        found = self._adapter.bind(
            raw,
            name=name,
            host=str(host),
            port=None if port is None else int(port),
            extra=MappingProxyType(extra),
            read_timeout=arguments.get("socket_timeout", default_read_timeout(connection_class)),
        )
        return None if found is None else Bound(found, raw)

    def bind_pool(self, pool: Any, raw: object, name: str | None = None) -> Bound | None:
        """Put the resource into the connection arguments of a pool."""
        arguments, connection_class = pool.connection_kwargs, pool.connection_class
        bound = self.bound(raw, arguments, connection_class, name)
        if bound is None:
            return None
        if isinstance(connection_class, type) and not issubclass(connection_class, CONNECTIONS):
            if raw is None:
                return None  # the resolver would protect it, but it cannot be
            raise ConfigurationError(
                f"bulkhead= needs connections that derive from redis' AbstractConnection; {connection_class!r} does not"
            )
        arguments["bulkhead"] = bound
        return bound

    # ---- wrappers of constructors

    def of_pool(self, wrapped: Any, pool: Any, args: Any, kwargs: Any) -> None:
        """ConnectionPool.__init__, through which those of its subclasses come."""
        raw = kwargs.pop("bulkhead", None)
        pending = _pending.get()
        if pending is not None:
            if pending is not False:
                _pending.set(None)
            raw = pending if raw is None else raw
        wrapped(*args, **kwargs)
        if not isinstance(pool, SENTINEL_POOLS):
            self.bind_pool(pool, raw)

    def of_sentinel_pool(self, wrapped: Any, pool: Any, args: Any, kwargs: Any) -> None:
        """SentinelConnectionPool.__init__: the address is not known yet, the service's name stands for it."""
        raw = kwargs.pop("bulkhead", None)
        wrapped(*args, **kwargs)
        self.bind_pool(pool, raw, pool.service_name if pool.is_master else f"{pool.service_name}/replicas")

    def of_client(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> None:
        """Redis.__init__."""
        if "bulkhead" not in kwargs:
            wrapped(*args, **kwargs)
            return
        raw = kwargs.pop("bulkhead")
        if raw is not None and _ready_pool(client, args, kwargs) is not None:
            raise ConfigurationError(
                "bulkhead= and connection_pool= were given together; options belong to the pool: "
                "ConnectionPool(bulkhead=…), or bulkhead.protect(pool, …)"
            )
        token = _pending.set(raw)
        try:
            wrapped(*args, **kwargs)
        finally:
            _pending.reset(token)

    def of_connection(self, wrapped: Any, connection: Any, args: Any, kwargs: Any) -> None:
        """AbstractConnection.__init__. One that belongs to no pool may have options of its own."""
        raw = kwargs.pop("bulkhead", None)
        wrapped(*args, **kwargs)
        if raw is None:
            return
        if not isinstance(raw, Bound):
            about = {name: getattr(connection, name) for name in ("host", "port", "db") if hasattr(connection, name)}
            about["socket_timeout"] = connection.socket_timeout
            raw = self.bound(raw, about, type(connection), None if "host" in about else f"unix/{connection.db}")
        if raw is not None:
            connection.bulkhead = raw.resource

    @staticmethod
    def of_cluster(wrapped: Any, _cluster: Any, args: Any, kwargs: Any) -> None:
        """RedisCluster.__init__, which would drop an argument that it does not know without a word."""
        if kwargs.get("bulkhead") or "bulkhead=" in str(kwargs.get("url", "")).partition("?")[2]:
            raise ConfigurationError("RedisCluster cannot be protected by this version; leave bulkhead= out")
        kwargs.pop("bulkhead", None)
        wrapped(*args, **kwargs)

    @staticmethod
    def unprotected(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
        """Makes clients that must stay unprotected: nodes of a cluster, sentinels."""
        token = _pending.set(False)
        try:
            return wrapped(*args, **kwargs)
        finally:
            _pending.reset(token)

    # ---- of a client that exists

    def protect(self, client: object, options: Options) -> bool:
        """`bulkhead.protect(client_or_pool, …)`: live connections included."""
        pool: Any = client.connection_pool if isinstance(client, CLIENTS) else client
        if not isinstance(pool, POOLS):
            return False
        before = pool.connection_kwargs.get("bulkhead")
        bound = self.bind_pool(pool, options)
        if bound is None:
            return False
        if isinstance(before, Bound) and before.resource is not bound.resource:
            pool.connection_kwargs["bulkhead"] = before
            raise ConfigurationError(f"this client is protected already, by {before!r}")
        live = [*getattr(pool, "_connections", ()), *getattr(pool, "_available_connections", ())]
        live += [*getattr(pool, "_in_use_connections", ()), getattr(client, "connection", None)]
        for connection in live:
            if connection is not None:
                getattr(connection, "_conn", connection).bulkhead = bound.resource
        return True

    # ---- patches

    def apply(self, driver: Driver) -> None:
        """Patch the constructors, sync and asyncio."""
        for connection in CONNECTIONS:
            driver.put(connection, "bulkhead", None)
            driver.put(connection, "bulkhead_inside", False)
            driver.wrap(connection, "__init__", self.of_connection)
        for pool in POOLS:
            driver.wrap(pool, "__init__", self.of_pool)
        for sentinel_pool in SENTINEL_POOLS:
            driver.wrap(sentinel_pool, "__init__", self.of_sentinel_pool)
        for client in CLIENTS:
            driver.wrap(client, "__init__", self.of_client)
        for sentinel in (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel):
            driver.wrap(sentinel, "__init__", self.unprotected)
        driver.wrap(redis.cluster.RedisCluster, "__init__", self.of_cluster)
        driver.wrap(redis.cluster.NodesManager, "create_redis_node", self.unprotected)

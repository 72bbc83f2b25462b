"""SQLAlchemy 2.0 and 2.1: statements and connects of an engine, Core, ORM and asyncio.

    create_engine(url, **bulkhead.options(name="main", tickets=16))
    create_engine("postgresql+psycopg://host/db?plugin=bulkhead&bulkhead=main")

An engine with options has its own dialect's `do_execute` family, its pool's creator and its pool's `connect` replaced
on the instances; statements of other engines are not touched. Patched on classes are `URL._instantiate_plugins`, so
that `bulkhead=` is understood wherever `create_engine` was imported from, and what max_db_connections needs for the
engines of the whole process: `Pool.connect` and `detach` of its connections. Options in `connect_args` belong to the
driver below. Not guarded: cursors of `raw_connection()`, and statements that a `do_execute` listener answers itself.

What a statement's call does is in _sqlalchemy_calls.py, what the pool does in _sqlalchemy_pool.py, which errors count
in _sqlalchemy_outcomes.py.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from sqlalchemy import exc
from sqlalchemy.dialects import plugins
from sqlalchemy.engine import URL, CreateEnginePlugin, Engine
from sqlalchemy.pool import Pool, _ConnectionFairy

from adapters import _sqlalchemy_calls as calls
from adapters import _sqlalchemy_pool as pools
from adapters._patch import Driver, foreign
from adapters._sqlalchemy_outcomes import outcome
from bulkhead.adapter import (
    Adapter,
    CircuitOpenError,
    ConfigurationError,
    Errors,
    Options,
    Rejected,
    Resource,
    ResourceBusyError,
    UnknownTenantError,
    protects,
    resolver,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bulkhead.adapter import Late

__all__ = [
    "BulkheadPlugin",
    "SQLAlchemyCircuitOpenError",
    "SQLAlchemyResourceBusyError",
    "SQLAlchemyUnknownTenantError",
    "adapter",
    "apply",
    "driver",
]

log = logging.getLogger("bulkhead")
driver = Driver("sqlalchemy", "SQLAlchemy")
_warned: weakref.WeakSet[Resource] = weakref.WeakSet()
DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}


class _Rejection(Rejected, exc.OperationalError):
    """What SQLAlchemy expects of its errors, around ours.

    `args` stay ours: no constructor of SQLAlchemy runs. Being a StatementError it is raised as it is, being no error
    of the DBAPI it never looks like a lost connection.
    """

    ours: type[Rejected]
    code = ""  # no link to a page of SQLAlchemy's about this error

    def __init__(self, *facts: Any) -> None:
        self.statement = self.params = self.ismulti = None
        self.hide_parameters, self.connection_invalidated = True, False
        self.detail: list[str] = []
        self.orig = self.ours(*facts)

    def _message(self) -> str:
        return str(self.orig)

    def __str__(self) -> str:
        return "\n".join([f"({one})" for one in self.detail] + [str(self.orig)])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {"detail": self.detail}


class SQLAlchemyCircuitOpenError(_Rejection, CircuitOpenError):
    """The circuit is open. Also a sqlalchemy.exc.OperationalError; `.orig` is the same as a plain CircuitOpenError."""

    ours = CircuitOpenError


class SQLAlchemyResourceBusyError(_Rejection, ResourceBusyError):
    """No ticket was free. Also a sqlalchemy.exc.OperationalError; `.orig` is the same as a plain ResourceBusyError."""

    ours = ResourceBusyError


class SQLAlchemyUnknownTenantError(_Rejection, UnknownTenantError):
    """Called outside any tenant. Also a sqlalchemy.exc.OperationalError; `.orig` is a plain UnknownTenantError."""

    ours = UnknownTenantError


adapter = Adapter(
    "sqlalchemy",
    "sql",
    Errors(SQLAlchemyResourceBusyError, SQLAlchemyCircuitOpenError, SQLAlchemyUnknownTenantError),
    outcome,
)


class BulkheadPlugin(CreateEnginePlugin):
    """`plugins=["bulkhead"]` or `?plugin=bulkhead`: takes `bulkhead` from the arguments or from the URL."""

    def __init__(self, url: URL, kwargs: dict[str, Any]) -> None:
        super().__init__(url, kwargs)
        in_url = url.query.get("bulkhead")
        self.raw: object = kwargs.pop("bulkhead", None)
        if in_url is not None:
            if self.raw is not None or not isinstance(in_url, str):
                raise ConfigurationError("bulkhead is given twice: give it once, in the URL or as bulkhead=")
            self.raw = in_url
        if kwargs.get("pool") is not None and self.raw not in (None, False):
            raise ConfigurationError(
                "bulkhead is given beside a ready pool=, which other engines may share: let the engine make its pool, "
                "or protect this one and its pool with bulkhead.protect(engine, …)"
            )

    def update_url(self, url: URL) -> URL:
        """The rest of the URL is the driver's."""
        return url.difference_update_query(["bulkhead"])

    def engine_created(self, engine: Engine) -> None:
        """Guard the new engine."""
        if driver.off and self.raw not in (None, False):
            raise ConfigurationError(
                f"options were given to an engine of SQLAlchemy {driver.version}, which is not patched: "
                "it is not supported, or adapters.uninstall() was called"
            )
        bound = bind(self.raw, engine)
        if bound is not None:
            attach(engine, bound)
        elif self.raw is None and resolver() is None and not hasattr(engine.dialect, "bulkhead"):
            raise ConfigurationError(
                "the plugin bulkhead was asked for, and no options were given: add bulkhead=<name> to the URL or "
                "**bulkhead.options(…) to the arguments, or bulkhead=False"
            )


def bind(raw: object, engine: Engine) -> Resource | Late | None:
    """The resource of an engine that was given `bulkhead=raw`."""
    url = engine.url
    backend = url.get_backend_name()
    host, port, database = url.host, url.port, url.database
    if host is None and (hosts := url.query.get("host")):  # psycopg's way of naming several
        host = hosts if isinstance(hosts, str) else ",".join(hosts)
    if backend == "sqlite":
        name = database or ":memory:"
    elif host is None and (service := url.query.get("service")):  # of libpq's file, where the address is
        name = f"service={service}"
    else:
        port = port or DEFAULT_PORTS.get(backend)
        name = (host or "localhost") + ("" if port is None else f":{port}") + (f"/{database}" if database else "")
    extra = {"drivername": url.drivername, "database": database, "username": url.username}
    return adapter.bind(raw, name=name, host=host, port=port, extra=extra)


def attach(engine: Engine, bound: Resource | Late) -> None:
    """Guard an engine, once. ConfigurationError if it is guarded by another resource already."""
    dialect: Any = engine.dialect
    before = getattr(dialect, "bulkhead", None)
    if before is not None:
        if before is not bound:
            raise ConfigurationError(f"this engine is protected by {before!r} already, not by {bound!r}")
        return
    dialect.bulkhead = bound
    guards = calls.Guards(dialect, adapter, driver)
    guards.hook_statements()
    guards.hook_exchanges()
    guards.hook_errors(engine)
    pools.hook(engine.pool, guards)
    if isinstance(bound, Resource):
        _warn_if_blind(bound, dialect)


def _warn_if_blind(resource: Resource, dialect: Any) -> None:
    """A PostgreSQL that hangs raises nothing: without a time limit its circuit sees nothing. Said once a resource."""
    options = resource.options
    if not dialect.driver.startswith("psycopg") or options.call_timeout is not None or resource in _warned:
        return
    if options.circuit_breaker and options.mode != "off":
        _warned.add(resource)
        log.warning(
            "[BULKHEAD_CONFIG_WARNING]: %s: psycopg has no read time-out, so a PostgreSQL that hangs is no failure "
            "that this circuit could see; give call_timeout=",
            resource.identifier,
        )


def protect_client(client: Any, options: Options) -> bool:
    """`bulkhead.protect(engine, …)` for engines of both kinds, and copies made by `execution_options`."""
    engine = getattr(client, "sync_engine", client)  # an AsyncEngine's; its module needs greenlet, which may be missing
    if not isinstance(engine, Engine):
        return False
    bound = bind(options, engine)
    if bound is not None:
        attach(engine, bound)
    return True


def _understanding(original: Callable[[URL, Mapping[str, Any]], Any]) -> Callable[[URL, Mapping[str, Any]], Any]:
    def _instantiate_plugins(self: URL, kwargs: Mapping[str, Any]) -> Any:
        """Also load the plugin `bulkhead` where somebody passes `bulkhead` and does not name it."""
        if driver.off or not ("bulkhead" in kwargs or "bulkhead" in self.query or resolver() is not None):
            return original(self, kwargs)
        in_url = self.query.get("plugin", ())
        named = [*kwargs.get("plugins", ()), *([in_url] if isinstance(in_url, str) else in_url)]
        if "bulkhead" not in named:
            kwargs = {**kwargs, "plugins": [*kwargs.get("plugins", ()), "bulkhead"]}
        return original(self, kwargs)

    return _instantiate_plugins


def _patch() -> None:
    driver.replace(URL, "_instantiate_plugins", _understanding)
    driver.replace(Pool, "connect", lambda original: pools.capped(driver, adapter.connection, original))
    driver.replace(_ConnectionFairy, "detach", pools.detaching)
    protects("sqlalchemy", protect_client)


def apply() -> bool:
    """Patch SQLAlchemy. Idempotent; False if the installed version is not supported."""
    return driver.apply(_patch)


# The entry point says the same where the distribution is installed; this is for a checkout on the path. Another copy of
# this toolkit that is in charge already keeps its own plugin, which understands its options.
if not foreign(URL._instantiate_plugins):  # noqa: SLF001
    plugins.impls["bulkhead"] = lambda: BulkheadPlugin
apply()

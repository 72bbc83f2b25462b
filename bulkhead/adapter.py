"""What a driver adapter is made of. Public: our own adapters use nothing else.

Five steps, after Semian's: an `Adapter` names the driver and the kind of its identifiers; two or three error classes
inherit from ours and from the driver's base error; an outcome function says which of the driver's errors mean that
the resource is in trouble; `Adapter.bind` turns what the user passed as `bulkhead=` into a resource that the client
keeps; `guard`, a permit taken by hand, or a `Session` puts each attempt behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bulkhead import connections, nesting
from bulkhead.causes import Cause
from bulkhead.definitions import interpret, resolver, set_resolver
from bulkhead.entries import Permit
from bulkhead.errors import CircuitOpenError, ConfigurationError, Rejected, ResourceBusyError, UnknownTenantError
from bulkhead.guard import guard
from bulkhead.late import Late
from bulkhead.nesting import inside, unmark
from bulkhead.option_set import Options
from bulkhead.outcomes import Errors, Outcome, Site, verdict
from bulkhead.registry import registered
from bulkhead.resources import Resource
from bulkhead.sessions import Checkout, Session
from bulkhead.tenancy import detached

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Adapter",
    "Cause",
    "Checkout",
    "CircuitOpenError",
    "ConfigurationError",
    "Errors",
    "Late",
    "Options",
    "Outcome",
    "Permit",
    "Rejected",
    "Resource",
    "ResourceBusyError",
    "Session",
    "Site",
    "UnknownTenantError",
    "connections",
    "detached",
    "guard",
    "inside",
    "interpret",
    "make_errors",
    "nesting",
    "protects",
    "resolver",
    "set_resolver",
    "unmark",
    "verdict",
]

protectors: dict[str, Callable[[Any, Options], bool]] = {}
"""What `bulkhead.protect` asks: driver -> function."""


class Adapter:
    """One driver. `driver` names it in events and to callables; `kind` begins its identifiers (`redis`, `postgres`).

    `outcome(error, options)` says what an Exception of the driver means; it is not asked about our rejections and
    cancellations. `query` and `connection` are the two sites that guarded calls name.
    """

    __slots__ = ("connection", "driver", "kind", "query")

    def __init__(
        self, driver: str, kind: str, errors: Errors, outcome: Callable[[Exception, Options], Outcome]
    ) -> None:
        self.driver, self.kind = driver, kind
        self.query = Site(driver, "query", errors, outcome)
        self.connection = Site(driver, "connection", errors, outcome)

    def bind(
        self,
        raw: object,
        *,
        name: str,
        host: str | None = None,
        port: int | None = None,
        extra: Mapping[str, Any] | None = None,
        read_timeout: float | None = None,
    ) -> Resource | Late | None:
        """The resource of a client that was given `bulkhead=raw`; None: unprotected.

        `name` is the resource's name where the options have none (host:port[/db]); host, port and extra are handed to
        callables. `read_timeout`: the client's own, in seconds, for cancel_counts_after="auto". ConfigurationError for
        options that are wrong, also where the identifier is registered with others.
        """
        if raw is None and resolver() is None:
            return None
        options = interpret(raw, driver=self.driver, host=host, port=port, extra=extra)
        if options is None:
            return None
        if isinstance(options, Options):
            return registered(options, self.kind, name, read_timeout, self.driver)
        return Late(options, self.kind, name, read_timeout, self.driver)

    def __repr__(self) -> str:
        return f"<Adapter {self.driver} ({self.kind})>"


def make_errors(base: type[Exception], prefix: str, module: str) -> Errors:
    """The rejections of a driver whose base error is `base`: `<prefix>ResourceBusyError` and its two siblings.

    Assign them to these names in `module`, else they cannot be pickled. For a base error whose constructor wants more
    than a message, write the classes out, as the adapters for httpx and SQLAlchemy do.
    """

    def one(ours: type[Rejected]) -> Any:
        name = prefix + ours.__name__
        return type(name, (ours, base), {"__module__": module, "__doc__": f"{ours.__doc__} Also a {base.__name__}."})

    return Errors(one(ResourceBusyError), one(CircuitOpenError), one(UnknownTenantError))


def protects(driver: str, protect_client: Callable[[Any, Options], bool]) -> None:
    """Teach `bulkhead.protect`: `protect_client(client, options)` protects it and returns True, or False: not mine."""
    protectors[driver] = protect_client

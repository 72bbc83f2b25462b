"""How many requests and WebSockets of each tenant may be under way: settings become the options of two resources.

`server:requests` and `server:websockets` are resources like any other (metrics, `explain()`, `top_tenants`, mode
"shadow"), one of each in a process: the limits of the middleware that was made, or reloaded, last hold for all.
Requests that no tenant is known for stand here under a name that no client can choose: held to the limit of one
tenant together (SHARED), or to none (ALLOWED).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from bulkhead.errors import CircuitOpenError, ResourceBusyError, UnknownTenantError
from bulkhead.log_lines import say
from bulkhead.option_rows import MAXIMUM_COUNT, is_limit, shown
from bulkhead.option_set import Options
from bulkhead.outcomes import IGNORED, Errors, Outcome, Site
from bulkhead.registry import registry
from bulkhead.settings.kinds import DEFAULT_TENANT, number_for

if TYPE_CHECKING:
    from bulkhead.resources import Resource
    from bulkhead.settings.kinds import PerTenant

REQUESTS: Final = "server:requests"
WEBSOCKETS: Final = "server:websockets"


class Nobody(str):
    """Stands for a tenant that is not known. Equal to itself only, so no client can name it."""

    __slots__ = ()

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


SHARED: Final = Nobody("(no tenant)")
ALLOWED: Final = Nobody("(no tenant, not limited)")


def _busy(identifier: str, tenant: str | None, limit: str) -> ResourceBusyError:  # noqa: ARG001  of our two limits
    return ResourceBusyError(identifier, None if isinstance(tenant, Nobody) else tenant, "requests")


def _says_nothing(error: Exception, options: Options) -> Outcome:  # noqa: ARG001  an outcome function
    """What a handler raises is no fault of the limit, and says which resource failed if it knows."""
    return IGNORED


_ERRORS = Errors(cast("type[ResourceBusyError]", _busy), CircuitOpenError, UnknownTenantError)
REQUEST: Final = Site("web", "request", _ERRORS, _says_nothing)
WEBSOCKET: Final = Site("web", "websocket", _ERRORS, _says_nothing)


class LimitOf:
    """For the option tenant_limits: called with a tenant when it is first seen, and after each reload."""

    __slots__ = ("_below", "_default", "_limit", "_option", "_said")

    def __init__(self, option: str, limit: PerTenant, below: int) -> None:
        self._option, self._limit, self._below = option, limit, below
        self._said: set[str] = set()
        self._default = 0
        if isinstance(limit, Mapping):
            self._default = limit.get(DEFAULT_TENANT, 0)
        elif not callable(limit):
            self._default = limit

    @property
    def default(self) -> int | None:
        """The limit of a tenant that is not known by name; None = none."""
        return self._default or None

    def __call__(self, tenant: str) -> int:
        """The limit of this tenant."""
        if tenant is ALLOWED:
            return MAXIMUM_COUNT
        limit = self._default if tenant is SHARED else self._ask(tenant)
        if limit:
            self._compare(limit)
        return limit or MAXIMUM_COUNT

    def _ask(self, tenant: str) -> int:
        try:
            limit: Any = number_for(self._limit, tenant)
        except Exception as error:  # noqa: BLE001  the user's code: a request must not fail by it
            self._say("raised", f"raised {type(error).__name__}; no limit holds for the tenant")
            return 0
        if not is_limit(limit):
            self._say("answered", f"answered {shown(limit)}, no whole number from 0; no limit holds for the tenant")
            return 0
        return limit or 0

    def check(self) -> None:
        """Compare with the server's limit what is known already."""
        known = self._limit.values() if isinstance(self._limit, Mapping) else (self._default,)
        for limit in known:
            if limit:
                self._compare(limit)

    def _compare(self, limit: int) -> None:
        if 0 < self._below <= limit:
            self._say(
                "not below",
                f"a tenant may have {limit}, and all together {self._below} (server.max_concurrent_requests): one "
                "tenant can take every place; give tenants less",
            )

    def _say(self, what: str, says: str) -> None:
        if what not in self._said:
            self._said.add(what)
            say("settings_warning", f"{says} (said once)", setting=f"tenancy.{self._option}")


def limited(identifier: str, site: Site, option: str, limit: PerTenant, server: int = 0) -> Resource | None:
    """The resource with these limits, registered, or changed if it is there; None where nothing is limited."""
    given = bool(limit) or callable(limit)
    if not given and not server:
        return None
    per_tenant = LimitOf(option, limit, server) if given else None
    values: dict[str, Any] = {
        "tickets": server or None,
        "tenant_tickets": None if per_tenant is None else per_tenant.default,
        "tenant_limits": per_tenant,
    }
    if per_tenant is not None:
        per_tenant.check()
    found = registry.find(identifier)
    if found is None:
        found = registry.get(identifier, Options(identifier=identifier, circuit_breaker=False, **values))
    else:
        found.update(**values)
    return found.guarded_by(site.driver)

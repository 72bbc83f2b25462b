"""bulkhead: one slow dependency, or one noisy tenant, must not take everybody else down.

bulkhead.install()                                        at startup: patch the drivers
redis.Redis(**bulkhead.options(name="cache", tickets=16)) options go to the client
with bulkhead.tenant("acme"): …                           who the work is for
except redis.RedisError: …                                rejections are the driver's own errors
"""

from bulkhead.bypassing import bypass
from bulkhead.definitions import define
from bulkhead.errors import (
    BulkheadError,
    CircuitOpenError,
    ConfigurationError,
    QuotaExceeded,
    Rejected,
    ResourceBusyError,
    UnknownTenantError,
    rejection,
)
from bulkhead.events import subscribe
from bulkhead.option_arguments import options
from bulkhead.option_set import Options
from bulkhead.process_values import defaults
from bulkhead.registry import find, resource, resources, unregister
from bulkhead.resources import Resource
from bulkhead.setup import install, protect
from bulkhead.tenancy import (
    CarryingExecutor,
    carry,
    current_tenant,
    detached,
    reset_tenant,
    set_tenant,
    tenant,
    unknown_tenant,
)

__all__ = [
    "BulkheadError",
    "CarryingExecutor",
    "CircuitOpenError",
    "ConfigurationError",
    "Options",
    "QuotaExceeded",
    "Rejected",
    "Resource",
    "ResourceBusyError",
    "UnknownTenantError",
    "bypass",
    "carry",
    "current_tenant",
    "defaults",
    "define",
    "detached",
    "find",
    "install",
    "options",
    "protect",
    "rejection",
    "reset_tenant",
    "resource",
    "resources",
    "set_tenant",
    "subscribe",
    "tenant",
    "unknown_tenant",
    "unregister",
]

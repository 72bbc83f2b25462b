"""redis-py, sync and asyncio: every connect and command of a client that was given `bulkhead=` is a guarded call.

What is hooked: single attempts of commands, pipelines and transactions (one call each), and connects. Blocking commands
(BLPOP, XREAD BLOCK, …) and pub/sub hold no ticket: the first are refused while the circuit is open, the second while
connecting. UNWATCH, DISCARD and the like always pass. RedisCluster is left alone.

Never run this file as a script: its name hides redis-py's.
"""

from __future__ import annotations

import redis

from adapters import _patch, _redis_retry
from adapters._redis_calls import Calls
from adapters._redis_options import Options4Redis
from adapters._redis_outcomes import outcome
from bulkhead.adapter import Adapter, CircuitOpenError, Errors, ResourceBusyError, UnknownTenantError, protects

__all__ = [
    "RedisCircuitOpenError",
    "RedisOwnRetryCircuitOpenError",
    "RedisOwnRetryResourceBusyError",
    "RedisOwnRetryUnknownTenantError",
    "RedisResourceBusyError",
    "RedisUnknownTenantError",
    "adapter",
    "apply",
    "driver",
]


class RedisCircuitOpenError(CircuitOpenError, redis.ConnectionError):
    """The circuit of the redis resource is open. Also a redis.ConnectionError; redis-py does not retry it."""


class RedisResourceBusyError(ResourceBusyError, redis.ConnectionError):
    """No ticket of the redis resource was free. Also a redis.ConnectionError; redis-py does not retry it."""


class RedisUnknownTenantError(UnknownTenantError, redis.ConnectionError):
    """A redis call outside any tenant. Also a redis.ConnectionError; redis-py does not retry it."""


# A client with a Retry class that has a loop of its own would retry a ConnectionError: it gets plain RedisErrors.


class RedisOwnRetryCircuitOpenError(CircuitOpenError, redis.RedisError):
    """The circuit is open; for clients whose Retry class overrides call_with_retry."""


class RedisOwnRetryResourceBusyError(ResourceBusyError, redis.RedisError):
    """No ticket was free; for clients whose Retry class overrides call_with_retry."""


class RedisOwnRetryUnknownTenantError(UnknownTenantError, redis.RedisError):
    """No tenant in context; for clients whose Retry class overrides call_with_retry."""


driver = _patch.Driver("redis", "redis")
adapter = Adapter(
    "redis",
    "redis",
    Errors(RedisResourceBusyError, RedisCircuitOpenError, RedisUnknownTenantError),
    outcome,
)
_own_retry = Adapter(
    "redis",
    "redis",
    Errors(RedisOwnRetryResourceBusyError, RedisOwnRetryCircuitOpenError, RedisOwnRetryUnknownTenantError),
    outcome,
)
_options = Options4Redis(adapter)
_calls = Calls(driver, adapter, _own_retry)


def _patches() -> None:
    _options.apply(driver)
    _calls.apply()
    _redis_retry.apply(driver)
    protects("redis", _options.protect)


def apply() -> None:
    """Patch redis-py; a second time does nothing. An unsupported version is left alone, with one warning."""
    driver.apply(_patches)


apply()

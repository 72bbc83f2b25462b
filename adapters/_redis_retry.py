"""redis-py's retry loop, taught what a rejection is, and that a guarded attempt holds no loop of its own."""

from __future__ import annotations

import inspect
from types import MethodType
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio.retry
import redis.retry

from adapters._redis_flavours import compiled, named
from bulkhead.adapter import Rejected

if TYPE_CHECKING:
    from adapters._patch import Driver

# The first attempt runs here, in the place of redis-py's frame, so that a call that ends well pays nothing. An error
# other than a rejection goes to redis-py's own loop, as what its first attempt raised.
RETRY = """
def make_retry(original):
    {a}def call_with_retry(self, do, fail{declared}):
        try:
            return {w}do()
        except Rejected:
            raise
        except self._supported_errors as error:
            if do.__class__ is MethodType and runs_once(do):
                {w}(fail(error, 1) if {counted} else fail(error))
                raise
            raised = [error]
        {a}def again():
            if raised:
                raise raised.pop()
            try:
                return {w}do()
            except Rejected as error:
                rejected.append(error)
        rejected = []
        result = {w}original(self, again, fail{passed})
        if rejected:
            raise rejected.pop()
        return result
    return call_with_retry
"""


def runs_once(do: MethodType) -> bool:
    """Is this retry loop part of a guarded attempt?"""
    return bool(getattr(do.__self__, "bulkhead_inside", False))


def has_own_retry(connection: Any) -> bool:
    """Has the user's Retry a loop of its own, which knows nothing of rejections?"""
    for one in type(connection.retry).__mro__:
        if "call_with_retry" in vars(one):
            return one not in (redis.retry.Retry, redis.asyncio.retry.Retry)
    return True


def apply(driver: Driver) -> None:
    """Patch both Retry classes."""
    names = {"Rejected": Rejected, "MethodType": MethodType, "runs_once": runs_once}
    for retry, is_async in ((redis.retry.Retry, False), (redis.asyncio.retry.Retry, True)):
        declared, passed, counted = _beyond_fail(retry.call_with_retry)
        made = compiled(RETRY, names, is_async=is_async, declared=declared, passed=passed, counted=counted)
        driver.replace(retry, "call_with_retry", named("call_with_retry", made["make_retry"]))


def _beyond_fail(call_with_retry: Any) -> tuple[str, str, str]:
    """Parameters after `fail`: declared, passed on, and the one that says whether `fail` takes a count of failures."""
    parameters = list(inspect.signature(inspect.unwrap(call_with_retry)).parameters.values())
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):  # another tool's wrapper
        return ", *more, **named", ", *more, **named", "named.get('with_failure_count')"
    own = parameters[3:]
    counted = "with_failure_count" if any(one.name == "with_failure_count" for one in own) else "False"
    declared = "".join(f", {one.name}={one.default!r}" for one in own)
    return declared, "".join(f", {one.name}={one.name}" for one in own), counted

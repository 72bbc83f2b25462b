"""redis-py behind a bad network (Toxiproxy) and a hanging server: what opens the circuit, and how fast it refuses then."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from counts import CANCELLATIONS
from drivers.redis_flavours import flavour
from polling import until

import bulkhead

if TYPE_CHECKING:
    from drivers.redis_flavours import Flavour

    from bulkhead.testing import RedisServer, Toxiproxy

__all__ = ["flavour"]

pytestmark = pytest.mark.resilience
RULE: dict[str, Any] = {
    "error_threshold": 3,
    "error_threshold_timeout": 20,
    "error_timeout": 2.0,
    "success_threshold": 1,
}


def _opens(flavour: Flavour, client: Any, resource: Any, call: Any = None) -> list[BaseException]:
    """Three failing calls; then refusals that cost next to nothing."""
    call = call or (lambda: client.get("k"))
    errors: list[BaseException] = []
    for _ in range(3):
        with pytest.raises(redis.RedisError) as caught:
            flavour.run(call())
        assert bulkhead.rejection(caught.value) is None
        errors.append(caught.value)
    assert resource.state == "open"
    began = time.monotonic()
    for _ in range(10):
        with pytest.raises(bulkhead.CircuitOpenError):
            flavour.run(call())
    assert time.monotonic() - began < 1.6, "10 that wait for the time-out would need 5 s"
    return errors


def _recovers(flavour: Flavour, client: Any, resource: Any) -> None:
    def is_closed() -> bool:
        with contextlib.suppress(redis.RedisError):
            flavour.run(client.get("k"))
        return bool(resource.state == "closed")

    until(is_closed)
    assert resource.in_use == 0


def test_latency_beyond_the_read_time_out_opens_it(flavour: Flavour, toxiproxy: Toxiproxy) -> None:
    """RC-06, RD-05."""
    client, resource = flavour.guarded(toxiproxy["redis"], tickets=4, **RULE, driver={"socket_timeout": 0.5})
    flavour.run(client.get("k"))
    with toxiproxy["redis"].downstream("latency", latency=4000):
        errors = _opens(flavour, client, resource)
    assert all(isinstance(error, redis.TimeoutError) for error in errors)
    _recovers(flavour, client, resource)


def test_a_connection_that_swallows_everything_opens_it(flavour: Flavour, toxiproxy: Toxiproxy) -> None:
    client, resource = flavour.guarded(toxiproxy["redis"], tickets=4, **RULE, driver={"socket_timeout": 0.5})
    flavour.run(client.get("k"))
    with toxiproxy["redis"].upstream("timeout", timeout=0):
        _opens(flavour, client, resource)
    _recovers(flavour, client, resource)


def test_resets_open_it(flavour: Flavour, toxiproxy: Toxiproxy) -> None:
    """RC-07, RD-06 deviate: resets count."""
    client, resource = flavour.guarded(toxiproxy["redis"], tickets=4, **RULE)
    with toxiproxy["redis"].downstream("reset_peer", timeout=0):
        errors = _opens(flavour, client, resource)
    assert all(getattr(error, "bulkhead_identifier", None) == resource.identifier for error in errors)
    _recovers(flavour, client, resource)


def test_a_refused_port_opens_it(flavour: Flavour, toxiproxy: Toxiproxy) -> None:
    """RC-14, RD-14."""
    client, resource = flavour.guarded(toxiproxy["redis"], tickets=4, **RULE)
    flavour.run(client.get("k"))
    with toxiproxy["redis"].down():
        _opens(flavour, client, resource)
    _recovers(flavour, client, resource)


def test_replies_that_break_off_open_it(flavour: Flavour, toxiproxy: Toxiproxy, redis_server: RedisServer) -> None:
    redis_server.command("SET", "long", "x" * 5000)
    client, resource = flavour.guarded(toxiproxy["redis"], tickets=4, **RULE, driver={"socket_timeout": 1.0})
    with toxiproxy["redis"].downstream("limit_data", bytes=2000):
        _opens(flavour, client, resource, lambda: client.get("long"))
    _recovers(flavour, client, resource)


def test_a_hanging_server_with_retries_is_noticed_inside_the_first_call(
    flavour: Flavour, redis_server: RedisServer
) -> None:
    """Known fault 29c: the driver's loop of 10 retries would need 11 time-outs for one outcome."""
    client, resource = flavour.guarded(
        redis_server,
        **{**RULE, "error_timeout": 5},
        driver={"socket_timeout": 0.4, "retries": 10, "retry_on_error": [redis.TimeoutError]},
    )
    flavour.run(client.get("k"))
    with redis_server.paused():
        began = time.monotonic()
        with pytest.raises(redis.RedisError):
            flavour.run(client.get("k"))
        if hasattr(redis.connection.AbstractConnection, "connect_check_health"):
            assert resource.state == "open"
        assert time.monotonic() - began < 5


@pytest.mark.anyio
async def test_a_thousand_cancelled_tasks_lose_nothing(redis_server: RedisServer) -> None:
    """Known faults 1, 38, 46: against a server that stops and goes on, at random moments, connects included."""
    options = {"name": "storm", "tickets": 8, "tenant_tickets": 3, "timeout": 0.02, "half_open_max_probes": 1}
    rule = {"error_threshold": 400, "error_timeout": 0.1, "success_threshold": 1, "cancel_counts_after": None}
    arguments: dict[str, Any] = {"bulkhead": {**options, **rule}, "socket_timeout": 1.0}
    client: Any = redis.asyncio.Redis(host=redis_server.host, port=redis_server.port, **arguments)
    resource = bulkhead.find("redis:storm")
    assert resource is not None
    dice = random.Random(11)  # noqa: S311  repeatable
    most = 0

    async def one(number: int) -> None:
        nonlocal most
        with bulkhead.tenant(f"tenant-{number % 5}"):
            try:
                async with asyncio.timeout(dice.random() * 0.02):
                    if number % 4:
                        await client.get("k")
                    else:
                        await client.pipeline(transaction=bool(number % 8)).get("k").get("k").execute()
                    most = max(most, resource.in_use)
            except (TimeoutError, redis.RedisError):
                pass

    async def stop_and_go() -> None:
        while True:
            redis_server.pause()
            await asyncio.sleep(0.015)
            redis_server.resume()
            await asyncio.sleep(0.03)

    going = asyncio.ensure_future(stop_and_go())
    for _ in range(max(1000, CANCELLATIONS) // 50):
        await asyncio.gather(*(one(number) for number in range(50)))
    going.cancel()
    redis_server.resume()
    assert most <= 8
    assert resource.in_use == 0
    assert resource.state == "closed"
    for tenant in range(5):
        with bulkhead.tenant(f"tenant-{tenant}"):
            assert await client.set("k", 1)
    await client.aclose()

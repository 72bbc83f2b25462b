"""redis-py's own retry loops: each attempt is a call of its own, a rejection is never retried."""

from __future__ import annotations

import contextlib
import gc
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio.retry
import redis.retry
from drivers.harness import Seen
from drivers.redis_flavours import flavour
from redis.backoff import NoBackoff

import bulkhead
from adapters._redis_retry import has_own_retry
from bulkhead import events
from bulkhead.testing import CLOSE, SILENT, ScriptedRedis

if TYPE_CHECKING:
    from drivers.redis_flavours import Flavour

    from bulkhead.testing import RedisServer

__all__ = ["flavour"]

TWO: dict[str, Any] = {"error_threshold": 2, "error_timeout": 5, "success_threshold": 1}
LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


def test_the_circuit_opens_after_two_attempts_not_after_two_calls(flavour: Flavour) -> None:
    """Known fault 29c, Semian #448."""
    with ScriptedRedis({"GET": LOADING}) as server:
        client, resource = flavour.guarded(
            server, **TWO, driver={"retries": 5, "retry_on_error": [redis.ConnectionError]}
        )
        with pytest.raises(bulkhead.CircuitOpenError):
            flavour.run(client.get("k"))
        assert server.count("GET") == 2
        assert resource.state == "open"


def test_connects_are_attempts_too(flavour: Flavour) -> None:
    """A retry loop around connect() lets each attempt count (redis-py 6 and newer; 5 retries time-outs inside one)."""
    with ScriptedRedis({}) as server:
        client, resource = flavour.guarded(
            server, **TWO, driver={"retries": 5, "retry_on_error": [redis.ConnectionError]}
        )
        server.close()
        with Seen(resource.identifier, events.Failure) as seen:
            for _ in range(2):
                with pytest.raises(redis.ConnectionError):
                    flavour.run(client.get("k"))
        assert [one.scope for one in seen.all] == ["connection", "connection"]
        assert resource.state == "open"


def test_a_reconnect_inside_a_command_is_part_of_it_and_runs_once(flavour: Flavour) -> None:
    with ScriptedRedis({"GET": [b"$1\r\na\r\n", CLOSE]}) as server:
        client, resource = flavour.guarded(
            server,
            error_threshold=50,
            error_timeout=5,
            success_threshold=1,
            driver={"retries": 4, "retry_on_error": [redis.ConnectionError]},
        )
        flavour.run(client.get("k"))
        with Seen(resource.identifier, events.Failure, events.Success) as seen, pytest.raises(redis.ConnectionError):
            flavour.run(client.get("k"))
        assert [(type(one).__name__, one.scope) for one in seen.all] == [("Failure", "query")] * 5
        assert server.count("GET") == 6
        assert resource.in_use == 0


def test_a_health_check_inside_a_command_is_part_of_it_and_runs_once(flavour: Flavour) -> None:
    with ScriptedRedis({"GET": b"$1\r\na\r\n", "PING": b"+PONG\r\n"}) as server:
        client, resource = flavour.guarded(
            server,
            error_threshold=50,
            error_timeout=5,
            success_threshold=1,
            driver={"retries": 0, "health_check_interval": 1, "socket_timeout": 0.8},
        )
        connection = client.connection_pool.make_connection()
        connection.retry = flavour.retry(6)
        with Seen(resource.identifier, events.Failure, events.Success) as seen:
            flavour.run(connection.connect())
            server.script["PING"] = SILENT
            connection.next_health_check = 1e-9
            began = time.monotonic()
            with pytest.raises(redis.TimeoutError):
                flavour.run(client._send_command_parse_response(connection, "GET", "GET", "k"))
            assert time.monotonic() - began < 4.0  # one ping of 0.8 s, not seven
        assert [type(one).__name__ for one in seen.all if one.scope == "query"] == ["Failure"]
        flavour.run(connection.disconnect())


def test_whoever_lists_every_error_as_retryable_does_not_retry_rejections(
    flavour: Flavour, redis_server: RedisServer
) -> None:
    client, resource = flavour.guarded(
        redis_server, tickets=1, driver={"retries": 8, "retry_on_error": [Exception, redis.RedisError]}
    )
    resource.open()
    with Seen(resource.identifier, events.CircuitOpen) as seen, pytest.raises(redis.ConnectionError):
        flavour.run(client.get("k"))
    assert len(seen.all) == 1


def test_a_retry_class_with_a_loop_of_its_own_gets_plain_redis_errors(
    flavour: Flavour, redis_server: RedisServer
) -> None:
    """It would take a ConnectionError for something to retry."""
    tries: list[BaseException] = []
    if flavour.is_async:

        class Own(redis.asyncio.retry.Retry):
            async def call_with_retry(self, do: Any, fail: Any, *args: Any, **kwargs: Any) -> Any:
                for _ in range(3):
                    try:
                        return await do()
                    except redis.ConnectionError as error:
                        tries.append(error)
                raise tries[-1]

        retry: Any = Own(NoBackoff(), 0)
    else:

        class OwnSync(redis.retry.Retry):
            def call_with_retry(self, do: Any, fail: Any, *args: Any, **kwargs: Any) -> Any:
                for _ in range(3):
                    try:
                        return do()
                    except redis.ConnectionError as error:
                        tries.append(error)
                raise tries[-1]

        retry = OwnSync(NoBackoff(), 0)
    client, resource = flavour.guarded(redis_server, tickets=1, driver={"retry": retry})
    flavour.run(client.set("k", 1))
    resource.open()
    with Seen(resource.identifier, events.CircuitOpen) as seen, pytest.raises(redis.RedisError) as caught:
        flavour.run(client.get("k"))
    assert not isinstance(caught.value, redis.ConnectionError)
    assert isinstance(caught.value, bulkhead.CircuitOpenError)
    assert tries == []
    assert len(seen.all) == 1


def test_a_rejection_leaves_no_garbage(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1)
    flavour.run(client.get("k"))
    resource.open()

    async def refused_async(times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(redis.ConnectionError):
                await client.get("k")

    def refused(times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(redis.ConnectionError):
                client.get("k")

    many = refused_async if flavour.is_async else refused
    flavour.run(many(10))
    gc.collect()
    gc.disable()
    try:
        flavour.run(many(100))
        assert gc.collect() < 10  # the loop's own; one cycle a rejection would be hundreds
    finally:
        gc.enable()


def test_a_retry_class_that_only_sets_defaults_is_an_ordinary_one(flavour: Flavour) -> None:
    base = type(flavour.retry(0))
    quiet = type("Quiet", (base,), {})
    connection = flavour.module.Connection(retry=quiet(NoBackoff(), 1))
    assert not has_own_retry(connection)


def test_retries_still_do_what_they_did(flavour: Flavour) -> None:
    """Attempts, back-off and the failure callback of an unprotected client are as before."""
    calls: list[str] = []

    class Backoff(NoBackoff):
        def reset(self) -> None:
            calls.append("reset")

        def compute(self, failures: int) -> float:
            calls.append(f"compute {failures}")
            return 0

    retry = type(flavour.retry(0))(Backoff(), 2)
    failures = iter([redis.TimeoutError("first"), redis.ConnectionError("second")])

    def attempt() -> str:
        calls.append("do")
        for error in failures:
            raise error
        return "done"

    def fail(error: BaseException) -> None:
        calls.append(f"fail {error}")

    if flavour.is_async:

        async def attempt_async() -> str:
            return attempt()

        async def fail_async(error: BaseException) -> None:
            fail(error)

        assert flavour.run(retry.call_with_retry(attempt_async, fail_async)) == "done"
    else:
        assert retry.call_with_retry(attempt, fail) == "done"
    expected = ["do", "reset", "fail first", "compute 1", "do", "fail second", "compute 2", "do"]
    assert calls == expected

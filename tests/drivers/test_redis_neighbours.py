"""What stands around single clients: threads on one client, client-side caching, Sentinel, a cluster. None may break."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio.cluster
import redis.cluster
from drivers.redis_flavours import flavour

import adapters
import bulkhead
from bulkhead.testing import ScriptedRedis

if TYPE_CHECKING:
    from drivers.redis_flavours import Flavour

    from bulkhead.testing import RedisServer

__all__ = ["flavour"]

A = b"$1\r\na\r\n"


def _array(*items: Any) -> bytes:
    """Redis' wire form of nested lists of texts and numbers."""
    parts = [b"*%d\r\n" % len(items)]
    for one in items:
        if isinstance(one, (list, tuple)):
            parts.append(_array(*one))
        elif isinstance(one, int):
            parts.append(b":%d\r\n" % one)
        else:
            parts.append(b"$%d\r\n%s\r\n" % (len(one), one.encode()))
    return b"".join(parts)


def test_threads_on_one_client_leave_no_mark_that_turns_it_off(redis_server: RedisServer) -> None:
    """Known fault 35, Semian #1045: the mark is kept per connection, not on the shared object."""
    options: dict[str, Any] = bulkhead.options(name="threads", tickets=50)
    client: Any = redis.Redis(host=redis_server.host, port=redis_server.port, **options)
    resource = bulkhead.find("redis:threads")
    assert resource is not None
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(200):
                if number % 10:
                    client.get("k")
                else:
                    client.pipeline().get("k").execute()
        except BaseException as error:  # noqa: BLE001  reported below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert resource.in_use == 0
    resource.open()
    with pytest.raises(bulkhead.CircuitOpenError):
        client.get("k")
    with pytest.raises(bulkhead.CircuitOpenError):
        client.pipeline().get("k").execute()
    client.close()


def test_a_mark_on_a_connection_ends_with_its_attempt(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1)
    flavour.run(client.set("text", 1))
    connection = flavour.connection(client)
    with pytest.raises(redis.ResponseError):
        flavour.run(client._send_command_parse_response(connection, "LPUSH", "LPUSH", "text", 1))
    assert connection.bulkhead_inside is False
    resource.open()
    flavour.run(connection.disconnect())
    with pytest.raises(bulkhead.CircuitOpenError):
        flavour.run(connection.connect())
    assert connection.bulkhead_inside is False
    flavour.run(client.connection_pool.release(connection))


def test_a_cached_answer_is_served_while_the_circuit_is_open() -> None:
    """Client-side caching wraps the connection; what it has costs the server nothing."""
    if redis.__version__.startswith("5."):
        pytest.skip("client-side caching of redis-py 5 does not work with hiredis")
    cache = pytest.importorskip("redis.cache")
    hello = b"%7\r\n" + b"".join(
        _array(key, value)[4:]
        for key, value in [("server", "redis"), ("version", "8.0.0"), ("proto", 3), ("id", 1), ("mode", "standalone"),
                           ("role", "master"), ("modules", "")]
    )  # fmt: skip
    with ScriptedRedis({"HELLO": hello, "GET": A}) as server:
        arguments: dict[str, Any] = bulkhead.options(name="cached", tickets=1)
        client: Any = redis.Redis(
            host=server.host, port=server.port, protocol=3, cache_config=cache.CacheConfig(), **arguments
        )
        resource = bulkhead.find("redis:cached")
        assert resource is not None
        assert client.get("k") == b"a"
        assert client.get("k") == b"a"
        assert server.count("GET") == 1
        resource.open()
        assert client.get("k") == b"a"
        with pytest.raises(bulkhead.CircuitOpenError):
            client.get("other")
        with pytest.raises(bulkhead.CircuitOpenError):
            client.pipeline().get("other").execute()
        resource.close()
        assert client.get("other") == b"a"
        assert resource.in_use == 0
        client.close()


def test_clients_behind_sentinel_work_protected(flavour: Flavour, redis_server: RedisServer) -> None:
    about = {"name": "orders", "ip": redis_server.host, "port": str(redis_server.port), "flags": "master",
             "num-other-sentinels": "0", "quorum": "1"}  # fmt: skip
    masters = _array([part for pair in about.items() for part in pair])
    with ScriptedRedis({"SENTINEL": masters}) as watcher:
        module = __import__("redis.asyncio.sentinel" if flavour.is_async else "redis.sentinel", fromlist=["Sentinel"])
        sentinel = module.Sentinel([(watcher.host, watcher.port)], sentinel_kwargs={"protocol": 2, "socket_timeout": 1})
        client = flavour.closing(sentinel.master_for("orders", **bulkhead.options(tickets=2)))
        flavour.run(client.set("k", "v"))
        resource = bulkhead.find("redis:orders")
        assert resource is not None
        resource.open()
        with pytest.raises(bulkhead.CircuitOpenError):
            flavour.run(client.get("k"))
        resource.close()
        assert flavour.run(client.get("k")) == b"v"
        for one in sentinel.sentinels:
            flavour.closing(one)


def test_a_cluster_works_and_stays_unprotected() -> None:
    adapters.resolve(lambda driver, host, port, extra: {"name": "everything", "tickets": 2})
    with ScriptedRedis({"GET": A, "INFO": b"$22\r\ncluster_enabled:1\r\nxx:y\r\n"}) as server:
        server.script["CLUSTER"] = _array([0, 16383, [server.host, server.port, "a" * 40]])
        server.script["COMMAND"] = _array(["get", 2, ["readonly", "fast"], 1, 1, 1, ["@read"], [], [], []])
        client = redis.cluster.RedisCluster(host=server.host, port=server.port, protocol=2)
        assert client.get("k") == b"a"
        client.close()

        async def alone() -> Any:
            async with redis.asyncio.cluster.RedisCluster(host=server.host, port=server.port, protocol=2) as other:
                return await other.get("k")

        assert asyncio.run(alone()) == b"a"
    assert bulkhead.find("redis:everything") is None

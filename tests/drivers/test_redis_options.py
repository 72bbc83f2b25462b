"""The ways in which options reach redis-py's clients, pools, URLs and connections, and what cannot be protected."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from drivers.redis_flavours import flavour

import adapters
import bulkhead

if TYPE_CHECKING:
    from drivers.redis_flavours import Flavour

    from bulkhead.testing import RedisServer

__all__ = ["flavour"]


def _refused(flavour: Flavour, client: Any, name: str) -> bool:
    """Does the circuit of that name stand in front of this client?"""
    resource = bulkhead.find(f"redis:{name}")
    assert resource is not None
    flavour.run(client.ping())
    resource.open()
    try:
        flavour.run(client.ping())
    except bulkhead.CircuitOpenError as error:
        return error.identifier == resource.identifier
    finally:
        resource.close()
    return False


def test_pools_of_every_kind_carry_options(flavour: Flavour, redis_server: RedisServer) -> None:
    address = {"host": redis_server.host, "port": redis_server.port}
    bulkhead.define("by-url", tickets=2)
    module = flavour.module
    pools = {
        "pool": module.ConnectionPool(**address, **bulkhead.options(name="pool", tickets=2)),
        "blocking": module.BlockingConnectionPool(**address, timeout=1, **bulkhead.options(name="blocking", tickets=2)),
        "url": module.ConnectionPool.from_url(redis_server.url, **bulkhead.options(name="url", tickets=2)),
        "by-url": module.ConnectionPool.from_url(f"{redis_server.url}?bulkhead=by-url"),
    }
    for name, pool in pools.items():
        flavour.closing(pool)
        assert _refused(flavour, module.Redis(connection_pool=pool), name)


def test_clients_of_every_kind_carry_options(flavour: Flavour, redis_server: RedisServer) -> None:
    """RD-02: client() and pipelines share the pool, so they share the resource."""
    address = {"host": redis_server.host, "port": redis_server.port}
    module = flavour.module

    class Mine(module.Redis):  # type: ignore[misc,name-defined]
        pass

    clients = {
        "from_url": module.Redis.from_url(redis_server.url, **bulkhead.options(name="from_url", tickets=2)),
        "subclass": Mine(**address, **bulkhead.options(name="subclass", tickets=2)),
        "single": module.Redis(**address, single_connection_client=True, **bulkhead.options(name="single", tickets=2)),
        "strict": module.StrictRedis(**address, **bulkhead.options(name="strict", tickets=2)),
        "max": module.Redis(**address, max_connections=3, **bulkhead.options(name="max", tickets=2)),
    }
    for name, client in clients.items():
        flavour.closing(client)
        assert _refused(flavour, client, name)
    twin = clients["subclass"].client()
    assert _refused(flavour, twin, "subclass")
    flavour.closing(twin)


def test_a_unix_socket_is_named_by_its_path(flavour: Flavour) -> None:
    pool = flavour.module.ConnectionPool.from_url("unix:///no/such/redis.sock?db=3", **bulkhead.options(tickets=2))
    client = flavour.module.Redis(connection_pool=flavour.closing(pool))
    with pytest.raises(redis.ConnectionError) as caught:
        flavour.run(client.ping())
    assert getattr(caught.value, "bulkhead_identifier", None) == "redis:/no/such/redis.sock/3"


def test_a_connection_class_of_ones_own_carries_options(flavour: Flavour, redis_server: RedisServer) -> None:
    class Mine(flavour.module.Connection):  # type: ignore[misc,name-defined]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    pool = flavour.module.ConnectionPool(
        connection_class=Mine,
        host=redis_server.host,
        port=redis_server.port,
        **bulkhead.options(name="mine", tickets=2),
    )
    assert _refused(flavour, flavour.module.Redis(connection_pool=flavour.closing(pool)), "mine")


def test_a_connection_class_that_is_none_of_redis_py_cannot_be_protected(flavour: Flavour) -> None:
    class Foreign:
        pass

    with pytest.raises(bulkhead.ConfigurationError, match="AbstractConnection"):
        flavour.module.ConnectionPool(connection_class=Foreign, **bulkhead.options(tickets=2))
    adapters.resolve(lambda driver, host, port, extra: {"tickets": 2})
    assert "bulkhead" not in flavour.module.ConnectionPool(connection_class=Foreign).connection_kwargs


def test_a_connection_without_a_pool_may_have_options(flavour: Flavour, redis_server: RedisServer) -> None:
    connection = flavour.module.Connection(
        host=redis_server.host, port=redis_server.port, **bulkhead.options(tickets=1)
    )
    resource = bulkhead.find(f"redis:{redis_server.address}/0")
    assert resource is not None
    resource.open()
    with pytest.raises(redis.ConnectionError) as caught:
        flavour.run(connection.connect())
    assert isinstance(caught.value, bulkhead.CircuitOpenError)
    resource.close()
    flavour.run(connection.connect())
    flavour.run(connection.disconnect())


def test_secrets_are_not_shown_to_callables(flavour: Flavour) -> None:
    seen: dict[str, Any] = {}

    def ask(driver: str, host: str | None, port: int | None, extra: Any) -> None:
        seen.update(extra)

    flavour.module.Redis(host="h", port=1, db=4, password="secret", username="me", bulkhead=ask)
    assert seen["db"] == 4
    assert "secret" not in repr(seen)


def test_the_arguments_of_a_pool_can_be_copied_and_pickled(flavour: Flavour) -> None:
    pool = flavour.module.ConnectionPool(host="h", port=1, **bulkhead.options(name="copied", tickets=2))
    options = pool.connection_kwargs["bulkhead"]
    assert copy.deepcopy(options) is options
    assert copy.copy(options) is options
    again = pickle.loads(pickle.dumps(options))  # noqa: S301  our own
    assert again == bulkhead.options(name="copied", tickets=2)["bulkhead"]
    assert "redis:copied" in repr(options)
    twin = flavour.module.ConnectionPool(**{**pool.connection_kwargs, "host": "other"})
    assert twin.connection_kwargs["bulkhead"].resource is options.resource


def test_protect_takes_clients_and_pools_with_live_connections(flavour: Flavour, redis_server: RedisServer) -> None:
    client = flavour.client(redis_server)
    flavour.run(client.ping())
    assert bulkhead.protect(client, name="protected", tickets=2) is client
    assert _refused(flavour, client, "protected")
    assert bulkhead.protect(client.connection_pool, name="protected", tickets=2) is client.connection_pool
    with pytest.raises(bulkhead.ConfigurationError, match="protected already"):
        bulkhead.protect(client, name="otherwise", tickets=2)
    blocking = flavour.module.BlockingConnectionPool(host=redis_server.host, port=redis_server.port)
    other = flavour.module.Redis(connection_pool=flavour.closing(blocking))
    flavour.run(other.ping())
    bulkhead.protect(blocking, name="protected-pool", tickets=2)
    assert _refused(flavour, other, "protected-pool")


def test_two_clients_can_share_one_resource_by_identifier(flavour: Flavour, redis_server: RedisServer) -> None:
    """RC-02."""
    options = bulkhead.options(identifier="redis:shared", tickets=1)
    one, two = (flavour.client(redis_server, options["bulkhead"], db=db) for db in (0, 1))
    assert _refused(flavour, one, "shared")
    assert _refused(flavour, two, "shared")


def test_a_cluster_is_refused_by_name_and_left_alone_by_resolve() -> None:
    with pytest.raises(bulkhead.ConfigurationError, match="RedisCluster"):
        redis.cluster.RedisCluster(host="127.0.0.1", port=1, **bulkhead.options(tickets=2))
    with pytest.raises(bulkhead.ConfigurationError, match="RedisCluster"):
        redis.cluster.RedisCluster.from_url("redis://127.0.0.1:1?bulkhead=x")
    asked: list[Any] = []
    adapters.resolve(lambda *about: asked.append(about))
    with pytest.raises(redis.exceptions.RedisClusterException):
        redis.cluster.RedisCluster(host="127.0.0.1", port=1)
    assert asked == []


def test_sentinels_own_clients_are_left_alone_and_its_pools_are_named_by_the_service(flavour: Flavour) -> None:
    asked: list[Any] = []

    def ask(driver: str, host: str | None, port: int | None, extra: Any) -> Any:
        asked.append((host, port))
        return {"tickets": 2}

    adapters.resolve(ask)
    module = redis.asyncio.sentinel if flavour.is_async else redis.sentinel
    sentinel = module.Sentinel([("127.0.0.1", 1), ("127.0.0.1", 2)], socket_timeout=0.1)
    assert asked == []
    primary = sentinel.master_for("orders")
    replica = sentinel.slave_for("orders")
    named = sentinel.master_for("orders", **bulkhead.options(name="named", tickets=2))
    adapters.resolve(None)
    names = [one.connection_pool.connection_kwargs["bulkhead"].resource.identifier for one in (primary, replica, named)]
    assert names == ["redis:orders", "redis:orders/replicas", "redis:named"]
    with pytest.raises(redis.ConnectionError):
        flavour.run(primary.ping())


def test_unknown_names_in_urls_are_found_at_the_first_call(flavour: Flavour, redis_server: RedisServer) -> None:
    bulkhead.define("inventory", tickets=2)
    client = flavour.closing(flavour.module.Redis.from_url(f"{redis_server.url}?bulkhead=inventry"))
    with pytest.raises(bulkhead.ConfigurationError, match="inventory"):
        flavour.run(client.ping())

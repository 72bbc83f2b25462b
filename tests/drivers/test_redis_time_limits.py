"""half_open_resource_timeout and call_timeout on live, new and reconnected connections, and everything put back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
from drivers.harness import Seen
from drivers.redis_flavours import flavour
from polling import until_due

import bulkhead
from bulkhead import events
from bulkhead.testing import CLOSE, SILENT, NeverAccepting, ScriptedRedis, SilentServer

if TYPE_CHECKING:
    from drivers.redis_flavours import Flavour

__all__ = ["flavour"]

A = b"$1\r\na\r\n"
RULE: dict[str, Any] = {
    "error_threshold": 2,
    "error_threshold_timeout": 20,
    "error_timeout": 0.8,
    "success_threshold": 1,
}


def _time_outs(client: Any) -> list[Any]:
    (connection,) = client.connection_pool._available_connections
    sock, parser = getattr(connection, "_sock", None), connection._parser
    return [
        connection.socket_timeout,
        connection.socket_connect_timeout,
        sock.gettimeout() if sock else None,
        getattr(parser, "_socket_timeout", None),
        getattr(getattr(parser, "_buffer", None), "socket_timeout", None),
    ]


def _half_open(flavour: Flavour, client: Any, resource: Any) -> None:
    resource.open()
    resource.close()
    for _ in range(2):
        with pytest.raises(redis.RedisError):
            flavour.run(client.eval("loading", 0))
    assert resource.state == "open"
    until_due(resource)


def _timed(flavour: Flavour, value: Any) -> tuple[float, BaseException | None]:
    began = time.monotonic()
    try:
        flavour.run(value() if callable(value) else value)
    except redis.RedisError as error:
        return time.monotonic() - began, error
    return time.monotonic() - began, None


@pytest.mark.parametrize("parser", ["default", "python"])
def test_a_probe_on_a_live_connection_is_cut_and_its_time_outs_come_back(flavour: Flavour, parser: str) -> None:
    """RC-20, RC-22, RD-24, RD-26."""
    driver: dict[str, Any] = {"socket_timeout": 9.0, "protocol": 2}
    if parser == "python":
        module = redis.asyncio.connection if flavour.is_async else redis.connection
        name = "_AsyncRESP2Parser" if flavour.is_async else "_RESP2Parser"
        pool_arguments = {"parser_class": getattr(module, name)}
    else:
        pool_arguments = {}
    with ScriptedRedis({"GET": A, "EVAL": b"-MISCONF x\r\n"}) as server:
        client, resource = flavour.guarded(server, half_open_resource_timeout=0.6, **RULE, driver=driver)
        client.connection_pool.connection_kwargs.update(pool_arguments)
        flavour.run(client.get("k"))
        before = _time_outs(client)
        _half_open(flavour, client, resource)
        server.script["GET"] = SILENT
        took, error = _timed(flavour, lambda: client.get("k"))
        assert isinstance(error, redis.TimeoutError)
        assert took < 4
        assert resource.state == "open"
        server.script["GET"] = A
        until_due(resource)
        took, error = _timed(flavour, lambda: client.get("k"))
        assert error is None
        assert resource.state == "closed"
        assert _time_outs(client) == before


def test_a_probe_on_a_new_connection_is_cut_and_its_time_outs_come_back(flavour: Flavour) -> None:
    """RC-21, RD-25: writes and fresh connections. A server that accepts and never answers keeps it open (29)."""
    with ScriptedRedis({"GET": A, "EVAL": b"-MISCONF x\r\n"}) as server:
        client, resource = flavour.guarded(
            server, half_open_resource_timeout=0.6, **RULE, driver={"socket_timeout": 9.0, "protocol": 3}
        )
        flavour.run(client.get("k"))
        before = _time_outs(client)
        _half_open(flavour, client, resource)
        (connection,) = client.connection_pool._available_connections
        flavour.run(connection.disconnect())
        server.script["HELLO"] = SILENT
        for _ in range(2):
            took, error = _timed(flavour, lambda: client.get("k"))
            assert isinstance(error, redis.TimeoutError), error
            assert took < 4
            assert resource.state == "open"
            assert connection.socket_timeout == 9.0
            until_due(resource)
        del server.script["HELLO"]
        took, error = _timed(flavour, lambda: client.get("k"))
        assert error is None
        assert resource.state == "closed"
        assert _time_outs(client) == before


def test_connecting_alone_does_not_close_a_circuit(flavour: Flavour) -> None:
    """Known fault 29, Semian's half-open connects: a connect that succeeds is ignored, one that fails is a failure."""
    with ScriptedRedis({"GET": A, "EVAL": b"-MISCONF x\r\n"}) as server:
        client, resource = flavour.guarded(server, **RULE)
        flavour.run(client.get("k"))
        _half_open(flavour, client, resource)
        flavour.run(client.connection_pool.disconnect())
        connection = flavour.connection(client)
        assert resource.state == "half_open"
        flavour.run(client.connection_pool.release(connection))
        flavour.run(client.get("k"))
        assert resource.state == "closed"


def test_call_timeout_cuts_reads_connects_and_handshakes(flavour: Flavour) -> None:
    driver = {"socket_timeout": 9.0}
    with NeverAccepting() as never, SilentServer() as silent, ScriptedRedis({"GET": SILENT}) as mute:
        for server, scope in ((never, "connection"), (silent, "connection"), (mute, "query")):
            client, resource = flavour.guarded(server, call_timeout=0.2, **RULE, driver=driver)
            with Seen(resource.identifier, events.Failure) as seen:
                took, error = _timed(flavour, lambda: client.get("k"))  # noqa: B023
            assert isinstance(error, (redis.TimeoutError, redis.ConnectionError)), error
            assert bulkhead.rejection(error) is None
            assert took < 4
            assert [one.scope for one in seen.all] == [scope]


def test_a_shorter_time_out_of_the_drivers_own_stays(flavour: Flavour) -> None:
    with ScriptedRedis({"GET": SILENT}) as server:
        client, _ = flavour.guarded(server, call_timeout=9.0, **RULE, driver={"socket_timeout": 0.15})
        took, error = _timed(flavour, lambda: client.get("k"))
        assert isinstance(error, redis.TimeoutError)
        assert took < 4


def test_a_reconnect_inside_a_limited_call_gets_the_old_time_outs_back(flavour: Flavour) -> None:
    with ScriptedRedis({"GET": [A, CLOSE, A]}) as server:
        client, _ = flavour.guarded(
            server, call_timeout=2.0, error_threshold=9, error_timeout=5, success_threshold=1,
            driver={"socket_timeout": 9.0, "retries": 2, "retry_on_error": [redis.ConnectionError]},
        )  # fmt: skip
        flavour.run(client.get("k"))
        before = _time_outs(client)
        assert flavour.run(client.get("k")) == b"a"
        assert server.count("GET") == 3
        assert _time_outs(client) == before


def test_pipelines_have_the_limit_too(flavour: Flavour) -> None:
    with ScriptedRedis({"GET": [A, SILENT], "MULTI": SILENT}) as server:
        client, resource = flavour.guarded(server, call_timeout=0.2, **RULE)
        for transaction in (False, True):
            took, error = _timed(
                flavour,
                lambda: client.pipeline(transaction=transaction).get("k").get("k").execute(),  # noqa: B023
            )
            assert isinstance(error, redis.TimeoutError)
            assert took < 3
        assert resource.state == "open"


def test_blocking_commands_are_not_cut(flavour: Flavour) -> None:
    """A limit for one attempt is none for a wait that the caller asked for."""
    with ScriptedRedis({"GET": A}) as server:
        client, _ = flavour.guarded(server, call_timeout=1.0, **RULE)
        flavour.run(client.get("k"))
        (connection,) = client.connection_pool._available_connections
        seen: list[float] = []
        original = connection.read_response

        def note(*args: Any, **kwargs: Any) -> Any:
            seen.append(connection.socket_timeout)
            return original(*args, **kwargs)

        connection.read_response = note
        server.script["BLPOP"] = b"*-1\r\n"
        flavour.run(client.blpop("q", 1))
        flavour.run(client.get("k"))
        assert seen == [5.0, 1.0]

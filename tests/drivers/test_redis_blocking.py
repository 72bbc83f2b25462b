"""Commands that wait at the server by design, pub/sub and MONITOR hold no ticket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
from drivers.harness import Seen
from drivers.redis_flavours import flavour

import bulkhead
from adapters._redis_commands import kind_of
from bulkhead import events

if TYPE_CHECKING:
    from drivers.redis_flavours import Flavour

    from bulkhead.testing import RedisServer

__all__ = ["flavour"]

TWO: dict[str, Any] = {"error_threshold": 2, "error_timeout": 5, "success_threshold": 1}


def test_a_blocking_command_takes_no_ticket_and_its_time_out_says_nothing(
    flavour: Flavour, redis_server: RedisServer
) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1, **TWO, driver={"socket_timeout": 0.4})
    commands: list[Any] = [
        lambda: client.blpop("empty", 9),
        lambda: client.brpop(["empty"], 9),
        lambda: client.bzpopmin("empty-set", 9),
        lambda: client.xread({"empty-stream": "$"}, block=9000),
        lambda: client.execute_command("blpop", "empty", 9),
        lambda: client.execute_command(b"BLPOP", "empty", 9),
    ]
    with Seen(resource.identifier, events.Failure, events.Ignored) as seen:
        for command in commands:
            with pytest.raises(redis.TimeoutError):
                flavour.run(command())
            assert resource.in_use == 0
    assert seen.all == []
    assert resource.state == "closed"


def test_a_blocking_command_is_refused_while_the_circuit_is_open(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1)
    flavour.run(client.rpush("full", 1, 2))
    resource.open()
    with pytest.raises(redis.ConnectionError) as caught:
        flavour.run(client.blpop("full", 1))
    assert isinstance(caught.value, bulkhead.CircuitOpenError)
    resource.close()
    assert flavour.run(client.blpop("full", 1)) is not None


def test_other_errors_of_a_blocking_command_count(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1, **TWO)
    flavour.run(client.set("text", 1))
    with pytest.raises(redis.ResponseError):
        flavour.run(client.blpop("text", 1))
    assert resource.state == "closed"
    for _ in range(2):
        connection = flavour.connection(client)
        redis_server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(redis.ConnectionError):
            flavour.run(client._send_command_parse_response(connection, "BLPOP", "BLPOP", "empty", 1))
        flavour.run(client.connection_pool.release(connection))
    assert resource.state == "open"


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("XREAD", ("XREAD", "BLOCK", 5, "STREAMS", "s", "$"), "blocks"),
        ("XREAD", ("XREAD", b"block", b"5", "STREAMS", "s", "$"), "blocks"),
        ("XREAD", ("XREAD", "STREAMS", "s", "$"), None),
        ("XREAD", ("XREAD", "STREAMS", "block", "$"), None),  # a stream's name is the caller's choice
        ("XREAD", ("XREAD", b"COUNT", b"1", b"streams", b"BLOCK", b"0"), None),
        ("XREADGROUP", ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 1, "STREAMS", "s", ">"), "blocks"),
        (b"wait", (b"wait", 1, 100), "blocks"),
        ("UNWATCH", ("UNWATCH",), "free"),
        ("GET", ("GET", "k"), None),
        ("EXEC", ("EXEC",), "exec"),
    ],
)
def test_commands_are_told_apart_by_name(name: Any, words: tuple[Any, ...], kind: str | None) -> None:
    assert kind_of(name, words) == kind


def test_pub_sub_is_guarded_while_connecting_only(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1)
    subscriber = client.pubsub(ignore_subscribe_messages=True)
    flavour.run(subscriber.subscribe("news"))
    assert resource.in_use == 0
    flavour.run(client.publish("news", "one"))
    deadline = time.monotonic() + 5
    message = None
    while message is None and time.monotonic() < deadline:
        message = flavour.run(subscriber.get_message(timeout=0.2))
    assert message is not None
    assert message["data"] == b"one"
    flavour.run(getattr(subscriber, "aclose", subscriber.close)())
    resource.open()
    other = client.pubsub()
    flavour.run(client.connection_pool.disconnect())
    with pytest.raises(bulkhead.CircuitOpenError):
        flavour.run(other.subscribe("news"))


def test_monitor_works_and_holds_no_ticket(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1)
    monitor = client.monitor()
    flavour.run(monitor.connect()) if flavour.is_async else None
    flavour.run(monitor.__aenter__()) if flavour.is_async else monitor.__enter__()
    assert resource.in_use == 0
    redis_server.command("PING")
    assert flavour.run(monitor.next_command())["command"] == "PING"
    flavour.run(monitor.__aexit__(None, None, None)) if flavour.is_async else monitor.__exit__(None, None, None)


def test_unwatch_discard_and_the_like_are_never_refused(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1)
    flavour.run(client.ping())
    resource.open()
    for words in (("UNWATCH",), ("SELECT", 0)):
        flavour.run(client.execute_command(*words))
    with pytest.raises(bulkhead.CircuitOpenError):
        flavour.run(client.execute_command("PING"))

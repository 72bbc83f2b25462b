"""A pipeline or transaction is one call with one outcome: the worst of its replies. Real Redis and exact lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
from drivers.harness import Seen
from drivers.redis_flavours import flavour

import bulkhead
from bulkhead import events
from bulkhead.testing import ScriptedRedis

if TYPE_CHECKING:
    from drivers.redis_flavours import Flavour

    from bulkhead.testing import RedisServer

__all__ = ["flavour"]

QUEUED = b"+QUEUED\r\n"
WRONGTYPE = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
MISCONF = b"-MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk.\r\n"
ENDINGS = (events.Success, events.Failure, events.Ignored)


def _outcomes(flavour: Flavour, server: Any, use: Any, **execute: Any) -> tuple[list[str], Any]:
    client, resource = flavour.guarded(server, tickets=1)
    flavour.run(client.ping())
    result: Any = None
    with Seen(resource.identifier, *ENDINGS) as seen:
        pipe = use(client)
        try:
            result = flavour.run(pipe.execute(**execute))
        except redis.RedisError as error:
            result = error
    assert resource.in_use == 0
    return [type(one).__name__ for one in seen.all], result


@pytest.mark.parametrize("raise_on_error", [True, False])
@pytest.mark.parametrize(("first", "second"), [(WRONGTYPE, OOM), (WRONGTYPE, MISCONF), (MISCONF, WRONGTYPE)])
def test_the_worst_reply_of_a_pipeline_decides(
    flavour: Flavour,
    first: bytes,
    second: bytes,
    raise_on_error: bool,  # noqa: FBT001
) -> None:
    """The first error is raised; the one that counts may be another."""
    with ScriptedRedis({"LPUSH": first, "SET": second, "GET": b"$1\r\na\r\n"}) as server:
        told, result = _outcomes(
            flavour,
            server,
            lambda client: client.pipeline(transaction=False).get("a").lpush("a", 1).set("a", 1).get("a"),
            raise_on_error=raise_on_error,
        )
        assert told == ["Failure"]
        assert isinstance(result, redis.ResponseError if raise_on_error else list)


@pytest.mark.parametrize("raise_on_error", [True, False])
def test_the_worst_reply_inside_exec_decides(flavour: Flavour, raise_on_error: bool) -> None:  # noqa: FBT001
    """RD-04, RD-09."""
    executed = b"*3\r\n$1\r\na\r\n" + WRONGTYPE + OOM
    script = {"MULTI": b"+OK\r\n", "GET": QUEUED, "LPUSH": QUEUED, "EVAL": QUEUED, "EXEC": executed}
    with ScriptedRedis(script) as server:
        told, _ = _outcomes(
            flavour,
            server,
            lambda client: client.pipeline().get("a").lpush("a", 1).eval("x", 0),
            raise_on_error=raise_on_error,
        )
        assert told == ["Failure"]


def test_a_command_that_is_refused_while_queued_counts_though_another_is_raised(flavour: Flavour) -> None:
    script = {
        "MULTI": b"+OK\r\n",
        "LPUSH": b"-ERR wrong number of arguments for 'lpush' command\r\n",
        "SET": OOM,
        "EXEC": b"-EXECABORT Transaction discarded because of previous errors.\r\n",
    }
    with ScriptedRedis(script) as server:
        told, result = _outcomes(flavour, server, lambda client: client.pipeline().lpush("a").set("a", 1))
        assert told == ["Failure"]
        assert isinstance(result, redis.ResponseError)
        assert not isinstance(result, redis.exceptions.OutOfMemoryError)


def test_an_exec_sent_by_hand_counts_by_its_worst_reply(flavour: Flavour) -> None:
    script = {"MULTI": b"+OK\r\n", "SET": QUEUED, "EXEC": b"*2\r\n+OK\r\n" + OOM}
    with ScriptedRedis(script) as server:
        client, resource = flavour.guarded(server, tickets=1, driver={"single_connection_client": True})
        flavour.run(client.execute_command("MULTI"))
        flavour.run(client.execute_command("SET", "a", 1))
        with Seen(resource.identifier, *ENDINGS) as seen:
            flavour.run(client.execute_command("EXEC"))
        assert [type(one).__name__ for one in seen.all] == ["Failure"]
        with Seen(resource.identifier, *ENDINGS) as seen:
            told = flavour.run(
                client.pipeline(transaction=False)
                .execute_command("MULTI")
                .set("a", 1)
                .execute_command("EXEC")
                .execute(raise_on_error=False)
            )
        assert [type(one).__name__ for one in seen.all if one.scope == "query"] == ["Failure"]
        assert len(told) == 3


def test_errors_that_are_answers_are_a_success_of_the_pipeline(flavour: Flavour, redis_server: RedisServer) -> None:
    def use(client: Any) -> Any:
        return client.pipeline(transaction=False).set("a", 1).lpush("a", 1)

    for raise_on_error in (True, False):
        told, _ = _outcomes(flavour, redis_server, use, raise_on_error=raise_on_error)
        assert told == ["Success"]


def test_a_pipeline_takes_one_ticket_and_is_refused_as_a_whole(flavour: Flavour, redis_server: RedisServer) -> None:
    """Known fault 75."""
    client, resource = flavour.guarded(redis_server, tickets=1)
    for transaction in (True, False):
        flavour.run(client.pipeline(transaction=transaction).set("p", 1).incr("p").execute())
        resource.open()
        before = redis_server.calls("incr")
        with pytest.raises(bulkhead.CircuitOpenError):
            flavour.run(client.pipeline(transaction=transaction).set("p", 1).incr("p").execute())
        assert redis_server.calls("incr") == before
        resource.close()
    assert flavour.run(client.get("p")) == b"2"


def test_a_watch_block_holds_no_ticket_between_its_commands(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1)
    pipe = client.pipeline()
    flavour.run(pipe.watch("w"))
    assert resource.in_use == 0
    flavour.run(client.set("other", 1))
    pipe.multi()
    pipe.set("w", 1)
    assert flavour.run(pipe.execute()) == [True]
    flavour.run(pipe.watch("w"))
    flavour.run(client.set("w", 2))
    pipe.multi()
    pipe.set("w", 3)
    with Seen(resource.identifier, *ENDINGS) as seen, pytest.raises(redis.WatchError):
        flavour.run(pipe.execute())
    assert [type(one).__name__ for one in seen.all] == ["Success"]


def test_a_rejected_transaction_leaves_no_watch_behind(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=2, driver={"max_connections": 2})
    identity = flavour.run(client.client_id())
    pipe = client.pipeline()
    flavour.run(pipe.watch("w"))
    pipe.multi()
    pipe.set("w", 1)
    resource.open()
    with pytest.raises(bulkhead.CircuitOpenError):
        flavour.run(pipe.execute())
    resource.close()
    assert flavour.run(client.client_id()) == identity
    assert flavour.run(client.pipeline().set("w", 5).execute()) == [True]


def test_scripts_of_a_pipeline_are_loaded_as_calls_of_their_own(flavour: Flavour, redis_server: RedisServer) -> None:
    client, resource = flavour.guarded(redis_server, tickets=1)
    script = client.register_script("return 7")
    pipe = client.pipeline()
    flavour.run(script(client=pipe))
    assert flavour.run(pipe.execute()) == [7]
    assert resource.in_use == 0

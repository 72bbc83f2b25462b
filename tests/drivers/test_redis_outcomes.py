"""What each reply of Redis tells the circuit: exact lines from a scripted server, both flavours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
from drivers.harness import Seen
from drivers.redis_flavours import flavour
from polling import until_due

import bulkhead
from adapters.redis import adapter
from bulkhead.outcomes import Outcome
from bulkhead.testing import CLOSE, SILENT, ScriptedRedis

if TYPE_CHECKING:
    from drivers.redis_flavours import Flavour

__all__ = ["flavour"]

F, O, N = "Failure", "Success", "Ignored"  # noqa: E741  the table's own letters
OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
OOM_IN_A_SCRIPT = (
    b"-ERR Error running script (call to f_0): @user_script:1: @user_script: 1: "
    b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
)
REPLIES: list[tuple[Any, str]] = [
    (b"-LOADING Redis is loading the dataset in memory\r\n", F),
    (b"-ERR max number of clients reached\r\n", F),
    (b"-CLUSTERDOWN The cluster is down\r\n", F),
    (b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n", F),
    (OOM, F),
    (OOM_IN_A_SCRIPT, F),
    (b"-MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk.\r\n", F),
    (b"-NOREPLICAS Not enough good replicas to write.\r\n", F),
    (b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n", F),
    (CLOSE, F),
    (SILENT, F),
    (b"-READONLY You can't write against a read only replica.\r\n", N),
    (b"-NOAUTH Authentication required.\r\n", N),
    (b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", N),
    (b"-NOPERM this user has no permissions to run the 'get' command\r\n", N),
    (b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", O),
    (b"-ERR unknown command 'x'\r\n", O),
    (b"-NOSCRIPT No matching script. Please use EVAL.\r\n", O),
    (b"-MOVED 3999 127.0.0.1:6381\r\n", O),
    (b"-ASK 3999 127.0.0.1:6381\r\n", O),
    (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", O),
    (b"-CROSSSLOT Keys in request don't hash to the same slot\r\n", O),
    (b"-BUSYGROUP Consumer Group name already exists\r\n", O),
    (b"-EXECABORT Transaction discarded because of previous errors.\r\n", O),
    (b"$1\r\na\r\n", O),
]


@pytest.mark.parametrize(("reply", "said"), REPLIES, ids=[str(reply)[:24] for reply, _ in REPLIES])
def test_each_reply_says_what_the_table_says(flavour: Flavour, reply: Any, said: str) -> None:
    """RC-15, RD-30 (READONLY), RC-09, RD-08, RD-09 (OOM), RC-08, RD-07; known fault 29b with the table of this project."""
    with ScriptedRedis({"GET": reply}) as server:
        client, resource = flavour.guarded(
            server, tickets=2, driver={"socket_timeout": 1.0 if reply is SILENT else 5.0}
        )
        caught: BaseException | None = None
        with Seen(resource.identifier) as seen:
            try:
                flavour.run(client.get("k"))
            except redis.RedisError as error:
                caught = error
        (told,) = [type(one).__name__ for one in seen.all if one.scope == "query"]
        assert told == said
        if isinstance(caught, redis.exceptions.ReadOnlyError):
            assert "read only replica" in str(caught)
        tagged = getattr(caught, "bulkhead_identifier", None)
        assert tagged == (resource.identifier if said == F else None)


@pytest.mark.parametrize("said", [True, False])
def test_out_of_memory_is_a_choice_of_each_resource(flavour: Flavour, said: bool) -> None:  # noqa: FBT001
    """RC-10, RC-11, RD-10, RD-11: the setting is per client."""
    with ScriptedRedis({"GET": OOM, "EVAL": OOM_IN_A_SCRIPT}) as server:
        rule: dict[str, Any] = {"error_threshold": 4, "error_timeout": 5, "success_threshold": 1}
        client, resource = flavour.guarded(server, open_circuit_on_oom=said, **rule)
        other, other_resource = flavour.guarded(server, open_circuit_on_oom=not said, **rule)
        clients: list[Any] = [client, other]
        for one in clients:
            for _ in range(2):
                for words in (("GET", "k"), ("EVAL", "return 1", 0)):
                    with pytest.raises(redis.ResponseError):
                        flavour.run(one.execute_command(*words))
        assert (resource.state == "open") is said
        assert (other_resource.state == "open") is not said


def test_connection_resets_count_unless_is_failure_says_otherwise(flavour: Flavour) -> None:
    """RC-07 and RD-06 deviate: resets count here; is_failure changes it."""
    rule: dict[str, Any] = {"error_threshold": 2, "error_timeout": 5, "success_threshold": 1}
    with ScriptedRedis({"GET": CLOSE}) as server:
        client, resource = flavour.guarded(server, **rule)
        lenient, other = flavour.guarded(
            server, is_failure=lambda e: False if "closed by server" in str(e).lower() else None, **rule
        )
        for one in (client, lenient):
            for _ in range(2):
                with pytest.raises(redis.ConnectionError):
                    flavour.run(one.get("k"))
        assert resource.state == "open"
        assert other.state == "closed"


def test_name_resolution_failures_count_and_it_recovers(flavour: Flavour) -> None:
    """RC-18, RD-17."""
    with ScriptedRedis({"GET": b"$1\r\na\r\n"}) as server:
        client, resource = flavour.guarded(server, error_threshold=2, error_timeout=1.0, success_threshold=1)
        pool = client.connection_pool
        host, pool.connection_kwargs["host"] = pool.connection_kwargs["host"], "no-such-host.invalid"
        for _ in range(2):
            with pytest.raises(redis.ConnectionError) as caught:
                flavour.run(client.get("k"))
            assert getattr(caught.value, "bulkhead_identifier", None) == resource.identifier
        assert resource.state == "open"
        pool.connection_kwargs["host"] = host
        flavour.run(pool.disconnect())
        pool.reset()
        until_due(resource)
        assert flavour.run(client.get("k")) == b"a"
        assert resource.state == "closed"


def test_an_empty_pool_is_nobodys_failure(flavour: Flavour) -> None:
    """Known fault 22: "too many connections" of our own pool says nothing about the server."""
    with ScriptedRedis({}) as server:
        client, resource = flavour.guarded(
            server, error_threshold=1, error_timeout=5, success_threshold=1, driver={"max_connections": 1}
        )
        connection = flavour.connection(client)
        for _ in range(3):
            with pytest.raises(redis.ConnectionError) as caught:
                flavour.run(client.get("k"))
            assert not hasattr(caught.value, "bulkhead_identifier")
        assert resource.state == "closed"
        flavour.run(client.connection_pool.release(connection))


def test_errors_of_the_callers_own_making_say_nothing() -> None:
    errors = [
        redis.DataError("x"),
        redis.exceptions.LockError("x"),
        redis.exceptions.PubSubError("x"),
        redis.exceptions.MaxConnectionsError("x"),
        redis.ConnectionError("No connection available."),
        redis.ConnectionError("The previous master is now a slave"),
        ValueError("a response callback"),
    ]
    options = bulkhead.options(tickets=1)["bulkhead"]
    assert {adapter.query.outcome(error, options) for error in errors} == {Outcome.IGNORED}
    assert adapter.query.outcome(redis.WatchError("x"), options) is Outcome.SUCCESS


def test_a_wrong_password_is_no_failure_of_the_server(flavour: Flavour) -> None:
    with ScriptedRedis({"AUTH": b"-WRONGPASS invalid\r\n", "HELLO": b"-WRONGPASS invalid\r\n"}) as server:
        client, resource = flavour.guarded(
            server, error_threshold=1, error_timeout=5, success_threshold=1, driver={"password": "wrong"}
        )
        for _ in range(3):
            with pytest.raises(redis.AuthenticationError):
                flavour.run(client.get("k"))
        assert resource.state == "closed"
        assert resource.in_use == 0

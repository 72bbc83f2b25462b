"""psycopg_pool: refused at once while open, no tickets for the pool's own work, connection tickets for tenants."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg_pool
import pytest
from polling import auntil, until, until_due

import bulkhead
from adapters._psycopg_pool import background
from adapters.psycopg import PsycopgCircuitOpenError, PsycopgResourceBusyError
from bulkhead import events
from bulkhead.testing import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Eventually

numbers = itertools.count(1)
QUICK: dict[str, Any] = {
    "error_threshold": 2,
    "error_timeout": 1.0,
    "error_threshold_timeout": 10,
    "success_threshold": 1,
}
FAIL = "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$"
POOL_VERSION = tuple(map(int, version("psycopg-pool").split(".")[:2]))


def given(**options: Any) -> dict[str, Any]:
    """Kwargs of a pool's connections."""
    options.setdefault("name", f"pool-{next(numbers)}")
    options.setdefault("call_timeout", 20)
    return {"autocommit": True, **bulkhead.options(**options)}


@pytest.fixture
def pool(postgres_server: PostgresServer) -> Iterator[Callable[..., Any]]:
    """`pool(min_size=…, kwargs=given(…))`: an open pool, closed after the test."""
    made: list[Any] = []

    def pool(kind: type[Any] = psycopg_pool.ConnectionPool, **arguments: Any) -> Any:
        made.append(kind(arguments.pop("conninfo", postgres_server.dsn), open=False, **arguments))
        made[-1].open()
        return made[-1]

    yield pool
    for one in made:
        one.close()


def resource_of(name: str) -> bulkhead.Resource:
    found = bulkhead.find(f"postgres:{name}")
    assert found is not None
    return found


def test_an_open_circuit_refuses_before_the_pools_queue(pool: Callable[..., Any]) -> None:
    one = pool(min_size=0, max_size=2, timeout=20, kwargs=given(name="refusing", tickets=2))
    with one.connection() as connection:
        assert connection.execute("SELECT 2").fetchone() == (2,)
    resource_of("refusing").open()
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(PsycopgCircuitOpenError), one.connection():
            pytest.fail("given")
        assert time.monotonic() - began < 5
    resource_of("refusing").close()
    with one.connection() as connection:
        assert connection.execute("SELECT 2").fetchone() == (2,)


def test_the_pools_own_connects_take_no_ticket(pool: Callable[..., Any]) -> None:
    with bulkhead.tenant("acme"):
        one = pool(min_size=5, num_workers=3, kwargs=given(name="workers", tickets=1, tenant_tickets=1))
        with bulkhead.resource("workers-other", tickets=1).permit():
            one.wait(10)
    totals = resource_of("workers").totals()
    assert not [what for what in totals if what[0] == "rejections"]
    with one.connection() as first, one.connection() as second:  # checked out: no ticket, none is at work
        assert resource_of("workers").in_use == 0
        stream = first.cursor().stream("SELECT generate_series(1, 100000)")
        next(stream)
        with pytest.raises(PsycopgResourceBusyError):
            second.execute("SELECT 2")
        stream.close()


def test_a_database_that_is_down_opens_it_through_the_workers(pool: Callable[..., Any]) -> None:
    """The first caller waits for the pool's time-out (which is neutral: known fault 22), the next ones do not."""
    one = pool(
        conninfo="host=127.0.0.1 port=1",
        min_size=2,
        timeout=3,
        kwargs=given(name="down", tickets=2, **{**QUICK, "error_timeout": 30}),
    )
    try:
        with one.connection():
            pytest.fail("given")
    except (psycopg_pool.PoolTimeout, PsycopgCircuitOpenError):
        pass
    until(lambda: resource_of("down").state == "open")
    began = time.monotonic()
    with pytest.raises(PsycopgCircuitOpenError), one.connection():
        pytest.fail("given")
    assert time.monotonic() - began < 1


def test_waiting_in_the_pools_queue_is_no_failure(pool: Callable[..., Any]) -> None:
    """Known fault 22."""
    one = pool(min_size=1, max_size=1, timeout=0.1, max_waiting=1, kwargs=given(name="queueing", tickets=2, **QUICK))
    one.wait(20)
    with one.connection():
        for _ in range(5):
            with pytest.raises((psycopg_pool.PoolTimeout, psycopg_pool.TooManyRequests)), one.connection():
                pytest.fail("given")
    resource = resource_of("queueing")
    assert (resource.state, resource.totals()["calls", "failure"]) == ("closed", 0)


def test_getconn_never_takes_the_probe(pool: Callable[..., Any]) -> None:
    one = pool(min_size=2, kwargs=given(name="probing", tickets=2, **QUICK))
    with one.connection() as connection:
        for _ in range(2):
            with pytest.raises(psycopg.errors.DiskFull):
                connection.execute(FAIL)
    resource = resource_of("probing")
    until_due(resource)
    with one.connection(), one.connection() as connection:
        assert resource.state == "open"  # its time is over; nobody has asked yet
        connection.execute("SELECT 2")
        assert resource.state == "closed"


def test_the_check_of_a_connection_passes_without_a_ticket(pool: Callable[..., Any]) -> None:
    one = pool(
        min_size=2,
        timeout=2,
        check=psycopg_pool.ConnectionPool.check_connection,
        kwargs=given(name="checked", tickets=1),
    )
    with one.connection() as busy:
        stream = busy.cursor().stream("SELECT generate_series(1, 100000)")
        next(stream)
        with one.connection() as connection, pytest.raises(PsycopgResourceBusyError):
            connection.execute("SELECT 2")
        stream.close()


def test_while_half_open_the_pool_connects_one_at_a_time(pool: Callable[..., Any]) -> None:
    one = pool(min_size=1, kwargs=given(name="one-at-a-time", tickets=2, **{**QUICK, "success_threshold": 2}))
    with one.connection() as connection:
        for _ in range(2):
            with pytest.raises(psycopg.errors.DiskFull):
                connection.execute(FAIL)
        resource = resource_of("one-at-a-time")
        until_due(resource)
        connection.execute("SELECT 2")
    assert resource.state == "half_open"
    inside, leave, refused = threading.Event(), threading.Event(), []

    def connecting() -> None:
        with background(resource):
            inside.set()
            leave.wait(5)

    first = threading.Thread(target=connecting)
    first.start()
    inside.wait(5)
    for _ in range(2):
        try:
            with background(resource):
                pytest.fail("a second one")
        except PsycopgCircuitOpenError as error:
            refused.append(error)
    leave.set()
    first.join()
    with background(resource):
        pass
    assert len(refused) == 2
    assert resource.state == "half_open"  # neither a refusal nor a connect decides
    with pytest.raises(psycopg.OperationalError), background(resource):
        raise psycopg.OperationalError("connection refused")
    assert resource.state == "open"


def test_a_tenants_connections_are_capped_until_they_are_returned(pool: Callable[..., Any]) -> None:
    one = pool(min_size=3, max_size=3, timeout=20, kwargs=given(name="capped", tenant_connections=1))
    with bulkhead.tenant("noisy"):
        held = one.getconn()
        began = time.monotonic()
        with pytest.raises(PsycopgResourceBusyError) as caught, one.connection():
            pytest.fail("given")
        assert time.monotonic() - began < 5
        assert caught.value.limit == "connections"
        with bulkhead.tenant("quiet"), one.connection() as connection:
            assert connection.execute("SELECT 2").fetchone() == (2,)
        with bulkhead.tenant(None), one.connection():
            pass
        other = pool(min_size=1, kwargs=given())
        with pytest.raises(ValueError, match="pool"):
            other.putconn(held)
        with pytest.raises(PsycopgResourceBusyError), one.connection():
            pytest.fail("still out")
        one.putconn(held)
        for _ in range(3):
            with one.connection():
                pass
        broken = one.getconn()
        broken.close()
        one.putconn(broken)
        with one.connection():
            pass
        lost = one.getconn()
        lost.pgconn.finish()
        del lost, held, connection  # the pool may have given the same one again
        gc.collect()
        with one.connection():
            pass


def test_a_getconn_that_fails_keeps_no_connection_ticket(pool: Callable[..., Any]) -> None:
    one = pool(min_size=1, max_size=1, timeout=0.1, kwargs=given(name="kept-none", tenant_connections=5))
    one.wait(20)
    with one.connection(), bulkhead.tenant("acme"):
        for _ in range(8):
            with pytest.raises(psycopg_pool.PoolTimeout):
                one.getconn()


def test_wrong_options_raise_where_the_pool_is_built(postgres_server: PostgresServer) -> None:
    for wrong in ({"ticket": 1}, {"tickets": 0}, 3):
        with pytest.raises(bulkhead.ConfigurationError):
            psycopg_pool.ConnectionPool(postgres_server.dsn, kwargs={"bulkhead": wrong}, open=False)
    kwargs = given(name="left-alone")
    before = dict(kwargs)
    psycopg_pool.ConnectionPool(postgres_server.dsn, kwargs=kwargs, open=False)
    assert kwargs == before


def test_a_pool_without_options_is_untouched(pool: Callable[..., Any]) -> None:
    one = pool(min_size=1)
    with one.connection() as connection:
        assert connection.bulkhead is None
        assert connection.execute("SELECT 2").fetchone() == (2,)
    assert one.kwargs in (None, {})


def test_null_pools_connect_for_their_caller(pool: Callable[..., Any]) -> None:
    one = pool(psycopg_pool.NullConnectionPool, max_size=3, kwargs=given(name="null-pool", tickets=1))
    with one.connection() as connection:
        assert connection.execute("SELECT 2").fetchone() == (2,)
        stream = connection.cursor().stream("SELECT generate_series(1, 100000)")
        next(stream)
        with pytest.raises(PsycopgResourceBusyError), one.connection():
            pytest.fail("given")
        stream.close()
    with one.connection() as connection:
        assert connection.execute("SELECT 2").fetchone() == (2,)
    assert resource_of("null-pool").in_use == 0


@pytest.mark.skipif(POOL_VERSION < (3, 3), reason="kwargs may be a callable since psycopg_pool 3.3")
def test_a_pool_whose_kwargs_are_a_callable_knows_after_its_first_connection(pool: Callable[..., Any]) -> None:
    one = pool(min_size=1, kwargs=lambda: given(name="asked-for", tickets=1))
    with one.connection() as connection:
        assert connection.execute("SELECT 2").fetchone() == (2,)
    resource_of("asked-for").open()
    with pytest.raises(PsycopgCircuitOpenError), one.connection():
        pytest.fail("given")


@pytest.mark.anyio
async def test_an_asynchronous_pool_works_for_nobody(postgres_server: PostgresServer) -> None:
    """Its workers' context is that of whoever opened it: tenant A must not be charged for C's connections."""
    seen: list[events.Event] = []

    async def configure(connection: Any) -> None:
        await connection.execute("SELECT 3")

    kwargs = given(name="for-nobody", tenant_tickets=1, tickets=5)
    pool: Any = psycopg_pool.AsyncConnectionPool(
        postgres_server.dsn, kwargs=kwargs, min_size=2, max_size=4, configure=configure, reset=configure, open=False
    )
    with bulkhead.subscribe(lambda event: seen.append(event) if event.identifier == "postgres:for-nobody" else None):
        with bulkhead.tenant("acme"):
            await pool.open()
            await pool.wait()
        with bulkhead.tenant("caller"):
            async with pool.connection() as connection:
                await connection.execute("SELECT 2")
        await auntil(lambda: len(pool._pool) == pool._nconns)
    assert {one.tenant for one in seen} == {None, "caller"}
    assert len([one for one in seen if one.tenant == "caller"]) == 1
    assert not [one for one in seen if one.scope == "connection"]
    await pool.close()


@pytest.mark.anyio
async def test_an_asynchronous_pool_refuses_and_caps(postgres_server: PostgresServer) -> None:
    pool: Any = psycopg_pool.AsyncConnectionPool(
        postgres_server.dsn, kwargs=given(name="apool", tenant_connections=1), min_size=2, timeout=20, open=False
    )
    await pool.open()
    await pool.wait()
    with bulkhead.tenant("acme"):
        async with pool.connection():
            with pytest.raises(PsycopgResourceBusyError):
                await pool.getconn()
        first, second = await pool.getconn(), None
        with bulkhead.tenant("other"):
            second = await pool.getconn()
        with bulkhead.tenant("third"):
            for _ in range(3):
                waiting = asyncio.ensure_future(pool.getconn())
                await asyncio.sleep(0.02)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                if waiting.done() and not waiting.cancelled():
                    await pool.putconn(waiting.result())
        await pool.putconn(first)
        await pool.putconn(second)
        with bulkhead.tenant("third"):
            async with pool.connection() as connection:
                await connection.execute("SELECT 2")
    resource_of("apool").open()
    began = time.monotonic()
    with pytest.raises(PsycopgCircuitOpenError):
        async with pool.connection():
            pytest.fail("given")
    assert time.monotonic() - began < 5
    await pool.close()


@pytest.mark.resilience
def test_after_a_restart_of_the_server_the_pool_comes_back(pool: Callable[..., Any], eventually: Eventually) -> None:
    with PostgresServer() as server:
        kwargs = given(name="restarted", tickets=5, **QUICK)
        one = pool(conninfo=server.dsn, min_size=2, timeout=1.5, kwargs=kwargs)
        with one.connection() as connection:
            connection.execute("SELECT 2")
        server.kill()
        for _ in range(6):
            with pytest.raises(psycopg.OperationalError), one.connection() as connection:
                connection.execute("SELECT 2")
            if resource_of("restarted").state == "open":
                break
        assert resource_of("restarted").state == "open"
        server.restart()

        def works() -> bool:
            try:
                with one.connection() as connection:
                    return bool(connection.execute("SELECT 2").fetchone() == (2,))
            except psycopg.OperationalError:
                return False

        eventually(works, 20)
        eventually(lambda: works() and resource_of("restarted").state == "closed", 20)
        one.close()

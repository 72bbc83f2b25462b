"""Groups of rows: real round trips over loopback, with the adapters installed.

All clients live in one process and take turns, chunk by chunk: separate processes differ by 20 % here, and switching
the patches on and off makes the interpreter specialise its code again and again. So a plain client is one of a
subclass that has the driver's own functions back (and the others are of subclasses too), or one that was made while the
adapter was off. There are two of them: what they differ is the noise, and rows are compared to both.

A guard neither waits nor sends anything, so what it costs is CPU time of the calling thread, which a busy machine
blurs least. Both are printed: the difference in CPU time has to be within the budget, and the difference in wall-clock
time must not be above it for certain.
"""

from __future__ import annotations

import inspect
import time
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from table import Line, control_line, paired_lines
from timing import Subject, measure

import bulkhead

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters._patch import Driver

PLAIN, CONTROL, UNCONFIGURED, CONFIGURED = "plain", "plain again (control)", "unconfigured", "configured, with tenant"
OPTIONS: dict[str, Any] = {"tickets": 64, "tenant_tickets": 16}
CHUNK = 0.0015
ROWS = 500  # of a streamed result


def variant(kind: type, driver: Driver, *, patched: bool) -> Any:
    """A subclass of a patched class with the hot functions of its own: ours, or again the driver's.

    Each client of a group has such classes of its own, so that all of them disturb the interpreter's caches alike, and
    its own copies of these functions: the interpreter specialises code for the one class that it sees there in a
    program, and gives that up where several take turns.
    """
    hot = {
        attribute: _copy(ours) if patched else _copy(vars(ours)["__wrapped__"])
        for _, attribute, _, ours in driver._done  # nothing else knows them
        if isinstance(ours, FunctionType) and inspect.getattr_static(kind, attribute, None) is ours
    }
    return type(kind.__name__, (kind,), hot)


def _copy(function: FunctionType) -> FunctionType:
    """The function with code of its own; of a guarded one, what it guards too."""
    wrapped = vars(function).get("__wrapped__")
    cells = function.__closure__ or ()
    code = function.__code__.replace()
    own = tuple(CellType(_copy(wrapped)) if cell.cell_contents is wrapped else cell for cell in cells)
    copied = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, own)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def unprotected(driver: Driver, make: Callable[[], Any]) -> Any:
    """What `make` makes while the adapter is off."""
    driver.off = True
    try:
        return make()
    finally:
        driver.off = False


class Trips(Subject):
    """An operation by wall-clock time and by the CPU time of this thread, both divided by `per_call`."""

    def __init__(self, operation: Callable[[], object], per_call: int = 1) -> None:
        super().__init__(self._run, chunk=CHUNK / per_call, warm_up=1)
        self._operation, self._per_call = operation, per_call

    def _run(self, n: int) -> float:
        clock, cpu, operation = time.perf_counter, time.thread_time, self._operation
        used, began = cpu(), clock()
        for _ in range(n):
            operation()
        took, used = clock() - began, cpu() - used
        self.besides = used / self._per_call
        return took / self._per_call


def _lines(what: str, subjects: dict[str, Trips], rounds: int, shares: tuple[float, float], floor: float) -> list[Line]:
    wall = measure(subjects, rounds)
    both = wall, {name: subject.times_besides for name, subject in subjects.items()}
    return [
        control_line(f"{what}: {CONTROL}", both, PLAIN, CONTROL),
        *paired_lines(f"{what}: {UNCONFIGURED}", both, UNCONFIGURED, (PLAIN, CONTROL), shares[1], floor / 2),
        *paired_lines(f"{what}: {CONFIGURED}", both, CONFIGURED, (PLAIN, CONTROL), shares[0], floor),
    ]


def redis_get(rounds: int) -> list[Line]:
    """redis-py: GET."""
    import redis  # noqa: PLC0415  only for who asks for this group

    import adapters.redis as adapter  # noqa: PLC0415
    from bulkhead.testing import RedisServer  # noqa: PLC0415

    with RedisServer() as server:

        def client(*, patched: bool, **options: Any) -> Any:
            usual: Any = redis.Redis().get_retry()
            pool = redis.ConnectionPool(
                connection_class=variant(redis.Connection, adapter.driver, patched=patched),
                retry=variant(redis.retry.Retry, adapter.driver, patched=patched)(usual._backoff, usual._retries),
                host=server.host,
                port=server.port,
                **options,
            )
            return variant(redis.Redis, adapter.driver, patched=patched)(connection_pool=pool)

        clients = {
            PLAIN: client(patched=False),
            CONTROL: client(patched=False),
            UNCONFIGURED: client(patched=True),
            CONFIGURED: client(patched=True, **bulkhead.options(**OPTIONS)),
        }
        clients[PLAIN].set("k", "v")

        def get(one: Any) -> Trips:
            return Trips(lambda: one.get("k"))

        return _lines("redis GET", {name: get(one) for name, one in clients.items()}, rounds, (0.03, 0.015), 2000)


def psycopg_select(rounds: int) -> list[Line]:
    """psycopg: SELECT 1, and stream() per row."""
    import psycopg  # noqa: PLC0415

    import adapters.psycopg as adapter  # noqa: PLC0415
    from bulkhead.testing import PostgresServer  # noqa: PLC0415

    with PostgresServer() as server:

        def connect(*, patched: bool, **options: Any) -> Any:
            kind = variant(psycopg.Connection, adapter.driver, patched=patched)
            return kind.connect(server.dsn, autocommit=True, **options)

        connections = {
            PLAIN: connect(patched=False),
            CONTROL: connect(patched=False),
            UNCONFIGURED: connect(patched=True),
            CONFIGURED: connect(patched=True, **bulkhead.options(**OPTIONS)),
        }

        for one in connections.values():
            for _ in range(3):
                one.execute("SELECT 2")  # "SELECT 1" alone is a ping: one that is never refused brings no entry back

        def select(one: Any) -> Trips:
            cursor = one.cursor()
            return Trips(lambda: cursor.execute("SELECT 1").fetchone())

        def stream(one: Any) -> Trips:
            statement = f"SELECT generate_series(1, {ROWS})"

            def read() -> None:
                for _ in one.cursor().stream(statement):
                    pass

            return Trips(read, ROWS)

        selects = {name: select(one) for name, one in connections.items()}
        streams = {name: stream(one) for name, one in connections.items()}
        try:
            return [
                *_lines("psycopg SELECT 1", selects, rounds, (0.03, 0.015), 2000),
                *_lines("psycopg stream(), per row", streams, rounds, (0.15, 0.08), 0),
            ]
        finally:
            for one in connections.values():
                one.close()


def sqlalchemy_select(rounds: int) -> list[Line]:
    """SQLAlchemy over psycopg: a statement on a connection that is held; psycopg's adapter is installed too."""
    import psycopg  # noqa: PLC0415
    import sqlalchemy  # noqa: PLC0415

    import adapters.psycopg as below  # noqa: PLC0415
    import adapters.sqlalchemy as adapter  # noqa: PLC0415
    from bulkhead.testing import PostgresServer  # noqa: PLC0415

    adapter.apply()
    with PostgresServer() as server:

        def engine(*, patched: bool, **options: Any) -> Any:
            kind = variant(psycopg.Connection, below.driver, patched=patched)
            return sqlalchemy.create_engine(server.sqlalchemy_url, creator=lambda: kind.connect(server.dsn), **options)

        engines = {
            PLAIN: engine(patched=False),
            CONTROL: engine(patched=False),
            UNCONFIGURED: engine(patched=True),
            CONFIGURED: engine(patched=True, **bulkhead.options(**OPTIONS)),
        }
        held = {name: one.connect() for name, one in engines.items()}
        statement = sqlalchemy.text("SELECT 1")

        def select(one: Any) -> Trips:
            return Trips(lambda: one.execute(statement).scalar())

        try:
            subjects = {name: select(one) for name, one in held.items()}
            return _lines("SQLAlchemy SELECT 1", subjects, rounds, (0.03, 0.015), 2000)
        finally:
            for name, one in held.items():
                one.close()
                engines[name].dispose()


def httpx_get(rounds: int) -> list[Line]:
    """httpx: GET of a small page on a connection that is kept alive."""
    import httpx  # noqa: PLC0415

    import adapters.httpx as adapter  # noqa: PLC0415
    from bulkhead.testing import HttpServer  # noqa: PLC0415

    with HttpServer() as server:
        clients = {
            PLAIN: unprotected(adapter.driver, httpx.Client),
            CONTROL: unprotected(adapter.driver, httpx.Client),
            UNCONFIGURED: httpx.Client(),
            CONFIGURED: httpx.Client(**bulkhead.options(**OPTIONS)),
        }
        url = server.url + "/ok"

        def get(one: Any) -> Trips:
            return Trips(lambda: one.get(url))

        try:
            subjects = {name: get(one) for name, one in clients.items()}
            return _lines("httpx GET", subjects, rounds, (0.03, 0.015), 2000)
        finally:
            for one in clients.values():
                one.close()

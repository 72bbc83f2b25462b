"""One tenant sends slow queries faster than the database connections can serve them; four others send quick ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy
from sqlalchemy import exc

import bulkhead
from bulkhead.console.demo.load import WORKERS, arrivals, play
from bulkhead.console.demo.scene import NOISY, QUIET, Played, Story, chosen, figure, shared, times

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.console.demo.load import Arrival, Run
    from bulkhead.console.demo.scene import Watch
    from bulkhead.testing import PostgresServer

QUICK, SLOW = 60, 40  # requests a second
SLOW_QUERY = 0.4  # seconds
POOL = 10
POOL_TIMEOUT = 2.0
STATEMENT_TIMEOUT = 2.0
OPTIONS: dict[str, Any] = {
    "name": "database",
    "tenant_tickets": 3,
    "error_threshold": 5,
    "error_timeout": 2.0,
    "success_threshold": 2,
    "call_timeout": STATEMENT_TIMEOUT,
}
STORY = Story(
    title="One tenant floods the database",
    load=(
        f"{SLOW} slow queries a second ({SLOW_QUERY} s each) of one tenant",
        f"{QUICK} quick queries a second of {len(QUIET)} others",
        f"{WORKERS} threads, {POOL} connections",
        f"pool_timeout {POOL_TIMEOUT:g} s, statement_timeout {STATEMENT_TIMEOUT:g} s",
    ),
    client="sqlalchemy.create_engine",
    options=OPTIONS,
    trouble=None,
    watched="response to a quiet tenant",
)


def run_scene(server: PostgresServer, seconds: float, watch: Watch) -> Played:
    """Play it twice."""
    schedule = arrivals(QUICK, seconds, QUIET, "quick", seed=11) + arrivals(SLOW, seconds, [NOISY], "slow", seed=13)
    runs: list[Run] = []
    for protected in (False, True):
        given = bulkhead.options(**OPTIONS) if protected else {}
        engine = sqlalchemy.create_engine(
            server.sqlalchemy_url,
            pool_size=POOL,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT,
            connect_args={"options": f"-c statement_timeout={STATEMENT_TIMEOUT:g}s"},
            **given,
        )
        try:
            runs.append(
                play(
                    schedule,
                    seconds,
                    _application(engine),
                    {},
                    partial(watch, protected=protected),
                )
            )
        finally:
            engine.dispose()
            bulkhead.unregister("sql:database")
    pair = (runs[0], runs[1])
    quiet = chosen(pair, lambda one: one.arrival.tenant != NOISY)
    noisy = chosen(pair, lambda one: one.arrival.tenant == NOISY)
    served = chosen(pair, lambda one: one.arrival.tenant == NOISY and one.how == "answered" and one.ended < seconds)
    figures = [
        times("quiet tenants: response time", 0.50, quiet),
        times("quiet tenants: response time", 0.99, quiet),
        shared("quiet tenants: answered", "answered", quiet),
        figure("noisy tenant: answered a second", lambda some: len(some) / seconds, served, "rate"),
        shared("noisy tenant: answered", "answered", noisy),
        shared("noisy tenant: rejected at once", "rejected", noisy),
        figure("requests", len, chosen(pair, lambda one: one is not None), "count"),
    ]
    return Played(STORY, figures, *pair)


def _application(engine: sqlalchemy.Engine) -> Callable[[Arrival], str]:
    quick, slow = sqlalchemy.text("SELECT 1"), sqlalchemy.text(f"SELECT pg_sleep({SLOW_QUERY})")

    def serve(arrival: Arrival) -> str:
        with bulkhead.tenant(arrival.tenant):
            try:
                with engine.connect() as connection:
                    connection.execute(slow if arrival.kind == "slow" else quick)
            except exc.SQLAlchemyError as error:
                return "rejected" if bulkhead.rejection(error) else "failed"
            return "answered"

    return serve

"""Redis hangs in the middle of the run. The application has a fallback, and pages that do not use Redis at all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import bulkhead
from bulkhead.console.demo.load import WORKERS, arrivals, play
from bulkhead.console.demo.scene import QUIET, Played, Story, chosen, counted, figure, times

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.console.demo.load import Arrival, Run
    from bulkhead.console.demo.scene import Watch
    from bulkhead.testing import HttpServer, RedisServer

PRICED, PLAIN = 120, 40  # requests a second
TIMEOUT = 0.25  # seconds; much less than most services have, and redis-py's own is 5
HANGS = (0.25, 0.75)  # of the run
OPTIONS: dict[str, Any] = {
    "name": "cache",
    "tickets": 8,
    "error_threshold": 3,
    "error_timeout": 1.0,
    "success_threshold": 1,
    "half_open_resource_timeout": 0.05,
}
STORY = Story(
    title="Redis hangs, the application has a fallback",
    load=(
        f"Redis is stopped (SIGSTOP) from {HANGS[0]:.0%} to {HANGS[1]:.0%} of the run",
        f"{PRICED} requests a second that ask Redis, or else a price service",
        f"{PLAIN} requests a second that need neither",
        f"{WORKERS} threads; socket_timeout {TIMEOUT} s, no retries",
    ),
    client="redis.Redis",
    options=OPTIONS,
    trouble=(*HANGS, "Redis hangs"),
    watched="response",
)


def run_scene(cache_server: RedisServer, price_server: HttpServer, seconds: float, watch: Watch) -> Played:
    """Play it twice."""
    schedule = arrivals(PRICED, seconds, QUIET, "price", seed=7) + arrivals(PLAIN, seconds, QUIET, "plain", seed=8)
    cache_server.command("SET", "price", "42")
    begin, end = HANGS[0] * seconds, HANGS[1] * seconds
    runs: list[Run] = []
    for protected in (False, True):
        given = bulkhead.options(**OPTIONS) if protected else {}
        cache = redis.Redis(
            port=cache_server.port,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            **given,
        )
        prices = httpx.Client(base_url=price_server.url, trust_env=False)
        try:
            runs.append(
                play(
                    schedule,
                    seconds,
                    _application(cache, prices),
                    {begin: cache_server.pause, end: cache_server.resume},
                    partial(watch, protected=protected),
                )
            )
        finally:
            cache_server.resume()
            cache.close()
            prices.close()
            bulkhead.unregister("redis:cache")
    pair = (runs[0], runs[1])
    hung = chosen(pair, lambda one: one.arrival.kind == "price" and begin <= one.arrival.at < end)
    plain = chosen(pair, lambda one: one.arrival.kind == "plain" and begin <= one.arrival.at < end)
    ended = chosen(pair, lambda one: begin <= one.ended < end)
    everything = chosen(pair, lambda one: one is not None)
    figures = [
        times("while Redis hangs: response time", 0.50, hung),
        times("while Redis hangs: response time", 0.99, hung),
        times("requests that do not need Redis", 0.50, plain),
        times("requests that do not need Redis", 0.99, plain),
        figure("answered a second, whole application", lambda some: len(some) / (end - begin), ended, "rate"),
        counted("waited for the time-out, then fallback", "time-out", everything),
        counted("fallback at once", "rejected", everything),
        figure("requests", len, everything, "count"),
    ]
    return Played(STORY, figures, *pair)


def _application(cache: Any, prices: httpx.Client) -> Callable[[Arrival], str]:
    def serve(arrival: Arrival) -> str:
        if arrival.kind == "plain":
            return "answered"
        with bulkhead.tenant(arrival.tenant):
            try:
                cache.get("price")
            except redis.RedisError as error:
                prices.get("/ok")
                return "rejected" if bulkhead.rejection(error) else "time-out"
            return "answered"

    return serve

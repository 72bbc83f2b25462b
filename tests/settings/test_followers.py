"""Whoever follows the settings is told of each change, in order, and may do what it likes."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest

import bulkhead
from bulkhead import settings
from bulkhead.settings.live import live

if TYPE_CHECKING:
    from settings.conftest import Write

    from bulkhead.settings import Settings


def test_followers_are_told_of_changes_only(write: Write) -> None:
    told: list[object] = []
    write("[server]\nmax_concurrent_requests = 1\n")
    following = settings.on_change(lambda now: told.append(now.server.max_concurrent_requests))
    settings.load()
    settings.reload()
    write("[server]\nmax_concurrent_requests = 2\n")
    settings.reload()
    following.cancel()
    following.cancel()
    write("[server]\nmax_concurrent_requests = 3\n")
    settings.reload()
    assert told == [1, 2]


def test_a_follower_that_raises_stops_nobody(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []

    def broken(_: Settings) -> None:
        raise ZeroDivisionError

    settings.on_change(broken)
    settings.on_change(told.append)
    write("[server]\nmax_concurrent_requests = 1\n")
    settings.load()
    assert told == [settings.current()]
    assert "settings_follower_raised" in caplog.text


def test_a_bound_method_goes_with_its_object(write: Write) -> None:
    told: list[Settings] = []

    class Part:
        def follow(self, now: Settings) -> None:
            told.append(now)

    part, other = Part(), Part()
    for one in (part, other):
        settings.on_change(one.follow)
    del one, other
    gc.collect()
    write("[server]\nmax_concurrent_requests = 1\n")
    settings.load()
    assert len(told) == 1
    assert part is not None


def test_a_follower_may_reload_and_sees_changes_in_their_order(write: Write) -> None:
    told: list[int] = []

    def follow(now: Settings) -> None:
        told.append(now.server.max_concurrent_requests)
        if len(told) == 1:
            write("[server]\nmax_concurrent_requests = 2\n")
            settings.reload()

    settings.on_change(follow)
    settings.on_change(lambda now: told.append(10 * now.server.max_concurrent_requests))
    write("[server]\nmax_concurrent_requests = 1\n")
    settings.load()
    assert told == [1, 10, 2, 20]


def test_a_follower_that_ends_the_thread_is_told_once(write: Write) -> None:
    told: list[int] = []

    def follow(now: Settings) -> None:
        told.append(now.server.max_concurrent_requests)
        if len(told) == 1:
            raise SystemExit

    settings.on_change(follow)
    write("[server]\nmax_concurrent_requests = 1\n")
    with pytest.raises(SystemExit):
        settings.load()
    write("[server]\nmax_concurrent_requests = 2\n")
    settings.reload()
    assert told == [1, 2]


def test_many_reloads_at_once_readers_never_see_half_of_one_and_the_last_news_is_the_newest(write: Write) -> None:
    text = "[server]\nmax_concurrent_requests = {0}\n[tenancy]\nretry_after = {0}\n[resources.pair]\ntickets = {0}\n"
    write(text.format(1))
    settings.load()
    resource = bulkhead.resource("pair")
    told: list[Settings] = []
    settings.on_change(told.append)
    torn: list[Settings] = []
    over, writing = threading.Event(), threading.Lock()

    def look() -> None:
        while not over.is_set():
            now = settings.current()
            if not now.server.max_concurrent_requests == now.tenancy.retry_after == now.resources["pair"].tickets:
                torn.append(now)

    def change(first: int) -> None:
        for number in range(first, first + 15):
            with writing:
                write(text.format(number))
            settings.reload()

    threads = [threading.Thread(target=change, args=(100 * k,)) for k in (1, 2, 3)]
    reader = threading.Thread(target=look)
    for one in (reader, *threads):
        one.start()
    for one in threads:
        one.join()
    over.set()
    reader.join()
    last = settings.reload()
    assert torn == []
    assert told[-1] == last
    assert resource.limit == last.resources["pair"].tickets
    assert not live._news

"""The demonstration from start to end: servers, scenes, table, picture, options."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import platform
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console

import bulkhead
from bulkhead.console.demo import cache_scene, database_scene, report
from bulkhead.console.demo.live import View
from bulkhead.testing import HttpServer, PostgresServer, RedisServer, ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from bulkhead.console.demo.scene import Played


class Stopped(KeyboardInterrupt):
    """A signal ended the demonstration. `args` = (its number,)."""


def run(seconds: float, picture: Path | None, only: str | None) -> int:
    """Play the scenes; the exit status. 2: a server that is needed cannot be had here. Raises Stopped."""
    logging.getLogger("bulkhead").setLevel(logging.CRITICAL)  # the table says it
    console = Console(highlight=False, force_terminal=None if sys.stdout.isatty() else False)
    began = time.monotonic()
    bulkhead.install()
    gc.freeze()  # a full collection over all that is imported would stop every request of either run
    console.print(f"Python {platform.python_version()}, {os.cpu_count()} cores; private servers, ended with this run:")
    with _signals_stop(), contextlib.ExitStack() as stack:
        view = View(console)
        stack.callback(view.end)
        scenes: list[Callable[[], Played]] = []
        try:
            if only != "database":
                scenes.append(_cache(stack, console, view, seconds))
            if only != "cache":
                scenes.append(_database(stack, console, view, seconds))
        except ServerUnavailable as reason:
            console.print(f"the demonstration needs real servers: {reason}", style="red", markup=False)
            return 2
        played = [scene() for scene in scenes]
    console.print()
    console.print(report.table(played))
    console.print("\nWith protection: these options were added, nothing else was changed.", style="bold")
    for scene in played:
        console.print(report.options(scene.story), markup=False)
    if picture is not None:
        _draw(console, played, picture)
    console.print(f"took {time.monotonic() - began:.0f} s")
    return 0


def _cache(stack: contextlib.ExitStack, console: Console, view: View, seconds: float) -> Callable[[], Played]:
    cache, prices = stack.enter_context(RedisServer()), stack.enter_context(HttpServer())
    console.print(f"  Redis {cache.version} ({cache.binary}), HTTP service ({prices.version})", soft_wrap=True)

    def play() -> Played:
        view.scene(cache_scene.STORY)
        return cache_scene.run_scene(cache, prices, seconds, view.watch)

    return play


def _database(stack: contextlib.ExitStack, console: Console, view: View, seconds: float) -> Callable[[], Played]:
    database = stack.enter_context(PostgresServer())
    console.print(f"  PostgreSQL {database.version} ({database.binary})", soft_wrap=True)

    def play() -> Played:
        view.scene(database_scene.STORY)
        return database_scene.run_scene(database, seconds, view.watch)

    return play


def _draw(console: Console, played: list[Played], path: Path) -> None:
    try:
        from bulkhead.console.demo.picture import draw  # noqa: PLC0415  slow to load

        draw(played, path)
    except (ImportError, OSError) as error:
        console.print(f"\nno picture: {error}", markup=False, style="red", soft_wrap=True)
    else:
        console.print(f"\npicture: {path}", markup=False, soft_wrap=True)


@contextlib.contextmanager
def _signals_stop() -> Generator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Stopped once; further ones do not disturb the cleaning up, which is bounded."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, _frame: Any) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(number)

    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]  # nohup, background jobs
    before = {number: signal.signal(number, stop) for number in numbers if number not in ignored}
    try:
        yield
    except Stopped:
        raise  # the process is about to end; nothing may disturb that either
    except BaseException:
        _restore(before)
        raise
    _restore(before)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)

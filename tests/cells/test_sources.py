"""Where maps come from: only upwards, and never in a storm."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest
from cells.map_server import MapServer, events, made
from polling import until

from bulkhead.cells import (
    Cell,
    CellMap,
    CellRouter,
    FileSource,
    FixedSource,
    HttpSource,
    MapSource,
    MapVersion,
    load,
    publish,
)
from bulkhead.cells.map_files import toml_text
from bulkhead.cells.sources import as_source
from bulkhead.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import AsyncEventually, Eventually, RunPython

pytest.importorskip("httpx")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "cells.toml"
    put(file, made(1))
    return file


def put(file: Path, cell_map: CellMap) -> None:
    """As somebody who does not care for versions would."""
    file.write_text(toml_text(cell_map), encoding="utf-8")


def refused(source: MapSource) -> None:
    with pytest.raises(ConfigurationError):
        source.reload()


# ---- only upwards


def test_a_file_that_is_published_anew_comes_into_force(file: Path) -> None:
    source = FileSource(file)
    publish(made(1, cell="b"), file)
    now = source.refresh()
    assert now is source.current
    assert (now.stamp, now.router.cells[0].name) == (MapVersion(0, 2), "b")


def test_a_map_going_backwards_is_refused_logged_once_and_the_one_in_force_stays(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(file, made(5))
    source = FileSource(file, minimum_interval=0)
    before = source.current
    put(file, made(4, cell="b"))
    for _ in range(3):
        assert source.refresh() is before
    assert events(caplog) == ["cell_map_refused"]
    assert "map 0.4 is older than 0.5" in caplog.text
    with pytest.raises(ConfigurationError, match=r"map 0\.4 is older than 0\.5"):
        source.reload()
    put(file, made(6, cell="b"))
    assert source.refresh().version == 6


def test_an_old_content_comes_back_under_a_higher_version_and_a_restored_store_by_a_higher_epoch(file: Path) -> None:
    put(file, made(8, cell="b"))
    source = FileSource(file)
    assert publish(made(3, cell="a"), file).stamp == MapVersion(0, 9)
    assert source.reload().router.cells[0].name == "a"
    put(file, made(2))  # restored from a backup
    with pytest.raises(ConfigurationError, match="older"):
        source.reload()
    assert publish(load(file), file, new_epoch=True).stamp == MapVersion(1, 3)
    assert source.reload().stamp == MapVersion(1, 3)


def test_a_file_that_has_not_changed_is_not_parsed_again(file: Path) -> None:
    """A map of thousands of pins takes a tenth of a second, in which the process does nothing else."""
    source = FileSource(file)
    assert source._fetch() is source._fetch() is source.current
    put(file, made(2))
    assert source.reload().version == 2
    file.write_text("", encoding="utf-8")
    for _ in range(2):
        refused(source)


def test_another_content_under_the_same_version_is_refused(file: Path) -> None:
    source = FileSource(file)
    put(file, made(1, tenants={"acme": "moving"}))
    with pytest.raises(ConfigurationError, match="raise the version"):
        source.reload()
    assert source.current.tenants == {}


def test_a_look_up_that_began_on_an_older_map_never_overwrites_a_newer_one(tmp_path: Path) -> None:
    keep, old, began, go = tmp_path / "kept.toml", made(2), threading.Event(), threading.Event()
    answers = iter([made(1), old, made(3)])

    def fetch() -> CellMap:
        answer = next(answers)
        if answer is old:
            began.set()
            go.wait(30)
        return answer

    source = MapSource(fetch, "slow store", keep)
    late = threading.Thread(target=refused, args=(source,))
    late.start()
    began.wait(30)
    assert source.reload().version == 3
    go.set()
    late.join()
    assert source.current.version == load(keep).version == 3


def test_a_file_that_cannot_be_used_is_refused_and_the_map_in_force_stays(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = FileSource(file, minimum_interval=0)
    for text in ("version = 2", "version = [", ""):
        file.write_text(text, encoding="utf-8")
        assert source.refresh().version == 1
    file.unlink()
    assert source.refresh().version == 1
    assert events(caplog) == ["cell_map_refused"] * 3 + ["cell_map_unreachable"]
    for record in caplog.records:
        assert record.levelno == logging.ERROR
        assert "\n" not in record.getMessage()


# ---- never in a storm


def test_a_hundred_failures_cause_at_most_two_look_ups(server: MapServer, tmp_path: Path) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml", minimum_interval=60)
    asked = server.asked
    for _ in range(50):
        source.refresh(MapVersion(0, 2))
    threads = [threading.Thread(target=source.refresh, args=(MapVersion(0, 2),)) for _ in range(50)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert source.refreshes == server.asked - asked == 1


def test_all_who_ask_at_a_time_share_one_look_up_and_get_its_map(
    server: MapServer, tmp_path: Path, eventually: Eventually
) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml", timeout=30)
    server.gate.clear()
    server.publish(made(2))
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.append(source.refresh(MapVersion(0, 2)).version)) for _ in range(100)
    ]
    for one in threads:
        one.start()
    eventually(lambda: server.asked == 2)
    server.gate.set()
    for one in threads:
        one.join()
    assert seen == [2] * 100
    assert source.refreshes == 1


def test_a_map_that_is_new_enough_already_is_given_without_a_look_up(server: MapServer, tmp_path: Path) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml")
    assert source.refresh(MapVersion(0, 1)) is source.current
    assert (source.refreshes, server.asked) == (0, 1)


def test_whoever_joins_a_look_up_that_began_too_early_gets_another_one(
    server: MapServer, tmp_path: Path, eventually: Eventually
) -> None:
    """The look-up under way brings version 2; who needs 3, published meanwhile, looks once more."""
    source = HttpSource(server.url, tmp_path / "kept.toml", timeout=30)
    server.gate.clear()
    server.publish(made(2))
    early = threading.Thread(target=source.refresh)
    early.start()
    eventually(lambda: server.asked == 2)
    server.publish(made(3))
    seen: list[int] = []
    late = threading.Thread(target=lambda: seen.append(source.refresh(MapVersion(0, 3)).version))
    late.start()
    eventually(late.is_alive)
    server.gate.set()
    early.join()
    late.join()
    assert seen == [3]
    assert source.refreshes == 2


def test_fruitless_look_ups_are_further_and_further_apart_until_there_is_a_new_map(file: Path) -> None:
    source = FileSource(file, minimum_interval=0.05)
    pauses: list[float] = []
    for _ in range(4):
        before, began = source.refreshes, time.monotonic()
        while source.refreshes == before:
            source.refresh()
            assert time.monotonic() - began < 30
        pauses.append(source._look_ups.pause)
    assert pauses == [0.1, 0.2, 0.4, 0.8]
    publish(made(2), file)
    while source.refresh().version == 1:
        assert time.monotonic() - began < 30
    assert (source._look_ups.pause, source._look_ups.open_at) == (0.05, 0.0)


@pytest.mark.anyio
async def test_an_event_loop_goes_on_while_it_waits_for_a_look_up(
    server: MapServer, tmp_path: Path, aeventually: AsyncEventually
) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml", timeout=30)
    server.gate.clear()
    server.publish(made(2))
    tasks = [asyncio.create_task(source.arefresh(MapVersion(0, 2))) for _ in range(100)]
    await aeventually(lambda: server.asked == 2)
    for one in tasks[:30]:
        one.cancel()
    await asyncio.gather(*tasks[:30], return_exceptions=True)
    server.gate.set()
    assert {one.version for one in await asyncio.gather(*tasks[30:])} == {2}
    assert source.refreshes == 1


def test_an_interrupted_caller_does_not_lose_the_look_up_for_the_others(
    server: MapServer, tmp_path: Path, eventually: Eventually
) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml", timeout=30)
    server.gate.clear()
    server.publish(made(2))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(source.arefresh(), 0.05)

    asyncio.run(give_up())
    server.gate.set()
    assert eventually(lambda: source.current.version == 2)
    assert source.refreshes == 1


def test_a_look_up_that_never_ends_is_given_up_and_begun_anew() -> None:
    gate, asked = threading.Event(), list[int]()

    def fetch() -> CellMap:
        asked.append(1)
        if len(asked) == 2:
            gate.wait(30)
        return made(len(asked))

    source = MapSource(fetch, "hangs", minimum_interval=0, patience=0.05)
    assert source.refresh().version == 1
    until(lambda: source.refresh().version == 3)
    gate.set()
    assert len(asked) == 3


# ---- looking again and again


def test_a_started_source_follows_its_file_until_it_is_stopped(file: Path, eventually: Eventually) -> None:
    source = FileSource(file)
    with source.start(0.05), source.start(0.05):
        publish(made(2), file)
        assert eventually(lambda: source.current.version == 2)
    names = [one.name for one in threading.enumerate()]
    assert "bulkhead-cells" not in names
    publish(made(3), file)
    assert source.current.version == 2
    with pytest.raises(ConfigurationError, match="interval"):
        source.start(0)


def test_a_forked_child_follows_its_file_too(file: Path, run_python: RunPython) -> None:
    source = """
import os, sys, time
from bulkhead.cells import FileSource, load, publish
path = sys.argv[1]
source = FileSource(path, minimum_interval=0).start(0.05)
for one in (source._lock, source._look_ups._lock):
    one.acquire()  # another thread held it when this one forked
child = os.fork()
if child == 0:
    until = time.monotonic() + 20
    while source.current.version < 2 and time.monotonic() < until:
        time.sleep(0.01)
    os._exit(0 if source.current.version == source.refresh().version == 2 else 1)
for one in (source._lock, source._look_ups._lock):
    one.release()
publish(load(path), path)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(source, str(file)).returncode == 0


def test_a_router_or_a_map_is_a_source_that_never_changes() -> None:
    router = CellRouter([Cell("a", "http://a")])
    fixed = as_source(router)
    assert fixed.current.router is router
    assert fixed.refresh(MapVersion(9, 9)) is fixed.current
    assert asyncio.run(fixed.arefresh()) is fixed.current
    assert as_source(fixed) is fixed
    one = made(4)
    assert isinstance(as_source(one), FixedSource)
    assert as_source(one).current is one


def test_json_is_read_as_well(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    file.write_text(json.dumps({"version": 3, "cells": [{"name": "a", "url": "http://a"}]}), encoding="utf-8")
    assert FileSource(file).current == made(3)


@pytest.mark.parametrize(("without", "lost"), [("httpx", "CellTransport"), ("aiohttp", "CellProxy")])
def test_import_star_takes_what_can_be_imported(run_python: RunPython, without: str, lost: str) -> None:
    source = """
import sys
sys.modules[sys.argv[1]] = None
from bulkhead.cells import *
assert CellRouter and FileSource
assert sys.argv[2] not in globals()
"""
    assert run_python(source, without, lost).returncode == 0


def test_httpx_is_imported_only_by_who_asks_by_http_and_its_absence_is_told(run_python: RunPython) -> None:
    source = """
import sys, bulkhead.cells
from bulkhead.console import cells
assert "httpx" not in sys.modules and "rich" not in sys.modules
sys.modules["httpx"] = None
for use in (lambda: bulkhead.cells.HttpSource("http://h", None), lambda: bulkhead.cells.CellTransport):
    try:
        use()
    except bulkhead.ConfigurationError as error:
        assert 'pip install "bulkhead-toolkit[httpx]"' in str(error), error
    else:
        raise SystemExit("no error")
"""
    assert run_python(source).returncode == 0

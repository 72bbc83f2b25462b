"""watch(): a file that is written, replaced, made or removed is read again, until stop(); in forked children too."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from bulkhead import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Eventually, RunPython
    from settings.conftest import Write

pytest.importorskip("watchfiles")

SERVER = "[server]\nmax_concurrent_requests = {}\n"


def now() -> int:
    return settings.current().server.max_concurrent_requests


@pytest.fixture
def watching(write: Write) -> Iterator[settings.Watch]:
    """Settings of bulkhead.toml, which says 1, watched."""
    write(SERVER.format(1))
    settings.load()
    with settings.watch() as watch:
        yield watch
    assert not watch.alive


@pytest.mark.usefixtures("watching")
def test_a_file_that_is_replaced_or_written_in_place_is_read_again(write: Write, eventually: Eventually) -> None:
    path = write(SERVER.format(2))
    eventually(lambda: now() == 2, 30)
    path.write_text(SERVER.format(33), encoding="utf-8")
    eventually(lambda: now() == 33, 30)
    write(SERVER.format(4), "other.toml")
    write(SERVER.format(5))
    eventually(lambda: now() == 5, 30)


@pytest.mark.usefixtures("watching")
def test_a_bad_file_keeps_the_old_settings_is_told_once_and_the_next_good_one_is_read(
    write: Write, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    write("[servr]\n")
    eventually(lambda: "settings_refused" in caplog.text, 30)
    assert now() == 1
    write(SERVER.format(2))
    eventually(lambda: now() == 2, 30)
    assert sum(one.levelno == logging.ERROR for one in caplog.records) == 1


def test_a_file_that_is_made_later_is_found_and_one_that_is_gone_comes_back(
    write: Write, eventually: Eventually
) -> None:
    settings.load()
    with settings.watch():
        path = write(SERVER.format(2))
        eventually(lambda: now() == 2, 30)
        path.unlink()
        eventually(lambda: settings.current().file is None, 30)
        write(SERVER.format(3))
        eventually(lambda: now() == 3, 30)


def test_a_mounted_folder_whose_link_is_switched_is_followed(tmp_path: Path, eventually: Eventually) -> None:
    """As Kubernetes does it: bulkhead.toml -> ..data/bulkhead.toml, and ..data is replaced."""
    mount = tmp_path / "mount"
    for number in (1, 2):
        (mount / f"..{number}").mkdir(parents=True)
        (mount / f"..{number}" / "bulkhead.toml").write_text(SERVER.format(number), encoding="utf-8")
    (mount / "..data").symlink_to("..1")
    (mount / "bulkhead.toml").symlink_to("..data/bulkhead.toml")
    settings.load(mount / "bulkhead.toml")
    with settings.watch():
        (mount / "..new").symlink_to("..2")
        (mount / "..new").rename(mount / "..data")
        eventually(lambda: now() == 2, 30)


def test_a_load_of_another_file_is_followed_there(write: Write, tmp_path: Path, eventually: Eventually) -> None:
    write(SERVER.format(1))
    other = write(SERVER.format(2), "etc/other.toml")
    settings.load()
    with settings.watch():
        settings.load(other)
        write(SERVER.format(3), "etc/other.toml")
        eventually(lambda: now() == 3, 30)
        write(SERVER.format(4), "etc/other.toml")
        eventually(lambda: now() == 4, 30)


def test_a_change_before_the_watching_began_is_seen(write: Write, eventually: Eventually) -> None:
    write(SERVER.format(1))
    settings.load()
    write(SERVER.format(2))
    with settings.watch():
        eventually(lambda: now() == 2, 30)


def test_a_folder_that_is_gone_is_looked_for_again(
    write: Write, tmp_path: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(SERVER.format(1), "etc/bulkhead.toml")
    settings.load(path)
    path.unlink()
    path.parent.rmdir()
    with settings.watch():
        eventually(lambda: "settings_not_watched" in caplog.text, 30)
        write(SERVER.format(2), "etc/bulkhead.toml")
        eventually(lambda: now() == 2, 40)


def test_stop_ends_the_thread_and_nothing_is_read_any_more(watching: settings.Watch, write: Write) -> None:
    assert watching.alive
    watching.stop()
    watching.stop()
    assert [one for one in threading.enumerate() if one.name == "bulkhead-settings"] == []
    write(SERVER.format(2))
    assert now() == 1


def test_a_forked_child_watches_and_its_stop_is_its_own(write: Write, run_python: RunPython) -> None:
    path = write(SERVER.format(1))
    told = run_python(
        """
import os, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of fork in a process with threads
from pathlib import Path
from bulkhead import settings
path = Path(sys.argv[1])
settings.load(path)
watch = settings.watch()

def until(number):
    end = time.monotonic() + 20
    while settings.current().server.max_concurrent_requests != number:
        assert time.monotonic() < end, settings.current()
        time.sleep(0.01)

child = os.fork()
if child == 0:
    try:
        until(2)
        watch.stop()
        print("child", watch.alive, flush=True)
    finally:
        os._exit(0)
path.write_text("[server]\\nmax_concurrent_requests = 2\\n")
os.waitpid(child, 0)
until(2)
print("parent", watch.alive, flush=True)  # a child would write what is not written yet once more
watch.stop()
child = os.fork()
if child == 0:
    print("second child", watch.alive, flush=True)
    os._exit(0)
os.waitpid(child, 0)
""",
        str(path),
        seconds=55,
    )
    assert told.stdout.splitlines() == ["child False", "parent True", "second child False"]

"""The last good map: it serves where the source does not, also after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cells.map_server import MapServer, events, made

from bulkhead.cells import CellMap, FileSource, HttpSource, MapSource, MapUnavailableError, load
from bulkhead.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("httpx")


def test_without_a_map_to_begin_with_there_is_an_error(tmp_path: Path, server: MapServer) -> None:
    with pytest.raises(MapUnavailableError, match=r"none\.toml: cannot be read"):
        FileSource(tmp_path / "none.toml", tmp_path / "kept.toml")
    server.status = 500
    with pytest.raises(MapUnavailableError, match="answers 500"):
        HttpSource(server.url, tmp_path / "kept.toml")
    server.status, server.text = 200, "version = 1"
    with pytest.raises(ConfigurationError, match="cells are missing"):
        HttpSource(server.url, tmp_path / "kept.toml")
    assert list(tmp_path.iterdir()) == []


def test_known_fault_89b_with_the_source_down_tenants_are_routed_also_after_a_restart(
    server: MapServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep = tmp_path / "kept.toml"
    first = HttpSource(server.url, keep, minimum_interval=0)
    server.publish(made(7, cell="b"))
    assert first.refresh().version == 7
    server.status = 503
    assert first.refresh().router.for_tenant("acme").name == "b"
    again = HttpSource(server.url, keep, minimum_interval=0)
    assert again.current == first.current
    server.status, server.text = 200, "nonsense"
    assert HttpSource(server.url, keep).current == first.current
    assert set(events(caplog)) == {"cell_map_unreachable", "cell_map_refused"}
    server.publish(made(8))
    assert again.refresh().version == 8


def test_the_kept_map_serves_also_where_the_source_fails_as_nobody_foresaw(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep = tmp_path / "kept.toml"
    MapSource(lambda: made(7), "store", keep)

    def fetch() -> CellMap:
        raise OSError("password=hunter2")

    assert MapSource(fetch, "store", keep).current == made(7)
    assert events(caplog) == ["cell_map_unreachable"]
    assert "store: OSError" in caplog.text
    assert "hunter2" not in caplog.text
    with pytest.raises(OSError, match="hunter2"):
        MapSource(fetch, "store")


def test_the_source_is_stopped_for_good_and_the_kept_map_serves(server: MapServer, tmp_path: Path) -> None:
    keep = tmp_path / "kept.toml"
    HttpSource(server.url, keep)
    server.stop()
    source = HttpSource(server.url, keep)
    assert source.current == made(1)
    with pytest.raises(MapUnavailableError, match="ConnectError"):
        source.reload()


def test_after_a_restart_a_source_that_went_backwards_does_not_win_over_the_kept_map(
    server: MapServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.publish(made(9))
    HttpSource(server.url, tmp_path / "kept.toml")
    server.publish(made(3))
    assert HttpSource(server.url, tmp_path / "kept.toml").current.version == 9
    assert events(caplog) == ["cell_map_refused"]


def test_a_kept_map_that_is_broken_is_replaced(
    server: MapServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep = tmp_path / "kept.toml"
    keep.write_text("half a m", encoding="utf-8")
    assert HttpSource(server.url, keep).current.version == 1
    assert load(keep).version == 1
    assert events(caplog) == ["cell_map_copy_unreadable"]


def test_a_map_that_cannot_be_kept_serves_all_the_same(
    server: MapServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert HttpSource(server.url, tmp_path / "nowhere" / "kept.toml").current.version == 1
    assert events(caplog) == ["cell_map_not_kept"]

"""A map from a web server, asked again by its ETag; what else the server answers is given up in time, without secrets."""

from __future__ import annotations

import gzip
import time
from typing import TYPE_CHECKING

import pytest
from cells.map_server import MapServer, events, made

from bulkhead.cells import HttpSource, MapUnavailableError
from bulkhead.cells.map_files import toml_text
from bulkhead.errors import ConfigurationError
from bulkhead.testing import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("httpx")

OK = b"HTTP/1.1 200 OK\r\n"


def test_an_unchanged_map_is_not_sent_again(server: MapServer, tmp_path: Path) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml")
    for _ in range(3):
        source.reload()
    assert (server.asked, server.unchanged) == (4, 3)
    server.publish(made(2))
    assert source.reload().version == 2
    source.reload()
    assert (server.asked, server.unchanged) == (6, 4)


@pytest.mark.parametrize("status", [301, 404, 304])
def test_any_other_answer_is_no_map(server: MapServer, tmp_path: Path, status: int) -> None:
    server.status = status
    with pytest.raises(MapUnavailableError, match=f"answers {status}"):
        HttpSource(server.url, tmp_path / "kept.toml")
    assert server.asked == 1


def test_a_source_that_does_not_answer_is_given_up_in_time(server: MapServer, tmp_path: Path) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml", timeout=1)
    server.gate.clear()
    with pytest.raises(MapUnavailableError, match="ReadTimeout"):
        source.reload()


def test_a_source_that_cannot_be_reached_says_why(tmp_path: Path) -> None:
    with pytest.raises(MapUnavailableError, match=r"ConnectError: .*refused") as caught:
        HttpSource(f"http://reader:hunter2@127.0.0.1:{free_port()}/cells.toml", tmp_path / "kept.toml")
    assert "hunter" not in str(caught.value)


def test_neither_log_nor_error_shows_the_credentials_of_the_url(
    server: MapServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.url.replace("http://", "http://reader:hunter2@") + "?token=hunter3"
    source = HttpSource(url, tmp_path / "kept.toml", minimum_interval=0)
    server.status = 500
    source.refresh()
    with pytest.raises(MapUnavailableError) as caught:
        source.reload()
    for text in (caplog.text, str(caught.value), repr(source), source.label):
        assert "hunter" not in text
        assert "127.0.0.1" in text


@pytest.mark.parametrize("etag", ['W/"seven"', "seven", '"a", "b"'])
def test_any_etag_is_sent_back_as_it_came(server: MapServer, tmp_path: Path, etag: str) -> None:
    server.etag = etag
    source = HttpSource(server.url, tmp_path / "kept.toml")
    source.reload()
    assert (server.asked, server.unchanged) == (2, 1)


def test_an_etag_that_cannot_be_sent_back_costs_a_whole_answer_and_nothing_else(
    server: MapServer, tmp_path: Path
) -> None:
    server.etag = '"sieben-é"'
    source = HttpSource(server.url, tmp_path / "kept.toml")
    server.publish(made(2))
    assert source.reload().version == 2
    assert server.unchanged == 0


def test_an_answer_that_was_refused_is_refused_again_when_it_has_not_changed(server: MapServer, tmp_path: Path) -> None:
    server.publish(made(5))
    source = HttpSource(server.url, tmp_path / "kept.toml")
    server.publish(made(4))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="older"):
            source.reload()
    assert server.unchanged == 1


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (OK + b"Content-Length: 9\r\n\r\n<!DOCTYPE", "is neither TOML nor JSON"),
        (OK + b"Content-Length: 3\r\n\r\n\xff\xfe\x00", "is neither TOML nor JSON"),
        (OK + b"Content-Length: 1000\r\n\r\nversion = 2", "RemoteProtocolError"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nversion=2", "DecodingError"),
        (OK + b"\r\n" + toml_text(made(2)).encode()[:-5], "is neither TOML nor JSON"),
        (OK + b"\r\n" + toml_text(made(2)).encode().partition(b"[[")[0], "cells are missing"),
        (b"hello\r\n\r\n", "RemoteProtocolError"),
        (b"HTTP/1.1 206 Partial Content\r\n\r\nversion = 2", "answers 206"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "answers 204"),
    ],
    ids=["HTML", "no text", "short", "no gzip", "cut", "cut between lines", "no HTTP", "206", "204"],
)
def test_an_answer_that_is_no_map_changes_nothing(server: MapServer, tmp_path: Path, raw: bytes, says: str) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml")
    server.raw = raw
    with pytest.raises((MapUnavailableError, ConfigurationError), match=says):
        source.reload()
    assert source.current == made(1)


def test_an_answer_without_an_end_is_given_up(
    server: MapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml")
    monkeypatch.setattr("bulkhead.cells.http_source.LARGEST_BYTES", 100_000)
    zeros = gzip.compress(bytes(10_000_000))
    for head, body in ((b"", bytes(10_000_000)), (b"Content-Encoding: gzip\r\n", zeros)):
        server.raw = OK + head + b"\r\n" + body
        with pytest.raises(MapUnavailableError, match="answers more than 100000 bytes"):
            source.reload()


@pytest.mark.parametrize(
    "raw",
    [b"HTTP/1.1 200 OK\r\nX-A: ", OK + b"\r\n#", OK + b"Content-Length: 1000000\r\n\r\n#"],
    ids=["head", "body", "length"],
)
def test_a_source_that_sends_a_byte_now_and_then_is_given_up_in_time(
    server: MapServer, tmp_path: Path, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    source = HttpSource(server.url, tmp_path / "kept.toml", timeout=0.3, minimum_interval=0)
    server.raw, server.endless = raw, True
    began = time.monotonic()
    with pytest.raises(MapUnavailableError, match=r"the answer takes more than 0\.3 s"):
        source.reload()
    assert time.monotonic() - began < 3
    assert source.refresh() == made(1)
    assert events(caplog) == ["cell_map_unreachable"]


def test_options_that_httpx_does_not_have_are_told_also_where_a_kept_map_would_serve(
    server: MapServer, tmp_path: Path
) -> None:
    HttpSource(server.url, tmp_path / "kept.toml")
    with pytest.raises(ConfigurationError, match=r"on to httpx\.Client: .*'headrs'"):
        HttpSource(server.url, tmp_path / "kept.toml", headrs={})
    assert server.asked == 1

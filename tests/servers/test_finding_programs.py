"""Where the programs of real servers are looked for, in which order, and what is said when there is none."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
from stories import together

from bulkhead.testing import ServerUnavailable, binaries

if TYPE_CHECKING:
    from pathlib import Path


def program(path: Path, text: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with nothing: PATH is an empty folder, which is returned; so are Debian's folder and the cache."""
    for name in ("TOXIPROXY_URL", "TOXIPROXY_SERVER"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "DEBIAN_POSTGRESQL", tmp_path / "postgresql")
    monkeypatch.setattr(sys, "path", [])  # no wheels
    return path


def test_postgres_on_path_is_used_only_with_its_initdb_beside_it(bare: Path) -> None:
    lonely = program(bare / "postgres")
    with pytest.raises(ServerUnavailable, match="no postgres"):
        binaries.find_postgres()
    program(bare / "initdb")
    assert binaries.find_postgres() == lonely


def test_a_link_on_path_leads_to_the_folder_of_the_programs(bare: Path, tmp_path: Path) -> None:
    real = program(tmp_path / "there" / "postgres")
    program(tmp_path / "there" / "initdb")
    (bare / "postgres").symlink_to(real)
    assert binaries.find_postgres() == real


def test_the_newest_of_debians_versions_is_taken_by_number(bare: Path, tmp_path: Path) -> None:
    for version in ("9.6", "15", "17", "docs"):
        program(tmp_path / "postgresql" / version / "bin" / "postgres")
        program(tmp_path / "postgresql" / version / "bin" / "initdb")
    assert binaries.find_postgres() == tmp_path / "postgresql" / "17" / "bin" / "postgres"


def test_toxiproxy_is_taken_from_the_variable_then_path_then_the_cache(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = program(binaries.toxiproxy_cache() / "toxiproxy-server")
    assert binaries.find_toxiproxy(build=False) == cached
    on_path = program(bare / "toxiproxy-server")
    assert binaries.find_toxiproxy(build=False) == on_path
    named = program(tmp_path / "mine")
    monkeypatch.setenv("TOXIPROXY_SERVER", str(named))
    assert binaries.find_toxiproxy(build=False) == named
    named.unlink()
    with pytest.raises(ServerUnavailable, match="TOXIPROXY_SERVER names"):
        binaries.find_toxiproxy(build=False)


def test_what_keeps_toxiproxy_from_being_built_is_said(bare: Path) -> None:
    with pytest.raises(ServerUnavailable, match="and no Go"):
        binaries.find_toxiproxy(build=True)
    program(bare / "go", "echo 'module lookup disabled' >&2; exit 1")
    with pytest.raises(ServerUnavailable, match="can be built with Go"):
        binaries.find_toxiproxy(build=False)
    with pytest.raises(ServerUnavailable, match="module lookup disabled"):
        binaries.find_toxiproxy(build=True)


def test_toxiproxy_is_built_once_however_many_look_for_it(bare: Path) -> None:
    program(bare / "go", 'echo built >>"$GOBIN/../builds"; : >"$GOBIN/server"')
    found = together(*[partial(binaries.find_toxiproxy, build=True)] * 8)
    assert {*found} == {binaries.toxiproxy_cache() / "toxiproxy-server"}
    assert (binaries.toxiproxy_cache() / "builds").read_text() == "built\n"


def test_a_go_that_hangs_is_given_up(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "BUILD_SECONDS", 0.2)
    program(bare / "go", "exec /bin/sleep 30")
    with pytest.raises(ServerUnavailable, match="took more than"):
        binaries.find_toxiproxy(build=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_without_a_writable_home_the_cache_is_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    assert binaries.toxiproxy_cache().is_dir()
    assert f"bulkhead-toolkit-{os.geteuid()}" in binaries.toxiproxy_cache().parts


def test_a_version_is_read_from_what_the_program_says(tmp_path: Path) -> None:
    assert binaries.version_of(program(tmp_path / "a", "echo 'Redis server v=7.0.15 sha=0'")) == "7.0.15"
    assert binaries.version_of(program(tmp_path / "b", "echo 'postgres (PostgreSQL) 15.18'")) == "15.18"
    assert binaries.version_of(program(tmp_path / "c")) == "unknown"

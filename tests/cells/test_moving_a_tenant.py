"""docs/examples/move_tenant.py as it stands: a tenant of the FastAPI shop changes its cell, on real PostgreSQL, while it is used."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from polling import until

pytest.importorskip("aiohttp")
pytest.importorskip("psycopg")
import psycopg
from web.asgi_servers import serving
from web.test_example import EXAMPLES, LONG, SPADE, Shop

from bulkhead.cells.cell import Cell
from bulkhead.cells.map_files import load, toml_text
from bulkhead.cells.maps import CellMap
from bulkhead.cells.planning import publish
from bulkhead.cells.proxy import CellProxy
from bulkhead.cells.router import CellRouter
from bulkhead.cells.sources import FileSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bulkhead.testing import PostgresServer

ROOT = Path(__file__).parents[2]
MOVED, STAYS = "acme", "globex"
RANGE = 1_000_000_000  # ids of the second cell begin here


class Work:
    """A tenant's clients: they order and read, and come again after a 503."""

    def __init__(self, url: str, tenant: str) -> None:
        self._url, self._tenant, self._ended = url, tenant, threading.Event()
        self.made: list[int] = []
        self.refused: list[str] = []
        self.wrong: list[Any] = []
        self._threads = [
            threading.Thread(target=self._run, args=(step,)) for step in (self._order, self._order, self._read)
        ]
        for one in self._threads:
            one.start()

    def _run(self, step: Any) -> None:
        with httpx.Client(
            base_url=self._url, headers={"X-Tenant-ID": self._tenant}, timeout=LONG, trust_env=False
        ) as client:
            while not self._ended.is_set():
                try:
                    step(client)
                except Exception as error:  # noqa: BLE001  told below
                    self.wrong.append(error)
                    return

    def _answered(self, answer: httpx.Response, status: int) -> bool:
        if answer.status_code == 503:
            self.refused.append(answer.headers["retry-after"])
            self._ended.wait(0.02)  # sooner than asked: each is to see what happens meanwhile
        elif answer.status_code != status:
            self.wrong.append((answer.status_code, answer.text))
        return answer.status_code == status

    def _order(self, client: httpx.Client) -> None:
        answer = client.post("/orders", json=SPADE)
        if self._answered(answer, 201):
            self.made.append(answer.json()["id"])

    def _read(self, client: httpx.Client) -> None:
        known = set(self.made)
        answer = client.get("/orders", params={"limit": 100})
        if self._answered(answer, 200):
            seen = {order["id"] for order in answer.json()}
            if missing := {one for one in known if seen and one > min(seen)} - seen:
                self.wrong.append(("not seen", missing))

    def end(self) -> None:
        self._ended.set()
        for one in self._threads:
            one.join()


@pytest.fixture
def shops(postgres_server: PostgresServer) -> Iterator[dict[str, tuple[Shop, str]]]:
    """Two cells: a shop and the DSN of its database, each."""
    names = {"one": "shop_1", "two": "shop_2"}
    found: dict[str, tuple[Shop, str]] = {}
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        for database in names.values():
            connection.execute(f"CREATE DATABASE {database}")
        try:
            for name, database in names.items():
                shop = Shop(postgres_server.sqlalchemy_url.removesuffix("postgres") + database)
                found[name] = shop.start(), postgres_server.dsn.replace("dbname=postgres", f"dbname={database}")
            with psycopg.connect(found["two"][1]) as second:
                second.execute(f"ALTER SEQUENCE orders_id_seq RESTART {RANGE}")
            yield found
        finally:
            for shop, _ in found.values():
                shop.stop()
            for database in names.values():
                connection.execute(f"DROP DATABASE {database} WITH (FORCE)")


def freeze_another(file: Path) -> None:
    """What another operator does in the middle of a move."""
    until(lambda: load(file).tenants == {MOVED: "moving"})
    now = load(file)
    publish(now.replace(tenants={**now.tenants, "initech": "frozen"}), file)


@pytest.mark.no_cover
def test_a_tenant_moves_while_it_is_used_and_loses_nothing(shops: dict[str, tuple[Shop, str]], tmp_path: Path) -> None:
    """Known fault 86: 503 with Retry-After while it moves, for this tenant only, and nothing else ever."""
    file = tmp_path / "cells.toml"
    cells = [Cell(name, f"http://{shop.address}") for name, (shop, _) in shops.items()]
    file.write_text(toml_text(CellMap(CellRouter(cells, pins={MOVED: "one", STAYS: "one"}))), encoding="utf-8")
    with FileSource(file).start(0.05) as source, serving(CellProxy(source)) as router:
        moved, stays = Work(router.url, MOVED), Work(router.url, STAYS)
        try:
            until(lambda: (len(moved.made) > 20 and len(stays.made) > 20) or moved.wrong)
            other = threading.Thread(target=freeze_another, args=(file,))
            other.start()
            arguments = [str(file), MOVED, "two", "--from-dsn", shops["one"][1], "--to-dsn", shops["two"][1]]
            done = subprocess.run(
                [sys.executable, str(EXAMPLES / "move_tenant.py"), *arguments, "--router", router.url, "--longest", "0.5"],
                capture_output=True, text=True, check=False, timeout=50, env={"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            other.join()
            after = len(moved.made)
            until(lambda: len(moved.made) > after + 20 or moved.wrong)
        finally:
            moved.end()
            stays.end()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the old cell has none of its orders" in done.stdout
    assert not moved.wrong
    assert not stays.wrong
    assert moved.refused, "it was never told to come back"
    assert set(moved.refused) == {"1"}
    assert not stays.refused
    now = load(file)
    assert now.router.for_tenant(MOVED).name == "two"
    assert now.tenants == {"initech": "frozen"}, "what somebody else published meanwhile"
    there, here = (ids(dsn, MOVED) for _, dsn in shops.values())
    assert there == []
    assert sorted(moved.made) == here
    assert min(moved.made) < RANGE <= max(moved.made), "orders from before and after, with one id each"
    assert sorted(stays.made) == ids(shops["one"][1], STAYS)


@pytest.mark.parametrize(
    ("map_file", "cell", "says"),
    [
        ("none.toml", "two", "none.toml: cannot be read: No such file or directory\n"),
        ("cells.toml", "three", "there is no cell 'three' in cells.toml, which has one, two\n"),
    ],
)
def test_the_example_says_what_is_wrong_with_its_arguments(tmp_path: Path, map_file: str, cell: str, says: str) -> None:
    cells = [Cell("one", "http://one"), Cell("two", "http://two")]
    (tmp_path / "cells.toml").write_text(toml_text(CellMap(CellRouter(cells))), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "move_tenant.py"), map_file, MOVED, cell, "--from-dsn", "", "--to-dsn", ""],
        capture_output=True, text=True, check=False, timeout=50, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, says)


def ids(dsn: str, tenant: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM orders WHERE tenant = %s ORDER BY id", [tenant])]

"""docs/examples/fastapi_app.py as it stands, under uvicorn on a real PostgreSQL: a noisy tenant, and the others."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from scrapes import Scrape

from bulkhead.testing import ServerProcess

for needed in ("fastapi", "uvicorn", "httptools", "pydantic_settings", "sqlalchemy"):
    pytest.importorskip(needed)
psycopg = pytest.importorskip("psycopg")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Eventually

    from bulkhead.testing import PostgresServer

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LIMIT = 4  # of one tenant, in bulkhead.toml
LONG = 30.0  # seconds; never waited for unless a test is about to fail
SPADE = {"item": "a spade", "quantity": 2}


class Shop(ServerProcess):
    """The application on a database of its own, with a copy of its settings."""

    name = "shop"

    def __init__(self, url: str) -> None:
        super().__init__(Path(sys.executable), sys.version.split()[0])
        self._url = url

    @property
    def settings(self) -> Path:
        """The copy."""
        return self.folder / "bulkhead.toml"

    def _prepare(self) -> None:
        shutil.copy(EXAMPLES / "bulkhead.toml", self.settings)

    def _command(self) -> list[str]:
        env = shutil.which("env")
        assert env is not None
        given = [
            f"DATABASE_URL={self._url}",
            f"BULKHEAD_SETTINGS={self.settings}",
            "BULKHEAD_RESOURCES__SHOP__CALL_TIMEOUT=none",  # a test holds statements for as long as it takes
        ]
        uvicorn = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_app:app", "--port", str(self.port)]
        return [env, *given, str(self.binary), *uvicorn]

    def _ready(self) -> bool:
        try:
            return self.get("/health").status_code == 200
        except httpx.TransportError as error:
            raise OSError from error

    def get(self, path: str, tenant: str | None = None) -> httpx.Response:
        """GET, for a tenant or none."""
        headers = {} if tenant is None else {"X-Tenant-ID": tenant}
        return httpx.get(f"http://{self.address}{path}", headers=headers, timeout=LONG, trust_env=False)

    def order(self, tenant: str, **what: object) -> httpx.Response:
        """POST /orders."""
        url = f"http://{self.address}/orders"
        return httpx.post(url, json=SPADE | what, headers={"X-Tenant-ID": tenant}, timeout=LONG, trust_env=False)

    def refusals(self) -> float:
        """Requests that were refused at their tenant's limit, as /metrics has it."""
        scrape = Scrape(self.get("/metrics").text)
        return scrape.value("bulkhead_rejections_total", identifier="server:requests", reason="tenant") or 0.0


@pytest.fixture(scope="module")
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
        try:
            with Shop(postgres_server.sqlalchemy_url.removesuffix("postgres") + "shop") as running:
                yield running
        finally:
            connection.execute("DROP DATABASE shop WITH (FORCE)")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(10) as threads:
        yield threads


def test_each_tenant_sees_its_own_orders(shop: Shop) -> None:
    made = shop.order("acme")
    assert made.status_code == 201
    assert made.json() == SPADE | {"id": made.json()["id"]}
    assert shop.get("/orders", "acme").json() == [made.json()]
    assert shop.get("/orders", "globex").json() == []
    assert shop.get("/orders/report?days=1", "acme").json() == {"orders": 1, "items": 2}
    assert shop.order("acme", quantity=0).status_code == 422


def test_who_does_not_name_a_tenant_is_served_by_the_public_paths_only(shop: Shop) -> None:
    assert [shop.get(path).status_code for path in ("/orders", "/health", "/metrics")] == [400, 200, 200]


def test_a_tenant_that_fills_its_share_is_refused_and_the_others_are_not(
    shop: Shop, postgres_server: PostgresServer, pool: ThreadPoolExecutor, eventually: Eventually
) -> None:
    before = shop.refusals()
    with psycopg.connect(postgres_server.dsn.replace("dbname=postgres", "dbname=shop")) as lock:

        def waiting() -> int:
            with psycopg.connect(postgres_server.dsn) as connection:
                (found,) = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = 'shop' AND wait_event_type = 'Lock'"
                ).fetchone()
                return int(found)

        lock.execute("LOCK TABLE orders")
        noisy = [pool.submit(shop.get, "/orders", "noisy") for _ in range(LIMIT)]
        eventually(lambda: waiting() == LIMIT, LONG)
        refused = shop.get("/orders", "noisy")
        others = [pool.submit(shop.get, "/orders", tenant) for tenant in ("acme", "globex", "initech")]
        eventually(lambda: waiting() == LIMIT + len(others), LONG)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["reason"] == "requests"
        assert shop.refusals() == before + 1
    assert [one.result().status_code for one in [*noisy, *others]] == [200] * (LIMIT + len(others))
    assert shop.get("/orders", "noisy").status_code == 200


def test_an_upload_over_the_tenants_quota_is_refused(shop: Shop) -> None:
    """Within pydantic's limits or not: it does not come so far."""
    refused = shop.order("noisy", item="x" * 2_000_000)
    assert (refused.status_code, refused.json()["reason"]) == (503, "quota")
    assert shop.order("noisy").status_code == shop.order("acme").status_code == 201


def test_a_changed_limit_holds_after_sighup(shop: Shop, eventually: Eventually) -> None:
    def limit() -> float | None:
        return Scrape(shop.get("/metrics").text).value("bulkhead_tickets_limit", identifier="server:requests")

    assert limit() == 64
    text = shop.settings.read_text(encoding="utf-8")
    shop.settings.write_text(text.replace("max_concurrent_requests = 64", "max_concurrent_requests = 32"), "utf-8")
    os.kill(shop.pid, signal.SIGHUP)
    eventually(lambda: limit() == 32, LONG)

"""A job that a request enqueues is the request's tenant's: FastAPI with the middleware, as it is served."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import bulkhead
from bulkhead.jobs import AsyncRunner, job
from bulkhead.web.asgi import TenancyMiddleware

fastapi: Any = pytest.importorskip("fastapi")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


async def test_a_job_of_a_request_is_its_tenant_s_and_a_full_backlog_is_a_503() -> None:
    seen: list[tuple[str | None, int]] = []
    runner = AsyncRunner(workers=2, max_backlog_per_tenant=2)

    @job()
    async def charge(order: int) -> None:
        seen.append((bulkhead.current_tenant(), order))

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with runner:
            yield

    app = fastapi.FastAPI(lifespan=lifespan)
    app.add_middleware(TenancyMiddleware, source="header")

    @app.post("/orders/{order}")  # type: ignore[untyped-decorator, unused-ignore]
    async def ordered(order: int) -> dict[str, str]:
        return {"job": charge.enqueue(order)}

    @app.post("/plain/{order}")  # type: ignore[untyped-decorator, unused-ignore]
    def plain(order: int) -> dict[str, str]:
        return {"job": charge.enqueue(order)}

    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as web:
            for path, tenant in (("/orders/1", "acme"), ("/plain/2", "other")):
                assert (await web.post(path, headers={"X-Tenant-ID": tenant})).status_code == 200
            assert await runner.drain(timeout=20)
            runner.resume()
            runner.pause("acme")
            answers = [await web.post(f"/orders/{number}", headers={"X-Tenant-ID": "acme"}) for number in range(3)]
            other = await web.post("/orders/9", headers={"X-Tenant-ID": "other"})
            assert await runner.drain("other", timeout=20)
    assert sorted(seen, key=str) == [("acme", 1), ("other", 2), ("other", 9)]
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert answers[2].headers["retry-after"] == "1"
    assert "acme" not in answers[2].text
    assert other.status_code == 200

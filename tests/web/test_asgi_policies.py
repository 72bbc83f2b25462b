"""What becomes of requests without a tenant, or with one that cannot be, and of public paths."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from web.asgi_servers import Asked, Gate, ask, client, in_use, of, serving

import bulkhead
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
from fastapi import FastAPI

if TYPE_CHECKING:
    from conftest import AsyncEventually

pytestmark = pytest.mark.anyio


def nobody(scope: Any) -> str | None:
    """A source that finds nothing."""
    return None


def impossible(scope: Any) -> str | None:
    """A source that finds what no tenant can be; no HTTP client sends a control character."""
    return "a\x00b"


@pytest.mark.parametrize("source", [nobody, impossible])
@pytest.mark.parametrize(("policy", "server", "code"), [("share", 0, 503), ("allow", 2, 200), ("allow", 1, 503)])
async def test_requests_of_nobody_share_one_limit_or_have_only_that_of_the_server(
    source: Any, policy: Any, server: int, code: int, aeventually: AsyncEventually
) -> None:
    """Policy "share": held to the limit of one tenant together; "allow": to that of the server."""
    gate, app = Gate(), FastAPI()
    app.add_api_route("/wait", gate.wait)
    app.add_api_route("/", bulkhead.current_tenant)
    app.add_middleware(
        TenancyMiddleware,
        source=lambda scope: "acme" if scope["path"] == "/acme" else source(scope),
        missing=policy if source is nobody else "reject",
        invalid=policy if source is impossible else "reject",
        max_concurrent_requests=1,
        server_max_concurrent_requests=server,
    )
    with serving(app) as served:
        async with client(served) as web:
            held = asyncio.create_task(web.get("/wait"))
            await aeventually(lambda: gate.waiting == 1)
            assert in_use() == 1
            assert (await web.get("/")).status_code == code
            assert (await web.get("/acme")).status_code == (503 if server == 1 else 404)
            gate.open()
            assert (await held).status_code == 200
            assert (await web.get("/")).json() is None
    assert gate.tenants == [None]


@pytest.mark.parametrize(("source", "reason"), [(nobody, "tenant_missing"), (impossible, "tenant_invalid")])
async def test_requests_of_nobody_are_refused_otherwise(source: Any, reason: str) -> None:
    asked = await ask({}, source=source, max_concurrent_requests=1)
    assert asked.tenant == "not asked"
    assert asked.status == 400
    assert reason.encode() in asked.body
    assert "retry-after" not in asked.headers


@pytest.mark.parametrize("unknown", ["allow", "share", "reject"])
async def test_the_policies_of_the_edge_do_not_depend_on_that_for_guarded_calls(unknown: Any) -> None:
    bulkhead.unknown_tenant(unknown)
    for policy in ("share", "allow"):
        asked = await ask({}, source="header", missing=policy, max_concurrent_requests=1)
        assert (asked.tenant, asked.status) == (None, 200)


async def test_no_client_can_name_those_without_a_tenant() -> None:
    held: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/hold":
            held.append(await ask({"X-Tenant-ID": "(no tenant)"}, max_concurrent_requests=1, missing="share"))

    middleware = TenancyMiddleware(app, max_concurrent_requests=1, missing="share")
    await middleware({"type": "http", "path": "/hold", "headers": []}, Asked().receive, Asked().send)
    assert held[0].tenant == "(no tenant)"


async def test_public_paths_need_no_tenant_and_are_not_counted(aeventually: AsyncEventually) -> None:
    gate = Gate()
    app = FastAPI()
    app.add_middleware(
        TenancyMiddleware,
        max_concurrent_requests=1,
        server_max_concurrent_requests=1,
        public_paths=["/health", "/static/*", "/v?/open"],
    )

    @app.get("/{path:path}")
    async def any_path(path: str) -> str | None:
        if path == "health":
            await gate.wait()
        return bulkhead.current_tenant()

    with serving(app) as server:
        async with client(server) as web:
            held = [asyncio.create_task(web.get("/health", headers=of("acme"))) for _ in range(3)]
            await aeventually(lambda: gate.waiting == 3)
            assert in_use() == 0
            assert (await web.get("/static/a/b.css")).status_code == 200
            assert (await web.get("/v1/open?path=/x")).status_code == 200
            for other in ("/", "/healthy", "/health/", "/Health", "/x/static/a", "/v12/open", "/?/health"):
                assert (await web.get(other)).status_code == 400, other
            gate.open()
            assert [(await one).json() for one in held] == [None] * 3


@pytest.mark.parametrize(
    ("root_path", "path", "public"),
    [
        ("", "/health", True),
        ("/api", "/api/health", True),
        ("/api", "/health", True),
        ("/api", "/apihealth", False),
        ("/api", "/api", False),
        ("/api/health", "/api/health", False),
    ],
)
async def test_public_paths_are_those_below_the_place_where_the_application_is_mounted(
    root_path: str, path: str, public: object
) -> None:
    asked = await ask({}, path=path, scope={"root_path": root_path}, public_paths=["/health"])
    assert (asked.status == 200) is public

"""Setting the middleware up: what refuses to start, what is off, and settings that change while it runs."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from web.asgi_servers import Gate, client, in_use, of, serving

import bulkhead
from bulkhead import settings
from bulkhead.option_rows import rows_of
from bulkhead.web.asgi import TenancyMiddleware
from bulkhead.web.edge import SERVER_OPTION
from bulkhead.web.options import TenancyOptions

pytest.importorskip("fastapi")
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, Router

if TYPE_CHECKING:
    from conftest import AsyncEventually, RunPython

ROOT = Path(__file__).parents[2]


async def tell(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application."""
    await PlainTextResponse(str(bulkhead.current_tenant()))(scope, receive, send)


async def endpoint(_: Any) -> PlainTextResponse:
    """The same of Starlette."""
    return PlainTextResponse(str(bulkhead.current_tenant()))


# ---- around a finished application


class Own(FastAPI):
    """An application of the user's own class."""


@pytest.mark.parametrize(
    "finished",
    [Starlette, FastAPI, Own, lambda: CORSMiddleware(FastAPI())],
    ids=["Starlette", "FastAPI", "subclass", "in a middleware"],
)
def test_around_a_finished_application_it_refuses_and_says_what_to_write(finished: Any) -> None:
    with pytest.raises(bulkhead.ConfigurationError) as caught:
        TenancyMiddleware(finished(), max_concurrent_requests=1)
    says = str(caught.value)
    assert "answers an exception with 500 before" in says
    assert "app.add_middleware(TenancyMiddleware, …)" in says
    assert in_use() == 0


def test_a_django_application_is_told_of_its_own_middleware(run_python: RunPython) -> None:
    pytest.importorskip("django")
    source = """
from django.conf import settings
settings.configure()
from django.core.asgi import get_asgi_application
from bulkhead.web.asgi import TenancyMiddleware
try:
    TenancyMiddleware(get_asgi_application())
except ValueError as error:
    print(error)
"""
    assert "Put 'bulkhead.web.django.TenancyMiddleware' in MIDDLEWARE" in run_python(source).stdout


def test_uvicorn_does_not_start_with_a_finished_application_in_it(tmp_path: Path) -> None:
    (tmp_path / "wrongly.py").write_text(
        "from fastapi import FastAPI\n"
        "from bulkhead.web.asgi import TenancyMiddleware\n"
        "app = TenancyMiddleware(FastAPI(), max_concurrent_requests=1)\n"
    )
    command = [sys.executable, "-m", "uvicorn", "wrongly:app", "--port", "0", "--app-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode
    assert "app.add_middleware(TenancyMiddleware, …)" in done.stderr


@pytest.mark.anyio
@pytest.mark.parametrize(
    "app",
    [
        Starlette(
            routes=[Route("/", endpoint)],
            middleware=[Middleware(TenancyMiddleware, source="header"), Middleware(CORSMiddleware)],
        ),
        Starlette(
            routes=[
                Mount("/", Router([Route("/", endpoint)], middleware=[Middleware(TenancyMiddleware, enabled=True)]))
            ]
        ),
        TenancyMiddleware(Router([Route("/", endpoint)]), source="header"),
        TenancyMiddleware(tell, source="header"),
    ],
    ids=["in the stack", "in a mount", "around a router", "around a function"],
)
async def test_in_a_stack_around_a_router_and_around_any_other_application_it_works(app: Any) -> None:
    with serving(app, lifespan="auto") as server:
        async with client(server) as web:
            assert (await web.get("/", headers=of("acme"))).text == "acme"


def test_it_imports_no_framework(run_python: RunPython) -> None:
    source = """
import sys
from bulkhead.web.asgi import TenancyMiddleware
TenancyMiddleware(print, source="header", max_concurrent_requests=1)
print(sorted({"starlette", "fastapi", "django", "flask", "jwt", "pydantic", "uvicorn"} & sys.modules.keys()))
"""
    assert run_python(source).stdout == "[]\n"


# ---- options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sources": "header"}, "did you mean 'source'"),
        ({"source": "cookie"}, "source must be 'header', 'subdomain', 'session', 'jwt'"),
        ({"max_concurrent_requests": -1}, "max_concurrent_requests must be"),
        ({"max_concurrent_requests": {"acme": "many"}}, "max_concurrent_requests must be"),
        ({"max_concurrent_requests": True}, "max_concurrent_requests must be"),
        ({"max_websockets": 1.5}, "max_websockets must be"),
        ({"server_max_concurrent_requests": {"acme": 1}}, "server_max_concurrent_requests must be"),
        ({"missing": "ignore"}, "missing must be 'reject'"),
        ({"hold": "forever"}, "hold must be 'head' or 'body'"),
        ({"public_paths": ["health"]}, "public_paths must be"),
        ({"retry_after": 0}, "retry_after must be"),
        ({"jwt_key": "secret-key"}, "does nothing with source"),
    ],
)
def test_wrong_options_are_found_where_they_are_written(options: dict[str, Any], says: str) -> None:
    with pytest.raises(bulkhead.ConfigurationError, match=says) as caught:
        TenancyMiddleware(tell, **options)
    assert "secret-key" not in str(caught.value)


@pytest.mark.anyio
async def test_without_options_and_settings_it_does_nothing() -> None:
    with serving(TenancyMiddleware(tell), lifespan="off") as server:
        async with client(server) as web:
            assert (await web.get("/", headers=of("acme"))).text == "None"
    assert bulkhead.find("server:requests") is None


@pytest.mark.anyio
async def test_with_an_option_it_is_on_unless_that_says_otherwise() -> None:
    for options, told in (({"enabled": True}, "acme"), ({"enabled": False, "source": "header"}, "None")):
        with serving(TenancyMiddleware(tell, **options), lifespan="off") as server:
            async with client(server) as web:
                assert (await web.get("/", headers=of("acme"))).text == told


def test_the_limits_of_the_middleware_that_was_made_last_hold() -> None:
    """An application factory is called again and again in a test suite."""
    for number in (3, 5):
        TenancyMiddleware(tell, max_concurrent_requests=lambda tenant: 1, server_max_concurrent_requests=number)
        resource = bulkhead.find("server:requests")
        assert resource is not None
        assert resource.limit == number


def test_the_limits_can_be_explained_and_tried_in_shadow_mode() -> None:
    TenancyMiddleware(tell, max_concurrent_requests=1)
    resource = bulkhead.find("server:requests")
    assert resource is not None
    assert "server:requests" in resource.explain()
    resource.update(mode="shadow")
    TenancyMiddleware(tell, max_concurrent_requests=2)
    assert resource.mode == "shadow"


def test_the_options_that_type_checkers_know_are_those_there_are() -> None:
    assert set(TenancyOptions.__annotations__) == {*rows_of(settings.Tenancy), SERVER_OPTION}


def test_max_db_connections_may_stand_among_the_options_in_code(
    run_python: RunPython,
) -> None:
    """In a process of its own: the limit patches the drivers."""
    source = """
from bulkhead import connections
from bulkhead.web.asgi import TenancyMiddleware
TenancyMiddleware(print, source="header")
print(connections.limit("acme"))
middleware = TenancyMiddleware(print, max_db_connections={"acme": 3, "default": 2})
print(connections.limit("acme"), connections.limit("other"))
"""
    assert run_python(source).stdout == "None\n3 2\n"


# ---- settings


pydantic = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("pydantic_settings"), reason="pydantic-settings is not installed"
)


@pytest.mark.anyio
@pydantic
async def test_settings_switch_it_on_and_a_reload_changes_limits_while_it_runs(
    tmp_path: Path, aeventually: AsyncEventually
) -> None:
    gate = Gate()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/wait":
            await gate.wait()
        await tell(scope, receive, send)

    def write(text: str) -> None:
        (tmp_path / "bulkhead.toml").write_text(text)
        settings.reload()

    (tmp_path / "bulkhead.toml").write_text("[tenancy]\nenabled = false\n")
    settings.load()
    with serving(TenancyMiddleware(app), lifespan="off") as server:
        async with client(server) as web:

            async def status(tenant: str = "acme") -> int:
                return (await web.get("/", headers=of(tenant))).status_code

            assert await status("") == 200
            write("[tenancy]\nenabled = true\nmax_concurrent_requests = 1\n[server]\nmax_concurrent_requests = 50\n")
            assert await status("") == 400
            held = [asyncio.create_task(web.get("/wait", headers=of("acme")))]
            await aeventually(lambda: gate.waiting == 1)
            assert await status() == 503
            write(
                "[tenancy]\nenabled = true\n[tenancy.max_concurrent_requests]\nacme = 2\ndefault = 1\n"
                "[server]\nmax_concurrent_requests = 50\n"
            )
            assert await status() == 200
            held.append(asyncio.create_task(web.get("/wait", headers=of("acme"))))
            await aeventually(lambda: gate.waiting == 2)
            assert await status() == 503
            write("[tenancy]\nenabled = true\nmax_concurrent_requests = 9\n[server]\nmax_concurrent_requests = 2\n")
            assert await status("other") == 503
            write("[tenancy]\nenabled = true\n")
            assert await status() == 200
            assert bulkhead.find("server:requests") is None
            write("[tenancy]\nenabled = false\n")
            assert await status("") == 200
            gate.open()
            assert [one.status_code for one in await asyncio.gather(*held)] == [200, 200]


@pytest.mark.anyio
@pydantic
async def test_options_in_code_win_over_settings_and_go_on_after_a_reload(tmp_path: Path) -> None:
    (tmp_path / "bulkhead.toml").write_text('[tenancy]\nheader = "X-Org"\nmax_concurrent_requests = 1\n')
    settings.load()
    middleware = TenancyMiddleware(tell, max_concurrent_requests=7)
    resource = bulkhead.find("server:requests")
    assert resource is not None
    assert resource.options.tenant_tickets == 7
    with serving(middleware, lifespan="off") as server:
        async with client(server) as web:
            assert (await web.get("/", headers={"X-Org": "acme"})).text == "acme"
            (tmp_path / "bulkhead.toml").write_text('[tenancy]\nheader = "X-Tenant-ID"\nmax_concurrent_requests = 2\n')
            settings.reload()
            assert (await web.get("/", headers=of("acme"))).text == "acme"
    assert resource.options.tenant_tickets == 7


@pydantic
def test_settings_that_make_no_sense_with_the_options_in_code_keep_the_plan_and_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bulkhead.toml").write_text('[tenancy]\ndomain = "example.com"\n')
    settings.load()
    middleware = TenancyMiddleware(tell, source="subdomain")
    plan = middleware._edge.plan
    (tmp_path / "bulkhead.toml").write_text("[tenancy]\n")
    with caplog.at_level(logging.ERROR, "bulkhead"):
        settings.reload()
    assert middleware._edge.plan is plan
    assert "settings_not_followed" in caplog.text


@pydantic
def test_a_middleware_that_is_gone_follows_no_more(tmp_path: Path) -> None:
    import gc  # noqa: PLC0415
    import weakref  # noqa: PLC0415

    middleware = TenancyMiddleware(tell)
    edge = weakref.ref(middleware._edge)
    del middleware
    gc.collect()
    assert edge() is None

"""The WSGI edge in this process: what refuses to start, where the tenant comes from, and the rules of PEP 3333."""

from __future__ import annotations

import gc
import io
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.validate import validator

import httpx
import pytest

import bulkhead
from bulkhead import settings
from bulkhead.web import InvalidTenant
from bulkhead.web.wsgi import TenancyMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from conftest import RunPython

HEAD = [("Content-Type", "text/plain")]


def tell(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """A WSGI application."""
    start_response("200 OK", HEAD)
    return [str(bulkhead.current_tenant()).encode()]


def environ(path: str = "/", **headers: str) -> dict[str, Any]:
    """What a server makes of a request."""
    made = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "wsgi.input": io.BytesIO()}
    return {**made, **{f"HTTP_{name.upper()}": value for name, value in headers.items()}}


def ask(app: Callable[..., Iterable[bytes]], path: str = "/", **headers: str) -> tuple[int, str]:
    """As a server does it: call, iterate, close."""
    heads: list[str] = []
    body = app(environ(path, **headers), lambda status, _, exc_info=None: heads.append(status))
    try:
        text = b"".join(body).decode()
    finally:
        if hasattr(body, "close"):
            body.close()
    assert len(heads) == 1
    return int(heads[0][:3]), text


def begin(app: Callable[..., Iterable[bytes]]) -> Any:
    """The body of an answer, of which nothing is asked for yet."""
    return app(environ(x_tenant_id="acme"), lambda *_: None)


def in_use() -> int:
    """Permits that are out."""
    resource = bulkhead.find("server:requests")
    return 0 if resource is None else resource.in_use


# ---- what refuses to start


def test_around_flask_it_refuses_and_says_what_to_write() -> None:
    flask = pytest.importorskip("flask")
    proxy_fix = pytest.importorskip("werkzeug.middleware.proxy_fix").ProxyFix
    app = flask.Flask("finished")
    for finished in (app, app.wsgi_app, proxy_fix(app), proxy_fix(app.wsgi_app)):
        with pytest.raises(bulkhead.ConfigurationError, match=r"bulkhead\.web\.flask\.init_app\(app, …\)"):
            TenancyMiddleware(finished, max_concurrent_requests=1)
    assert bulkhead.find("server:requests") is None


def test_around_django_it_refuses_and_says_what_to_write(run_python: RunPython) -> None:
    pytest.importorskip("django")
    source = """
from django.conf import settings
settings.configure()
from django.core.wsgi import get_wsgi_application
from bulkhead.web.wsgi import TenancyMiddleware
try:
    TenancyMiddleware(get_wsgi_application())
except ValueError as error:
    print(error)
"""
    assert "Put 'bulkhead.web.django.TenancyMiddleware' in MIDDLEWARE" in run_python(source).stdout


async def _later(_: Any) -> str:
    return "acme"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"source": "session"}, "plain WSGI has no session. Pass a function"),
        ({"source": _later}, "this framework is synchronous"),
        ({"sources": "header"}, "did you mean 'source'"),
        ({"max_concurrent_requests": -1}, "max_concurrent_requests must be"),
        ({"source": "subdomain"}, "domain"),
    ],
)
def test_wrong_options_are_found_where_they_are_written(options: Any, says: str) -> None:
    with pytest.raises(bulkhead.ConfigurationError, match=says):
        TenancyMiddleware(tell, **options)


def test_it_imports_no_framework(run_python: RunPython) -> None:
    source = """
import sys
from bulkhead.web.wsgi import TenancyMiddleware
TenancyMiddleware(print, source="header", max_concurrent_requests=1)
print(sorted({"starlette", "django", "flask", "werkzeug", "jwt", "pydantic"} & sys.modules.keys()))
"""
    assert run_python(source).stdout == "[]\n"


def test_without_options_and_settings_it_does_nothing() -> None:
    assert ask(TenancyMiddleware(tell), x_tenant_id="acme") == (200, "None")
    assert ask(TenancyMiddleware(tell, enabled=False), x_tenant_id="acme") == (200, "None")
    assert bulkhead.find("server:requests") is None


def test_settings_switch_it_on_and_a_reload_is_followed(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_settings")
    file = tmp_path / "bulkhead.toml"
    file.write_text("[tenancy]\nenabled = false\n")
    settings.load()
    middleware = TenancyMiddleware(tell)
    assert ask(middleware) == (200, "None")
    file.write_text('[tenancy]\nenabled = true\nheader = "X-Org"\nmax_concurrent_requests = 3\n')
    settings.reload()
    assert ask(middleware)[0] == 400
    assert ask(middleware, x_org="acme") == (200, "acme")
    resource = bulkhead.find("server:requests")
    assert resource is not None
    assert resource.options.tenant_tickets == 3


# ---- where the tenant comes from


def test_the_tenant_comes_from_a_subdomain() -> None:
    middleware = TenancyMiddleware(tell, source="subdomain", domain="example.com")
    assert ask(middleware, host="acme.example.com:8000") == (200, "acme")
    assert ask(middleware, host="example.com")[0] == 400
    assert ask(middleware)[0] == 400
    assert ask(middleware, host="a.b.example.com")[0] == 400


def test_the_tenant_comes_from_a_token() -> None:
    jwt = pytest.importorskip("jwt")
    key = "k" * 32
    middleware = TenancyMiddleware(tell, source="jwt", jwt_key=key, jwt_algorithms=["HS256"], jwt_claim="org")
    token = jwt.encode({"org": "acme"}, key, "HS256")
    assert ask(middleware, authorization=f"Bearer {token}") == (200, "acme")
    assert ask(middleware, authorization=f"Bearer {token[:-4]}AAAA")[0] == 401
    assert ask(middleware)[0] == 401


def test_the_tenant_comes_from_a_function_that_is_given_the_environ() -> None:
    def of(environ: dict[str, Any]) -> str | None:
        if environ["PATH_INFO"] == "/invalid":
            raise InvalidTenant
        if environ["PATH_INFO"] == "/busy":
            raise bulkhead.CircuitOpenError("sql:accounts", None, 2.5)
        if environ["PATH_INFO"] == "/fault":
            raise LookupError
        return "acme" if environ["PATH_INFO"] == "/known" else None

    middleware = TenancyMiddleware(tell, source=of)
    assert ask(middleware, "/known") == (200, "acme")
    assert ask(middleware, "/unknown")[0] == 400
    assert ask(middleware, "/invalid")[0] == 400
    assert ask(middleware, "/busy")[0] == 503
    with pytest.raises(LookupError):
        ask(middleware, "/fault")


@pytest.mark.parametrize("policy", ["share", "allow"])
def test_requests_without_a_tenant_share_one_limit_or_have_none(policy: Any) -> None:
    statuses: list[int] = []

    def nested(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/":
            statuses.extend(ask(middleware, "/inner", **headers)[0] for headers in ({}, {"x_tenant_id": "acme"}))
        return tell(environ, start_response)

    middleware = TenancyMiddleware(nested, missing=policy, max_concurrent_requests=1)
    assert ask(middleware) == (200, "None")
    assert statuses == [503 if policy == "share" else 200, 200]


# ---- the context of the caller, and what nobody closes


def test_the_context_of_the_caller_is_as_it_was() -> None:
    def parts(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEAD)
        for number in range(2):
            assert bulkhead.current_tenant() == "acme"
            with bulkhead.tenant(f"inner-{number}"):
                yield b"part"
        raise LookupError

    middleware = TenancyMiddleware(parts, source="header")
    with bulkhead.tenant("caller"):
        body = begin(middleware)
        for _ in range(2):
            assert next(body) == b"part"
            assert bulkhead.current_tenant() == "caller"
            with bulkhead.tenant("in between"):
                assert bulkhead.current_tenant() == "in between"
        with pytest.raises(LookupError):
            next(body)
        assert bulkhead.current_tenant() == "caller"
    assert bulkhead.current_tenant() is None
    assert in_use() == 0


@pytest.mark.parametrize("hold", ["head", "body"])
def test_a_body_that_nobody_iterates_or_closes_gives_its_permit_back(hold: Any) -> None:
    def parts(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEAD)
        yield b"part"

    middleware = TenancyMiddleware(parts, max_concurrent_requests=1, hold=hold)
    body = begin(middleware)
    assert in_use() == 1  # its head is not ready: this generator did not begin
    del body
    gc.collect()
    assert in_use() == 0
    body = begin(middleware)
    body.close()
    body.close()
    assert in_use() == 0
    assert [*body] == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_program_passes_and_gives_everything_back(error: type[BaseException]) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        raise error

    with pytest.raises(error):
        ask(TenancyMiddleware(app, max_concurrent_requests=1), x_tenant_id="acme")
    assert in_use() == 0


def test_a_list_stays_one_so_that_servers_know_its_length() -> None:
    for hold, kept in (("head", True), ("body", False)):
        middleware = TenancyMiddleware(tell, max_concurrent_requests=1, hold=hold)  # type: ignore[arg-type]
        body = begin(middleware)
        assert isinstance(body, list) is kept
        assert in_use() == (0 if kept else 1)
        getattr(body, "close", list)()
        assert in_use() == 0


def test_a_rejection_in_the_first_step_of_a_body_is_the_only_head_that_a_server_gets() -> None:
    """A second one, with exc_info, gunicorn takes for more headers of the first."""

    def parts(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [*HEAD, ("Content-Length", "1000")])
        raise bulkhead.ResourceBusyError("sql:x", "acme", "tenant")
        yield b""

    status, text = ask(TenancyMiddleware(parts, source="header"), x_tenant_id="acme")
    assert (status, '"reason": "busy"' in text) == (503, True)


def test_start_response_without_exc_info_is_called_once() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", HEAD)
        with pytest.raises(AssertionError, match="called already"):
            start_response("404 Not Found", HEAD)
        return [b""]

    assert ask(TenancyMiddleware(app, source="header"), x_tenant_id="acme")[0] == 200


# ---- PEP 3333, as the standard library checks it


class Quiet(WSGIRequestHandler):
    """Writes no log."""

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def wsgiref(app: Any) -> Iterator[httpx.Client]:
    """The server of the standard library, in a thread, and a client of it."""
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", timeout=30, trust_env=False) as web:
                yield web
        finally:
            server.shutdown()
            thread.join(30)


@pytest.mark.parametrize("hold", ["head", "body"])
def test_server_and_application_see_nothing_that_the_standard_forbids(hold: Any) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/raise":
            raise bulkhead.ResourceBusyError("sql:x", "acme", "tenant")
        write = start_response(
            "200 OK", [("Content-Type", "text/plain"), ("X-Tenant", bulkhead.current_tenant() or "")]
        )
        if path == "/write":
            write(b"written, ")
        return iter([b"told"]) if path == "/iterator" else [b"told"]

    inner: Any = validator(app)
    with (
        warnings.catch_warnings(),
        wsgiref(validator(TenancyMiddleware(inner, max_concurrent_requests=1, hold=hold))) as web,
    ):
        headers = {"X-Tenant-ID": "acme"}
        for path, text in (("/", "told"), ("/iterator", "told"), ("/write", "written, told")):
            answer = web.get(path, headers=headers)
            assert (answer.status_code, answer.text, answer.headers["x-tenant"]) == (200, text, "acme"), path
        assert web.get("/raise", headers=headers).status_code == 503
        assert web.get("/").status_code == 400
        assert web.head("/raise", headers=headers).content == b""
    assert in_use() == 0

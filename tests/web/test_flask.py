"""Flask applications with `init_app`, under gunicorn."""

from __future__ import annotations

import base64
import importlib
from functools import partial
from typing import TYPE_CHECKING

import pytest
from web.served import KEY, client, is_refusal, new_gate, serving

pytest.importorskip("flask")
pytest.importorskip("itsdangerous")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Eventually
    from web.served import Application

APPLICATION = """
from gates import *
import bulkhead
bulkhead.install()
import flask
import sqlalchemy as sa
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from bulkhead.web.flask import init_app

SECRET = "password=hunter2"
engine = sa.create_engine(
    f"sqlite:///{HERE / 'shop.db'}", **bulkhead.options(name="shop", tickets=20, tenant_tickets=5),
)

def build(**options):
    app = flask.Flask("shop")
    app.secret_key = CONFIG["key"] if options.pop("has_session", True) else None
    init_app(app, max_concurrent_requests=1, max_db_connections=2, public_paths=["/login/*", "/public"], **options)

    def gate():
        return flask.request.args.get("gate", "")

    @app.before_request
    def before():
        note(gate(), "before_request")

    @app.after_request
    def after(response):
        note(gate(), "after_request")
        if flask.request.path == "/fails-after":
            raise bulkhead.ResourceBusyError("redis:sessions", "acme", "tenant")
        response.headers["X-After"] = str(bulkhead.current_tenant())
        return response

    @app.teardown_request
    def teardown(error):
        note(gate(), "teardown")

    @app.get("/")
    def hello():
        return f"{bulkhead.current_tenant()} {flask.request.environ['bulkhead.tenant']}"

    @app.get("/public")
    def public():
        return hello()

    @app.get("/async")
    async def later():
        await asyncio.sleep(0)
        return hello()

    @app.get("/login/<tenant>")
    def login(tenant):
        flask.session["tenant"] = tenant
        return "welcome"

    @app.get("/wait")
    def waits():
        wait(gate())
        return hello()

    @app.get("/stream")
    def stream():
        def parts():
            yield "begin\\n"
            wait(gate())
            note(gate(), f"path {flask.request.path}")
            yield "end\\n"
        return flask.Response(flask.stream_with_context(parts()))

    @app.get("/endless")
    def endless():
        here = gate()
        def parts():
            try:
                while True:
                    yield "x" * 100_000
            finally:
                note(here, "finally")
        return flask.Response(parts())

    @app.get("/file")
    def file():
        return flask.send_file(__file__)

    @app.get("/fails-after")
    def fails_after():
        return "never sent"

    @app.get("/query")
    def query():
        with engine.connect() as connection:
            return str(connection.execute(sa.text("SELECT 41 + 1")).scalar())

    @app.get("/nested")
    def nested():
        with engine.connect(), engine.connect(), engine.connect():
            return "never"

    @app.get("/refused-query")
    def refused_query():
        resource = bulkhead.find("sql:shop")
        resource.open("by the test")
        try:
            return query()
        finally:
            resource.close()

    @app.get("/refused-stream")
    def refused_stream():
        def parts():
            yield refused_query()
        return flask.Response(parts())

    @app.get("/wrapped")
    def wrapped():
        error = sa.exc.OperationalError("SELECT 1", {}, bulkhead.CircuitOpenError("sql:shop", "acme", 2.5))
        raise RuntimeError(SECRET) from error

    @app.get("/handled")
    def handled():
        raise LookupError(SECRET)

    @app.errorhandler(LookupError)
    def on_lookup(error):
        return "handled", 418

    @app.errorhandler(500)
    def on_error(error):
        return "my own page", 500

    @app.get("/error")
    def error():
        raise ValueError(SECRET)

    return app

def by_function(request):
    assert request is not None and flask.has_request_context()
    if request.args.get("refused"):
        raise bulkhead.CircuitOpenError("sql:accounts", None, 1.5)
    return request.headers.get("X-Org") or flask.session.get("org")

def told(environ, start_response):
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(state()).encode()]

application = DispatcherMiddleware(told, {
    "/header": build(source="header"),
    "/body": build(source="header", hold="body"),
    "/session": build(source="session"),
    "/session-body": build(source="session", hold="body"),
    "/no-session": build(source="session", has_session=False),
    "/jwt": build(source="jwt", jwt_key=CONFIG["key"], jwt_algorithms=["HS256"]),
    "/function": build(source=by_function),
    "/share": build(missing="share", invalid="share"),
    "/allow": build(missing="allow", invalid="allow"),
})
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Application]:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("jwt")
    with serving(APPLICATION, "gthread", key=KEY, state="/") as running:
        yield running


def token(tenant: str) -> str:
    """A token for this tenant."""
    jwt = importlib.import_module("jwt")
    return f"Bearer {jwt.encode({'tenant': tenant}, KEY, 'HS256')}"


@pytest.mark.parametrize(("at", "held"), [("/header", 0), ("/body", 1), ("/session", 0), ("/session-body", 1)])
def test_a_tenant_over_its_limit_gets_503_at_once_and_the_others_are_served(
    at: str, held: int, server: Application, eventually: Eventually
) -> None:
    with client(server, eventually, at) as noisy, client(server, eventually, at) as quiet:
        assert noisy.get("/login/noisy", None).status_code == quiet.get("/login/quiet", None).status_code == 200
        gate, streaming = new_gate(), new_gate()
        waits = noisy.begin(f"/wait?gate={gate}", "noisy")
        noisy.stands_at(gate)
        assert is_refusal(noisy.get("/", "noisy"))
        assert quiet.get("/", "quiet").text == "quiet quiet"
        server.open(gate)
        assert waits.result().text == "noisy noisy"
        noisy.everything_is_back()
        with noisy.web.stream("GET", f"/stream?gate={streaming}", headers={"X-Tenant-ID": "noisy"}) as response:
            lines = response.iter_lines()
            assert next(lines) == "begin"
            noisy.stands_at(streaming)
            assert server.in_use() == held
            assert noisy.get("/", "noisy").status_code == (503 if held else 200)
            server.open(streaming)
            assert [*lines] == ["end"]


@pytest.mark.parametrize("at", ["/header", "/session"])
def test_the_tenant_is_there_in_hooks_views_and_streams(at: str, server: Application, eventually: Eventually) -> None:
    gate = new_gate()
    server.open(gate)
    with client(server, eventually, at) as web:
        web.get("/login/acme", None)
        answer = web.get(f"/stream?gate={gate}")
        assert (answer.text, answer.headers["x-after"]) == ("begin\nend\n", "acme")
        assert web.get("/async").text == "acme acme"
        web.until(lambda: server.seen(gate)[-1].startswith("teardown"))
    steps = [step.partition(": ") for step in server.seen(gate)]
    assert {what for what, _, _ in steps} == {"before_request", "after_request", "waits", "path /stream", "teardown"}
    assert {tenant for _, _, tenant in steps} == {"acme"}


def _is_closed(server: Application, gate: str) -> bool:
    return server.seen(gate)[-1] == "finally: acme"


@pytest.mark.parametrize("at", ["/header", "/body", "/session-body"])
def test_a_client_that_goes_away_in_the_middle_gives_everything_back(
    at: str, server: Application, eventually: Eventually
) -> None:
    with client(server, eventually, at) as web:
        web.get("/login/acme", None)
        for _ in range(2):
            gate = new_gate()
            with web.web.stream("GET", f"/endless?gate={gate}", headers={"X-Tenant-ID": "acme"}) as response:
                assert next(response.iter_raw())
            web.until(partial(_is_closed, server, gate))
            web.everything_is_back()


def test_the_session_says_who_it_is_and_a_header_does_not(server: Application, eventually: Eventually) -> None:
    with client(server, eventually, "/session") as web:
        refused = web.get("/", "acme")
        assert (refused.status_code, refused.json()["reason"]) == (401, "tenant_missing")
        assert web.get("/nowhere", None).status_code == 401  # an unknown path tells nothing either
        web.get("/login/acme", None)
        assert web.get("/", "other").text == "acme acme"
        assert web.get("/nowhere", None).status_code == 404
        assert web.get("/public", None).text == "None None"


def test_without_a_session_it_says_what_is_missing(server: Application, eventually: Eventually) -> None:
    with client(server, eventually, "/no-session") as web:
        assert web.get("/").status_code == 500
        assert "Set app.secret_key, or the session_interface" in server.log.read_text()


def test_a_token_says_who_it_is(server: Application, eventually: Eventually) -> None:
    with client(server, eventually, "/jwt") as web:
        assert web.get("/", None, Authorization=token("acme")).text == "acme acme"
        forged = token("acme").rpartition(".")[0] + "." + base64.urlsafe_b64encode(b"x" * 32).decode().strip("=")
        for wrong in (forged, "Bearer nonsense", ""):
            refused = web.get("/", "acme", Authorization=wrong)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_a_function_is_given_the_request_inside_its_context(server: Application, eventually: Eventually) -> None:
    with client(server, eventually, "/function") as web:
        assert web.get("/", None, **{"X-Org": "acme"}).text == "acme acme"
        assert web.get("/", None).status_code == 400
        assert is_refusal(web.get("/?refused=1", None), "circuit_open", 2)


@pytest.mark.parametrize(("at", "status"), [("/share", 503), ("/allow", 200)])
def test_requests_without_a_tenant_share_one_limit_or_have_none(
    at: str, status: int, server: Application, eventually: Eventually
) -> None:
    gate = new_gate()
    with client(server, eventually, at) as web:
        waits = web.begin(f"/wait?gate={gate}", None)
        web.stands_at(gate)
        assert web.get("/", None).status_code == status
        assert web.get("/", "a\tb").status_code == status
        assert web.get("/", "acme").status_code == 200
        server.open(gate)
        assert waits.result().text == "None None"


@pytest.mark.parametrize("at", ["/header", "/body", "/session"])
def test_a_refused_query_becomes_503_as_problem_details(at: str, server: Application, eventually: Eventually) -> None:
    with client(server, eventually, at) as web:
        web.get("/login/acme", None)
        assert web.get("/query").text == "42"
        for path in ("/refused-query", "/refused-stream", "/wrapped", "/fails-after"):
            answer = web.get(path)
            seconds = {"/wrapped": 3, "/fails-after": 1}.get(path, int(answer.headers.get("retry-after", 0)))
            assert is_refusal(answer, "busy" if path == "/fails-after" else "circuit_open", seconds), path
            assert seconds >= 1
            for hidden in ("hunter2", "acme", "shop", "SELECT"):
                assert hidden not in answer.text
        text = web.get("/refused-query", Accept="text/html,*/*;q=0.1")
        assert text.headers["content-type"] == "text/plain; charset=utf-8"
        assert web.get("/query").text == "42"


def test_a_handler_with_more_connections_than_its_tenant_may_have_gets_503(
    server: Application, eventually: Eventually
) -> None:
    """Known fault 47: n such handlers would wait for each other."""
    with client(server, eventually, "/header") as web:
        for _ in range(3):
            assert is_refusal(web.get("/nested"), "busy")
        assert web.get("/query").text == "42"


def test_error_handlers_of_the_application_come_first(server: Application, eventually: Eventually) -> None:
    with client(server, eventually, "/header") as web:
        assert (web.get("/handled").status_code, web.get("/handled").text) == (418, "handled")
        assert (web.get("/error").status_code, web.get("/error").text) == (500, "my own page")


def test_files_are_sent(server: Application, eventually: Eventually) -> None:
    for at in ("/header", "/body"):
        with client(server, eventually, at) as web:
            assert "DispatcherMiddleware" in web.get("/file").text

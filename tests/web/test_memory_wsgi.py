"""Memory cells of WSGI requests, and bodies that are charged as they are read: plain WSGI and Flask, on gunicorn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from web.served import client, is_refusal, new_gate, serving
from web.uploads import PART, chunk, uploading, without_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Eventually
    from web.served import Application

QUOTA = 1_000_000

CELLS = """
from gates import *
from contextvars import copy_context
from bulkhead import request
from bulkhead.memory import cells, current_memory_cell
cells.configure(quota_bytes=CONFIG["quota"], charge_bodies=True)
HEAD = [("Content-Type", "text/plain")]

contexts = []  # as tasks, timers and pools have them

def tell():
    found = state()
    found["contexts"] = len(contexts)
    found["held"] = [key for one in contexts for key in one.run(request.current.get) if key]
    found["cells"] = {cell.tenant: [cell.tracked_bytes, cell.peak_bytes] for cell in cells}
    return found
"""

WSGI = (
    CELLS
    + """
from bulkhead.web.wsgi import TenancyMiddleware

def read(source):
    return len(source.read())

def readline(source):
    return len(source.readline())

def readlines(source):
    return sum(map(len, source.readlines()))

def lines(source):
    return sum(map(len, source))

def readinto(source):
    buffer = bytearray(10_000_000)
    return source.readinto(buffer)

def parts(source):
    return sum(iter(lambda: len(source.read(100_000)), 0))

WAYS = {"/" + one.__name__: one for one in (read, readline, readlines, lines, readinto, parts)}

def app(environ, start_response):
    path, gate = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
    if path == "/state":
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(tell()).encode()]
    if path == "/generator":
        return generator(environ, start_response)
    if path == "/steps":
        return steps(environ, start_response)
    try:
        size = WAYS.get(path, read)(environ["wsgi.input"])
        note(gate, f"read {size}")
        if path == "/waits":
            wait(gate)
    except bulkhead.QuotaExceeded:
        note(gate, "refused")
        if path == "/caught":
            start_response("413 Too Large", HEAD)
            return [b"my own answer"]
        if path == "/caught-in-parts":
            start_response("413 Too Large", HEAD)
            return iter([b"my own ", b"answer"])
        if path == "/written":
            write = start_response("413 Too Large", HEAD)
            write(b"my own answer")
            return []
        if path == "/other-error":
            raise ValueError("something else")
        raise
    start_response("200 OK", HEAD)
    return [str(size).encode()]

def generator(environ, start_response):
    start_response("200 OK", HEAD)
    yield str(len(environ["wsgi.input"].read())).encode()

def steps(environ, start_response):
    start_response("200 OK", HEAD)
    first = current_memory_cell()
    contexts.append(copy_context())
    for number in range(3):
        cells.evict(first.tenant)
        yield f"{current_memory_cell() is first} ".encode()

application = TenancyMiddleware(app, source="header", public_paths=["/state"])
"""
)

FLASK = (
    CELLS
    + """
import flask
from bulkhead.web.flask import init_app
from werkzeug.middleware.dispatcher import DispatcherMiddleware

def build(**options):
    app = flask.Flask("shop")
    init_app(app, public_paths=["/state"], **options)

    @app.post("/read")
    def read():
        return str(len(flask.request.get_data()))

    @app.post("/json")
    def posted():
        return str(len(flask.request.get_json(force=True)))

    @app.post("/form")
    def form():
        return str(len(flask.request.form["a"]))

    @app.post("/file")
    def file():
        return str(len(flask.request.files["a"].read()))

    @app.post("/caught")
    def caught():
        try:
            flask.request.get_data()
        except bulkhead.QuotaExceeded:
            return "my own answer", 413
        return "all"

    @app.post("/waits")
    def waits():
        flask.request.get_data()
        wait(flask.request.args["gate"])
        return "waited"

    @app.get("/steps")
    def steps():
        first = current_memory_cell()
        contexts.append(copy_context())
        def parts():
            for _ in range(3):
                cells.evict(first.tenant)
                yield f"{current_memory_cell() is first} "
        return flask.Response(parts())

    @app.get("/state")
    def state():
        return tell()


    @app.errorhandler(Exception)
    def any_error(error):
        return "an error page", 500

    return app

application = build(source="header")
application.wsgi_app = DispatcherMiddleware(application.wsgi_app, {
    "/function": build(source=lambda request: request.headers.get("X-Tenant-ID")),
})
"""
)


def nothing_is_held(server: Application) -> bool:
    """For requests that are over, by copies of their contexts, of which there are two."""
    found = server.state()
    assert found["contexts"] == 2
    return not found["held"]


@pytest.fixture(scope="module", params=["gthread", "sync"])
def server(request: pytest.FixtureRequest) -> Iterator[Application]:
    """Plain WSGI."""
    with serving(WSGI, request.param, quota=QUOTA) as running:
        yield running


@pytest.fixture(scope="module")
def flask() -> Iterator[Application]:
    """Flask; at /function the tenant is found inside the request context."""
    pytest.importorskip("flask")
    with serving(FLASK, "gthread", quota=QUOTA) as running:
        yield running


def cell(server: Application, tenant: str) -> tuple[int, int]:
    """Tracked bytes and their peak."""
    tracked, peak = server.state()["cells"].get(tenant, (0, 0))
    return tracked, peak


def refused(server: Application, path: str, tenant: str, length: int | None = None) -> int:
    """Upload until it is refused; how many bytes were sent by then."""
    found = without_end(server.port, path, tenant, length=length)
    assert found.status == 503, found
    assert found.headers["retry-after"] == "1"
    assert found.headers["connection"] == "close"
    assert json.loads(found.body)["reason"] == "quota"
    return found.sent


WAYS = ["/read", "/readline", "/readlines", "/lines", "/readinto", "/parts"]


@pytest.mark.parametrize("path", [*WAYS, "/caught", "/caught-in-parts", "/written", "/other-error", "/generator"])
def test_a_tenant_that_uploads_without_end_gets_503_and_the_others_are_served(
    path: str, server: Application, eventually: Eventually
) -> None:
    with client(server, eventually) as web:
        refused(server, path, "noisy")
        body = b"a line\n" * 1000
        wanted = {"/readline": "7", "/caught": "7000"}.get(path, "7000")
        for tenant in ("quiet", "noisy"):
            answer = web.web.post(path, content=body, headers={"X-Tenant-ID": tenant})
            assert (answer.status_code, answer.text) == (200, wanted)
        tracked, peak = eventually(lambda: cell(server, "noisy"))
        assert tracked == 0
        assert QUOTA - 200_000 < peak <= QUOTA


def test_a_body_whose_length_is_over_the_quota_is_refused_before_any_of_it_is_read(
    server: Application, eventually: Eventually
) -> None:
    gate = new_gate()
    with client(server, eventually):
        refused(server, f"/read?{gate}", "large", QUOTA + 1)
    assert server.seen(gate) == []
    assert cell(server, "large") == (0, 0)


def test_others_are_served_while_the_noisy_tenant_is_at_its_quota(eventually: Eventually) -> None:
    with serving(WSGI, "gthread", quota=QUOTA) as server, client(server, eventually) as web:
        gate = new_gate()
        body = b"a" * 900_000
        with uploading(server.port, f"/waits?{gate}", "noisy", length=len(body)) as connection:
            connection.sendall(body)
            web.stands_at(gate)
            assert cell(server, "noisy")[0] == len(body) + PART
            for tenant, status in (("noisy", 503), ("quiet", 200)):
                answer = web.web.post("/read", content=body, headers={"X-Tenant-ID": tenant})
                assert answer.status_code == status
                assert status == 200 or is_refusal(answer, "quota")
            server.open(gate)
            assert connection.recv(12) == b"HTTP/1.1 200"
        web.until(lambda: cell(server, "noisy")[0] == 0)


@pytest.mark.parametrize("path", ["/read", "/lines", "/generator"])
def test_an_upload_that_the_client_breaks_off_gives_every_byte_back(
    path: str, server: Application, eventually: Eventually
) -> None:
    tenant = f"breaks off {path}"
    with client(server, eventually) as web:
        with uploading(server.port, path, tenant) as connection:
            connection.sendall(chunk(b"a" * 200_000) + chunk(b"b" * 1000))
        # Not while it lasts: a worker that serves one at a time cannot be asked.
        web.until(lambda: cell(server, tenant)[1] > 60_000)
        web.until(lambda: cell(server, tenant)[0] == 0)


def test_a_request_keeps_its_cell_over_the_steps_of_its_body(server: Application, eventually: Eventually) -> None:
    with client(server, eventually) as web:
        assert [web.get("/steps").text for _ in range(2)] == ["True True True "] * 2
        web.until(lambda: nothing_is_held(server))


def test_a_connection_after_a_refusal_is_a_new_one_and_works(server: Application, eventually: Eventually) -> None:
    with client(server, eventually) as web:
        for _ in range(3):
            answer = web.web.post("/read", content=b"a" * (2 * QUOTA), headers={"X-Tenant-ID": "again"})
            assert is_refusal(answer, "quota")
            assert web.web.post("/read", content=b"abc", headers={"X-Tenant-ID": "again"}).text == "3"


# ---- Flask


@pytest.mark.parametrize("at", ["", "/function"])
def test_flask_refuses_a_body_over_the_quota_whatever_the_application_makes_of_it(
    at: str, flask: Application, eventually: Eventually
) -> None:
    with client(flask, eventually, at) as web:
        for path in ("/read", "/json", "/caught"):
            refused(flask, at + path, "noisy")
        refused(flask, f"{at}/read", "noisy", 2 * QUOTA)
        large = b"a" * (2 * QUOTA)
        for tenant in ("quiet", "noisy"):
            headers = {"X-Tenant-ID": tenant}
            for files in ({"a": b"b" * 100}, {"a": large}):
                answer = web.web.post("/file", files=files, headers=headers)
                assert (answer.status_code, answer.text if len(files["a"]) == 100 else "") in ((200, "100"), (503, ""))
            assert web.web.post("/form", data={"a": "b" * 100}, headers=headers).text == "100"
        web.until(lambda: cell(flask, "noisy")[0] == 0)
        assert cell(flask, "noisy")[1] <= QUOTA


@pytest.mark.parametrize("at", ["", "/function"])
def test_flask_holds_a_bodys_charge_until_the_request_is_over(
    at: str, flask: Application, eventually: Eventually
) -> None:
    gate, tenant = new_gate(), f"holds{at}"
    with client(flask, eventually, at) as web:
        with uploading(flask.port, f"{at}/waits?gate={gate}", tenant, length=1000) as connection:
            connection.sendall(b"a" * 1000)
            web.stands_at(gate)
            assert cell(flask, tenant)[0] >= 1000
            flask.open(gate)
            assert connection.recv(12) == b"HTTP/1.1 200"
        web.until(lambda: cell(flask, tenant)[0] == 0)
        assert web.get("/steps", tenant).text == "True True True "

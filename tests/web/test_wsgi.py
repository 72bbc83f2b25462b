"""TenancyMiddleware around plain WSGI applications, on gunicorn with threads and with its sync worker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import httpx
import pytest
from web.served import client, is_refusal, new_gate, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Eventually
    from web.served import Application

APPLICATION = """
from gates import *
import io, sys
from urllib.parse import parse_qs
from bulkhead.web.wsgi import TenancyMiddleware

SECRET = "password=hunter2"
HEAD = [("Content-Type", "text/plain")]

def busy():
    error = RuntimeError(SECRET)
    error.orig = bulkhead.ResourceBusyError("sql:payments", "acme", "tenant")
    return error

class Parts:
    def __init__(self, gate):
        self.gate, self.left = gate, [b"begin\\n", b"end\\n"]
    def __iter__(self):
        note(self.gate, "iter")
        return self
    def __next__(self):
        if not self.left:
            raise StopIteration
        note(self.gate, "next")
        if len(self.left) == 1 and self.gate:
            wait(self.gate)
        return self.left.pop(0)

class Closing(Parts):
    def close(self):
        note(self.gate, "close")

def app(environ, start_response):
    path, gate = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
    return globals()[path.strip("/") or "hello"](environ, start_response, gate)

tell = state

def state(environ, start_response, gate):
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(tell()).encode()]

def hello(environ, start_response, gate):
    start_response("200 OK", HEAD)
    return [f"{bulkhead.current_tenant()} {environ['bulkhead.tenant']}".encode()]

def waits(environ, start_response, gate):
    wait(gate)
    return hello(environ, start_response, gate)

def parts(environ, start_response, gate):
    start_response("200 OK", HEAD)
    return Parts(gate)

def closing(environ, start_response, gate):
    start_response("200 OK", HEAD)
    return Closing(gate)

def generator(environ, start_response, gate):
    note(gate, "begins")
    start_response("200 OK", HEAD)
    try:
        yield b"begin\\n"
        wait(gate)
        with bulkhead.tenant("inner"):
            note(gate, "block")
            yield b"middle\\n"
            note(gate, "block goes on")
            yield b"more\\n"
        note(gate, "after")
        yield b"end\\n"
    finally:
        note(gate, "finally")

def endless(environ, start_response, gate):
    start_response("200 OK", HEAD)
    try:
        while True:
            yield b"x" * 100_000
    finally:
        note(gate, "finally")

def writes(environ, start_response, gate):
    write = start_response("200 OK", HEAD)
    write(b"begin\\n")
    wait(gate)
    write(b"end\\n")
    return []

def again(environ, start_response, gate):
    start_response("200 OK", HEAD)
    try:
        raise LookupError(SECRET)
    except LookupError:
        start_response("404 Not Found", HEAD, sys.exc_info())
    return [b"not here"]

def again_late(environ, start_response, gate):
    start_response("200 OK", HEAD)(b"begin\\n")
    try:
        raise LookupError(SECRET)
    except LookupError:
        start_response("404 Not Found", HEAD, sys.exc_info())
    return [b"not here"]

def raises(environ, start_response, gate):
    raise busy()

def raises_after_start(environ, start_response, gate):
    start_response("200 OK", [*HEAD, ("X-Own", "1")])
    raise busy()

def raises_in_body(environ, start_response, gate):
    try:
        start_response("200 OK", [*HEAD, ("X-Own", "1")])
        raise busy()
        yield b""
    finally:
        note(gate, "finally")

def raises_late(environ, start_response, gate):
    start_response("200 OK", HEAD)
    yield b"begin\\n"
    raise busy()

def own_error(environ, start_response, gate):
    raise ValueError(SECRET)

def own_error_late(environ, start_response, gate):
    start_response("200 OK", HEAD)
    yield b"begin\\n"
    raise ValueError(SECRET)

class Named(io.BytesIO):
    def close(self):
        note(self.gate, "close")
        super().close()

def file(environ, start_response, gate):
    start_response("200 OK", HEAD)
    body = open(__file__, "rb")
    return environ["wsgi.file_wrapper"](body)

def file_in_memory(environ, start_response, gate):
    start_response("200 OK", HEAD)
    body = Named(b"in memory")
    body.gate = gate
    return environ["wsgi.file_wrapper"](body)

OPTIONS = {"max_concurrent_requests": 1, "public_paths": ["/state"]}
ways = {"body": TenancyMiddleware(app, hold="body", **OPTIONS), "": TenancyMiddleware(app, **OPTIONS)}
ways["twice"] = TenancyMiddleware(ways[""], **OPTIONS)

def application(environ, start_response):
    first, _, rest = environ["PATH_INFO"][1:].partition("/")
    if first not in ways or not first:
        return ways[""](environ, start_response)
    environ["SCRIPT_NAME"], environ["PATH_INFO"] = f"/{first}", f"/{rest}"
    return ways[first](environ, start_response)
"""


@pytest.fixture(scope="module")
def threads() -> Iterator[Application]:
    """Many requests at a time."""
    with serving(APPLICATION, "gthread") as running:
        yield running


@pytest.fixture(scope="module")
def single() -> Iterator[Application]:
    """One request at a time."""
    with serving(APPLICATION, "sync") as running:
        yield running


@pytest.fixture(params=["threads", "single"])
def server(request: pytest.FixtureRequest) -> Application:
    """Either."""
    found: Application = request.getfixturevalue(request.param)
    return found


def test_a_tenant_over_its_limit_gets_503_at_once_and_the_others_are_served(
    threads: Application, eventually: Eventually
) -> None:
    gate = new_gate()
    with client(threads, eventually) as web:
        held = web.begin(f"/waits?{gate}", "noisy")
        web.stands_at(gate)
        assert is_refusal(web.get("/", "noisy"))
        assert web.get("/", "quiet").text == "quiet quiet"
        text = web.get("/", "noisy", Accept="text/plain")
        assert (text.status_code, text.headers["content-type"]) == (503, "text/plain; charset=utf-8")
        threads.open(gate)
        assert held.result().text == "noisy noisy"
        web.everything_is_back()
        assert web.get("/", "noisy").status_code == 200
    assert threads.seen(gate) == ["waits: noisy"]


@pytest.mark.parametrize(("at", "held"), [("", 0), ("/body", 1)])
@pytest.mark.parametrize("path", ["/parts", "/closing", "/generator", "/writes"])
def test_a_body_holds_its_permit_to_the_head_or_to_its_end(
    at: str, held: int, path: str, threads: Application, eventually: Eventually
) -> None:
    gate = new_gate()
    with (
        client(threads, eventually, at) as web,
        web.web.stream("GET", f"{path}?{gate}", headers={"X-Tenant-ID": "acme"}) as response,
    ):
        body = response.iter_lines()
        assert next(body) == "begin"
        web.stands_at(gate)
        assert threads.in_use() == held
        assert web.get("/").status_code == (503 if held else 200)
        threads.open(gate)
        assert [*body][-1] == "end"
        web.everything_is_back()
        assert web.get("/").status_code == 200


def _is_closed(server: Application, gate: str) -> bool:
    return server.seen(gate)[-1:] in (["close: acme"], ["finally: acme"])


@pytest.mark.parametrize("at", ["", "/body"])
def test_the_tenant_is_there_in_each_step_of_a_body_and_in_its_close(
    at: str, server: Application, eventually: Eventually
) -> None:
    with client(server, eventually, at) as web:
        steps = {}
        for path in ("parts", "closing", "generator"):
            gate = new_gate()
            server.open(gate)
            assert web.get(f"/{path}?{gate}").text.startswith("begin\n")
            if path != "parts":
                web.until(partial(_is_closed, server, gate))
            steps[path] = server.seen(gate)
    assert steps["parts"] == ["iter: acme", "next: acme", "next: acme", "waits: acme"]
    assert steps["closing"] == [*steps["parts"], "close: acme"]
    assert steps["generator"] == [
        "begins: acme",
        "waits: acme",
        "block: inner",
        "block goes on: inner",  # a block of the application's own spans the steps
        "after: acme",
        "finally: acme",
    ]


@pytest.mark.parametrize("at", ["", "/body"])
def test_a_client_that_goes_away_in_the_middle_gives_everything_back(
    at: str, server: Application, eventually: Eventually
) -> None:
    with client(server, eventually, at) as web:
        for _ in range(3):
            gate = new_gate()
            with web.web.stream("GET", f"/endless?{gate}", headers={"X-Tenant-ID": "acme"}) as response:
                assert next(response.iter_raw())
            web.until(partial(_is_closed, server, gate))
            assert server.seen(gate) == ["finally: acme"]
        web.everything_is_back()
        assert web.get("/").status_code == 200


@pytest.mark.parametrize("at", ["", "/body"])
def test_each_permit_comes_back_once_whatever_happened_to_the_requests(
    at: str, threads: Application, eventually: Eventually
) -> None:
    """Successes, refusals, errors, broken bodies and hang-ups in a jumble. A permit given twice would be one more."""
    paths = ["/", "/raises", "/raises_in_body", "/raises_late", "/own_error", "/own_error_late", "/again", "/file"]
    with client(threads, eventually, at) as web:
        asked = [web.begin(path, "abc"[number % 3]) for number, path in enumerate(paths * 8)]
        for _ in range(5):
            with web.asking("/endless", "abc") as connection:
                assert connection.recv(1)
            with web.asking("/", "abc"):
                pass
        codes = {one.exception() is None and one.result().status_code for one in asked}
        assert codes <= {200, 404, 500, 503, False}
        web.everything_is_back()
        gate = new_gate()
        held = web.begin(f"/waits?{gate}", "a")
        web.stands_at(gate)
        assert [web.get("/", "a").status_code for _ in range(5)] == [503] * 5
        threads.open(gate)
        assert held.result().status_code == 200


@pytest.mark.parametrize("at", ["", "/body"])
def test_an_exception_before_the_first_byte_becomes_503_if_it_is_a_rejection(
    at: str, server: Application, eventually: Eventually
) -> None:
    """Also after start_response: until a part of the body is there the head can be another one."""
    gate = new_gate()
    with client(server, eventually, at) as web:
        for path in ("/raises", "/raises_after_start", f"/raises_in_body?{gate}"):
            answer = web.get(path)
            assert is_refusal(answer, "busy"), path
            assert "x-own" not in answer.headers
            for hidden in ("hunter2", "acme", "payments"):
                assert hidden not in answer.text
            head = web.web.head(path, headers={"X-Tenant-ID": "acme"})
            assert (head.status_code, head.headers["retry-after"], head.content) == (503, "1", b"")
        assert server.seen(gate) == ["finally: acme"] * 2


@pytest.mark.parametrize("at", ["", "/body"])
@pytest.mark.parametrize("path", ["/raises_late", "/own_error_late", "/again_late"])
def test_an_exception_after_the_first_byte_breaks_the_body_off_and_gives_everything_back(
    at: str, path: str, server: Application, eventually: Eventually
) -> None:
    with client(server, eventually, at) as web:
        for _ in range(2):
            with web.web.stream("GET", path, headers={"X-Tenant-ID": "acme"}) as response:
                assert response.status_code == 200
                with pytest.raises(httpx.RemoteProtocolError):
                    response.read()
            web.everything_is_back()


def test_other_exceptions_are_the_servers_and_give_everything_back(server: Application, eventually: Eventually) -> None:
    with client(server, eventually) as web:
        for _ in range(3):
            assert web.get("/own_error").status_code == 500
    assert server.totals("server:requests")["calls failure"] == 0  # what a handler raises says nothing about the limit


def test_start_response_may_be_called_again_with_exc_info(server: Application, eventually: Eventually) -> None:
    with client(server, eventually) as web:
        answer = web.get("/again")
        assert (answer.status_code, answer.text) == (404, "not here")


@pytest.mark.parametrize("at", ["", "/body"])
def test_files_are_sent_by_the_servers_file_wrapper(at: str, server: Application, eventually: Eventually) -> None:
    gate = new_gate()
    with client(server, eventually, at) as web:
        assert "class Named(io.BytesIO)" in web.get("/file").text
        web.everything_is_back()
        assert web.get(f"/file_in_memory?{gate}").text == "in memory"
        web.until(lambda: server.seen(gate) == ["close: acme"])


def test_two_middlewares_in_one_stack_count_a_request_once(server: Application, eventually: Eventually) -> None:
    with client(server, eventually, "/twice") as web:
        assert [web.get("/").text for _ in range(3)] == ["acme acme"] * 3


def test_a_request_without_a_tenant_is_refused_and_public_paths_need_none(
    server: Application, eventually: Eventually
) -> None:
    with client(server, eventually) as web:
        refused = web.get("/", None)
        assert (refused.status_code, refused.json()["reason"]) == (400, "tenant_missing")
        for name in ("a\tb", "x" * 257, b"\xff".decode("latin-1")):
            invalid = web.web.get("/", headers=[(b"X-Tenant-ID", name.encode("latin-1"))])
            assert (invalid.status_code, invalid.json()["reason"]) == (400, "tenant_invalid"), name
        assert web.get("/state", None).status_code == 200
        assert web.web.get("/", headers=[(b"X-Tenant-ID", "café".encode())]).content == "café café".encode()

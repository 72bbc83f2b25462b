"""Django with the middleware, under gunicorn (WSGI) and uvicorn (ASGI)."""

from __future__ import annotations

import base64
import importlib
import importlib.util
from functools import partial
from typing import TYPE_CHECKING

import httpx
import pytest
from web.django_project import APPLICATION
from web.served import KEY, client, is_refusal, new_gate, serving

pytest.importorskip("django")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Eventually
    from web.served import Application

    from bulkhead.testing import PostgresServer


@pytest.fixture(scope="module")
def postgres(request: pytest.FixtureRequest) -> tuple[str, int] | None:
    """Host and port, where there is one: only a few tests need it."""
    if importlib.util.find_spec("psycopg") is None:
        return None
    try:
        server: PostgresServer = request.getfixturevalue("postgres_server")
    except pytest.skip.Exception:
        return None
    return server.host, server.port


@pytest.fixture(scope="module", params=["gthread", "uvicorn"])
def server(request: pytest.FixtureRequest, postgres: tuple[str, int] | None) -> Iterator[Application]:
    """WSGI and ASGI."""
    pytest.importorskip("jwt")
    asynchronous = request.param == "uvicorn"
    with serving(
        APPLICATION, request.param, key=KEY, state="/", postgres=postgres, asynchronous=asynchronous
    ) as running:
        yield running


def views(server: Application, *names: str) -> list[str]:
    """Plain views on both, those of coroutine functions where these are not run in a loop of their own."""
    return [*names, *(f"a{name}" for name in names if server.kind == "uvicorn")]


def token(tenant: str) -> str:
    """A token for this tenant."""
    jwt = importlib.import_module("jwt")
    return f"Bearer {jwt.encode({'tenant': tenant}, KEY, 'HS256')}"


@pytest.mark.parametrize("at", ["/header", "/session"])
def test_a_tenant_over_its_limit_gets_503_at_once_and_the_others_are_served(
    at: str, server: Application, eventually: Eventually
) -> None:
    with client(server, eventually, at) as noisy, client(server, eventually, at) as quiet:
        assert noisy.get("/login/noisy", None).status_code == quiet.get("/login/quiet", None).status_code == 200
        for view in views(server, "waits"):
            gate = new_gate()
            held = noisy.begin(f"/{view}?gate={gate}", "noisy")
            noisy.stands_at(gate)
            assert is_refusal(noisy.get("/", "noisy"))
            assert quiet.get("/", "quiet").text == "quiet quiet"
            server.open(gate)
            assert held.result().text == "noisy noisy"
            noisy.everything_is_back()
            assert server.seen(gate)[-2:] == ["waits: noisy", "outside, after: None"]
    assert "Service Unavailable" not in (server.folder / "django.log").read_text()  # would be mailed to the ADMINS


@pytest.mark.parametrize(("at", "held"), [("/header", 0), ("/body", 1)])
def test_a_stream_works_for_its_tenant_and_holds_its_permit_to_the_head_or_to_its_end(
    at: str, held: int, server: Application, eventually: Eventually
) -> None:
    with client(server, eventually, at) as web:
        # Django reads a plain generator to its end before it sends anything under ASGI.
        view, gate = "astream" if server.kind == "uvicorn" else "stream", new_gate()
        with web.web.stream("GET", f"/{view}?gate={gate}", headers={"X-Tenant-ID": "acme"}) as response:
            lines = response.iter_lines()
            assert next(lines) == "begin"
            web.stands_at(gate)
            assert server.in_use() == held
            assert web.get("/").status_code == (503 if held else 200)
            server.open(gate)
            assert [*lines] == ["middle", "end"]
        web.everything_is_back()
        assert server.seen(gate)[-3:] == ["waits: acme", "block goes on: inner", "finally: acme"]


def test_a_plain_generator_works_for_its_tenant_on_both(server: Application, eventually: Eventually) -> None:
    gate = new_gate()
    server.open(gate)
    with client(server, eventually, "/header") as web:
        assert web.get(f"/stream?gate={gate}").text == "begin\nmiddle\nend\n"
        assert server.seen(gate)[-3:] == ["waits: acme", "block goes on: inner", "finally: acme"]


def _is_closed(server: Application, gate: str) -> bool:
    return server.seen(gate)[-1:] == ["finally: acme"]


@pytest.mark.parametrize("at", ["/header", "/body"])
def test_a_client_that_goes_away_in_the_middle_gives_everything_back(
    at: str, server: Application, eventually: Eventually
) -> None:
    view = "aendless" if server.kind == "uvicorn" else "endless"
    with client(server, eventually, at) as web:
        for _ in range(2):
            gate = new_gate()
            with web.web.stream("GET", f"/{view}?gate={gate}", headers={"X-Tenant-ID": "acme"}) as response:
                assert next(response.iter_raw())
            web.until(partial(_is_closed, server, gate))
            web.everything_is_back()


def test_the_tenant_is_there_in_middlewares_inside_and_not_outside(server: Application, eventually: Eventually) -> None:
    gate = new_gate()
    with client(server, eventually, "/header") as web:
        for view in ["", "ahello"]:
            assert web.get(f"/{view}?gate={gate}").text == "acme acme"
    inside = ["inside: acme"] if server.kind == "gthread" else []
    assert server.seen(gate) == ["outside: None", *inside, "outside, after: None"] * 2


# ---- where the tenant comes from


def test_the_session_says_who_it_is_and_a_header_does_not(server: Application, eventually: Eventually) -> None:
    """The session is in a database, which under ASGI may be asked in a thread only."""
    with client(server, eventually, "/session") as web:
        refused = web.get("/", "acme")
        assert (refused.status_code, refused.json()["reason"]) == (401, "tenant_missing")
        web.get("/login/acme", None)
        assert web.get("/", "other").text == "acme acme"
        assert web.get("/public", None).text == "None None"


def test_a_token_says_who_it_is(server: Application, eventually: Eventually) -> None:
    with client(server, eventually, "/jwt") as web:
        assert web.get("/", None, Authorization=token("acme")).text == "acme acme"
        forged = token("acme").rpartition(".")[0] + "." + base64.urlsafe_b64encode(b"x" * 32).decode().strip("=")
        for wrong in (forged, "Bearer nonsense", ""):
            refused = web.get("/", "acme", Authorization=wrong)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_a_subdomain_names_it(server: Application, eventually: Eventually) -> None:
    with client(server, eventually, "/subdomain") as web:
        assert web.get("/", None, Host="acme.example.com").text == "acme acme"
        assert web.get("/", None, Host="example.com").status_code == 400
        assert web.get("/", None, Host="not a host").status_code == 400


def test_a_function_named_in_the_settings_is_given_the_request(server: Application, eventually: Eventually) -> None:
    ways = ["/function", "/coroutine"] if server.kind == "uvicorn" else ["/function"]
    for at in ways:
        with client(server, eventually, at) as web:
            assert web.get("/", None, **{"X-Org": "acme"}).text == "acme acme"
            assert is_refusal(web.get("/?refused=1", None), "circuit_open", 2)
            if at == "/function":
                assert web.get("/", None).status_code == 400  # it asked the session


@pytest.mark.parametrize(("at", "status"), [("/share", 503), ("/allow", 200)])
def test_requests_without_a_tenant_share_one_limit_or_have_none(
    at: str, status: int, server: Application, eventually: Eventually
) -> None:
    gate = new_gate()
    with client(server, eventually, at) as web:
        held = web.begin(f"/waits?gate={gate}", None)
        web.stands_at(gate)
        assert web.get("/", None).status_code == status
        assert web.get("/", "a\tb").status_code == status
        assert web.get("/", "acme").status_code == 200
        server.open(gate)
        assert held.result().text == "None None"


# ---- exceptions


@pytest.mark.parametrize("at", ["/header", "/body"])
def test_a_rejection_becomes_503_wherever_it_was_raised(at: str, server: Application, eventually: Eventually) -> None:
    with client(server, eventually, at) as web:
        expected = dict.fromkeys(views(server, "wrapped"), ("circuit_open", 3))
        if server.kind == "gthread":
            expected |= {"middleware": ("busy", 1), "process-view": ("circuit_open", 3)}
        for view, (reason, seconds) in expected.items():
            answer = web.get(f"/{view}")
            assert is_refusal(answer, reason, seconds), view
            for hidden in ("hunter2", "acme", "shop", "users"):
                assert hidden not in answer.text
        assert web.get("/not-found").status_code == 404  # after a rejection the view decided otherwise
        if server.kind == "gthread":
            assert web.get("/mended").text == "a page of the shop"  # and so did a middleware
        text = web.get("/wrapped", Accept="text/html,*/*;q=0.1")
        assert text.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_refused_query_is_found_under_djangos_own_error(
    server: Application, postgres: tuple[str, int] | None, eventually: Eventually
) -> None:
    if postgres is None:
        pytest.skip("there is no PostgreSQL")
    with client(server, eventually, "/header") as web:
        assert web.get("/query").text == "42"
        answer = web.get("/refused-query")
        assert is_refusal(answer, "circuit_open", int(answer.headers.get("retry-after", 0)))
        assert web.get("/query").text == "42"


@pytest.mark.parametrize("at", ["/header", "/body"])
def test_other_exceptions_are_the_applications_and_give_everything_back(
    at: str, server: Application, eventually: Eventually
) -> None:
    with client(server, eventually, at) as web:
        for _ in range(2):
            assert web.get("/error").status_code == 500
        view = "alate" if server.kind == "uvicorn" else "late"
        with web.web.stream("GET", f"/{view}", headers={"X-Tenant-ID": "acme"}) as response:
            assert response.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                response.read()
        web.everything_is_back()


def test_files_are_sent(server: Application, eventually: Eventually) -> None:
    for at in ("/header", "/body"):
        gate = new_gate()
        with client(server, eventually, at) as web:
            assert "FileResponse" in web.get("/file").text
            assert web.get(f"/file-in-memory?gate={gate}").text == "in memory"
            web.until(partial(_has_closed_its_file, server, gate))
            steps = {step for step in server.seen(gate) if step.startswith(("read", "close"))}
            assert steps == {"read: acme", "close: acme"}


def _has_closed_its_file(server: Application, gate: str) -> bool:
    return server.seen(gate)[-1].startswith("close")

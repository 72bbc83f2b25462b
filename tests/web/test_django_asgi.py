"""Django under uvicorn: clients that go while a view works, and what else only an event loop can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from web.django_project import APPLICATION
from web.served import KEY, client, is_refusal, new_gate, serving

pytest.importorskip("django")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Eventually
    from web.served import Application

SLOW = "call:slow"


@pytest.fixture(scope="module")
def server() -> Iterator[Application]:
    pytest.importorskip("jwt")
    with serving(APPLICATION, "uvicorn", key=KEY, state="/", postgres=None, asynchronous=True) as running:
        yield running


def calls(server: Application) -> dict[str, int]:
    """What the circuit of the guarded calls was told."""
    totals = server.totals(SLOW)
    return {name: totals.get(f"calls {name}", 0) for name in ("failure", "ignored")}


@pytest.mark.parametrize("view", ["guarded", "guarded-in-task", "guarded-stream"])
def test_a_cancellation_that_the_client_caused_is_no_failure(
    view: str, server: Application, eventually: Eventually
) -> None:
    gate, before = new_gate(), calls(server)
    with client(server, eventually, "/header") as web:
        with web.asking(f"/{view}?gate={gate}"):
            web.stands_at(gate)
        web.until(lambda: server.waiting(gate) == 0 and not server.in_use(SLOW))
        web.everything_is_back()
    assert server.seen(gate)[-1] == "cancelled: acme"
    assert calls(server) == {"failure": before["failure"], "ignored": before["ignored"] + 1}


def test_a_cancellation_by_a_time_out_of_the_view_is_one(server: Application, eventually: Eventually) -> None:
    before = calls(server)
    with client(server, eventually, "/header") as web:
        assert web.get(f"/deadline?gate={new_gate()}").text == "late"
    assert calls(server) == {"failure": before["failure"] + 1, "ignored": before["ignored"]}


@pytest.mark.parametrize("at", ["/header", "/body", "/session"])
def test_a_coroutine_view_whose_client_went_gives_its_permit_back(
    at: str, server: Application, eventually: Eventually
) -> None:
    gate = new_gate()
    with client(server, eventually, at) as web:
        cookie = web.get("/login/acme", None).cookies.get("sessionid", "")
        with web.asking(f"/awaits?gate={gate}", cookie=f"sessionid={cookie}"):
            web.stands_at(gate)
            assert server.in_use() == 1
        web.everything_is_back()
        assert server.seen(gate)[-1] == "cancelled: acme"
        assert web.get("/").status_code == 200


@pytest.mark.parametrize("at", ["/header", "/body"])
def test_a_plain_view_whose_client_went_holds_its_permit_until_it_ends(
    at: str, server: Application, eventually: Eventually
) -> None:
    """Its thread goes on to work for the tenant: a client that hangs up and asks again must not double its share."""
    gate, then = new_gate(), new_gate()
    with client(server, eventually, at) as web:
        with web.asking(f"/waits?gate={gate}"):
            web.stands_at(gate)
        # A second client that came and went: by then the server has seen that the first one is gone.
        with web.asking(f"/awaits?gate={then}", tenant="other"):
            web.stands_at(then)
        web.until(lambda: server.seen(then)[-1] == "cancelled: other" and server.in_use() < 2)
        assert server.waiting(gate) == 1
        assert server.in_use() == 1
        assert is_refusal(web.get("/"))
        server.open(gate)
        web.everything_is_back()
        assert web.get("/").status_code == 200


@pytest.mark.parametrize("at", ["/cut/header", "/cut/body"])
def test_a_stream_that_is_not_read_to_its_end_is_finished_for_the_tenant(
    at: str, server: Application, eventually: Eventually
) -> None:
    """It stands at its `yield`: the event loop closes the generator, in whatever context drops it."""
    gate = new_gate()
    with client(server, eventually, at) as web:
        with web.asking(f"/aendless?gate={gate}") as connection:
            assert connection.recv(1)
        web.until(lambda: server.seen(gate)[-1:] not in ([], ["outside, after: None"]))
        assert server.seen(gate)[-1] == "finally: acme"


def test_what_a_view_sets_in_the_context_is_there_for_its_stream_and_the_middlewares_outside(
    server: Application, eventually: Eventually
) -> None:
    """The view runs in a task of its own, which nobody should notice."""
    with client(server, eventually, "/header") as web:
        answer = web.get("/moody")
        assert (answer.text, answer.headers["x-mood"]) == ("merry acme", "merry")


def test_inside_an_asgi_middleware_only_exceptions_are_left_to_it(server: Application, eventually: Eventually) -> None:
    with client(server, eventually, "/outer/header") as web:
        assert [web.get("/").text for _ in range(2)] == ["acme acme"] * 2
        assert is_refusal(web.get("/wrapped"), "circuit_open", 3)
        assert is_refusal(web.get("/awrapped"), "circuit_open", 3)
    with client(server, eventually, "/outer/jwt") as web:
        assert web.get("/").text == "acme acme"

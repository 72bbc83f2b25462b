"""`init_app` in this process, without a server: what it takes, and what stays as Flask has it."""

from __future__ import annotations

import importlib
import json
from typing import Any

import httpx
import pytest
from web.served import KEY

import bulkhead

flask = pytest.importorskip("flask")
pytest.importorskip("itsdangerous")

from bulkhead.web.flask import TenancyMiddleware, init_app  # noqa: E402  after the skip


def make(**options: Any) -> Any:
    app = flask.Flask("here")
    app.testing = True
    app.secret_key = KEY

    @app.route("/")  # type: ignore[untyped-decorator, unused-ignore]
    def hello() -> str:
        return str(bulkhead.current_tenant())

    init_app(app, **options)
    return app


def test_flasks_test_client_keeps_the_request_after_the_response() -> None:
    app = make(source="session")
    with app.test_client() as web:
        with web.session_transaction() as session:
            session["tenant"] = "acme"
        assert web.get("/").text == "acme"
        assert flask.session["tenant"] == "acme"
        assert bulkhead.current_tenant() is None


def test_a_handler_for_rejections_of_the_applications_own_comes_first() -> None:
    app = make(source="header")

    @app.errorhandler(bulkhead.Rejected)  # type: ignore[untyped-decorator, unused-ignore]
    def busy(error: bulkhead.Rejected) -> tuple[str, int]:
        return f"try {error.identifier} later", 429

    @app.route("/busy")  # type: ignore[untyped-decorator, unused-ignore]
    def raises() -> None:
        raise bulkhead.ResourceBusyError("sql:x", "acme", "tenant")

    answer = app.test_client().get("/busy", headers={"X-Tenant-ID": "acme"})
    assert (answer.status_code, answer.text) == (429, "try sql:x later")


def test_off_it_changes_nothing() -> None:
    for options in ({}, {"enabled": False, "source": "session"}):
        app = make(**options)

        @app.route("/busy")  # type: ignore[untyped-decorator, unused-ignore]
        def raises() -> None:
            raise bulkhead.ResourceBusyError("sql:x", "acme", "tenant")

        assert app.test_client().get("/", headers={"X-Tenant-ID": "acme"}).text == "None"
        with pytest.raises(bulkhead.ResourceBusyError):
            app.test_client().get("/busy")


def test_it_takes_the_application_itself_and_once() -> None:
    app = make(source="header")
    with pytest.raises(bulkhead.ConfigurationError, match="call init_app once"):
        init_app(app)
    with pytest.raises(bulkhead.ConfigurationError, match="takes the Flask application itself"):
        TenancyMiddleware(flask.Flask("other").wsgi_app)


def test_a_session_that_cannot_be_opened_or_saved_for_now_is_503() -> None:
    """Session libraries ask a store, whose adapter may refuse."""
    interface: Any = importlib.import_module("flask.sessions").SecureCookieSessionInterface

    class Refusing(interface):  # type: ignore[misc]  # Any, here
        def open_session(self, app: Any, request: Any) -> Any:
            if "open" in request.args:
                raise bulkhead.CircuitOpenError("redis:sessions", None, 4.0)
            return super().open_session(app, request)

        def save_session(self, app: Any, session: Any, response: Any) -> None:
            if "save" in flask.request.args:
                raise bulkhead.CircuitOpenError("redis:sessions", None, 4.0)

    app = flask.Flask("store")
    app.secret_key = KEY
    app.session_interface = Refusing()
    init_app(app, missing="allow")

    @app.route("/")  # type: ignore[untyped-decorator, unused-ignore]
    def hello() -> str:
        return "hello"

    for query in ("open", "save"):
        answer = app.test_client().get(f"/?{query}=1")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "4")
        assert json.loads(answer.text)["reason"] == "circuit_open"
    assert app.test_client().get("/").text == "hello"


def test_flask_is_reachable_through_httpx_without_a_server() -> None:
    """WSGITransport iterates and closes as a server does."""
    with httpx.Client(transport=httpx.WSGITransport(app=make(source="header")), base_url="http://x") as web:
        assert web.get("/", headers={"X-Tenant-ID": "acme"}).text == "acme"
        assert web.get("/").status_code == 400

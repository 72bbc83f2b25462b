"""Flask-SQLAlchemy: options in SQLALCHEMY_ENGINE_OPTIONS, for one database and for each bind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import bulkhead

flask = pytest.importorskip("flask")
flask_sqlalchemy = pytest.importorskip("flask_sqlalchemy")
sa = pytest.importorskip("sqlalchemy")

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _installed() -> None:
    bulkhead.install("sqlalchemy")


def test_engine_options_reach_the_engine_and_refusals_are_sqlalchemys(tmp_path: Path) -> None:
    app = flask.Flask("recipe", instance_path=str(tmp_path))
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///shop.db"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {
        "pool_pre_ping": True,
        **bulkhead.options(name="flask-shop", tickets=10, tenant_tickets=2, call_timeout=5.0),
    }
    db = flask_sqlalchemy.SQLAlchemy(app)

    @app.route("/<tenant>")  # type: ignore[untyped-decorator]
    def answer(tenant: str) -> str:
        with bulkhead.tenant(tenant):
            return str(db.session.execute(sa.text("SELECT 41 + 1")).scalar())

    @app.errorhandler(sa.exc.OperationalError)  # type: ignore[untyped-decorator]
    def unavailable(error: Exception) -> tuple[str, int]:
        rejected = bulkhead.rejection(error)
        return ("busy", 503) if rejected is not None else ("broken", 500)

    client = app.test_client()
    assert client.get("/acme").text == "42"
    resource = bulkhead.find("sql:flask-shop")
    assert resource is not None
    resource.open()
    assert client.get("/acme").status_code == 503
    resource.close()
    assert client.get("/acme").text == "42"
    with app.app_context():
        db.engine.dispose()
    bulkhead.unregister("sql:flask-shop")


def test_each_bind_has_options_of_its_own(tmp_path: Path) -> None:
    app = flask.Flask("binds", instance_path=str(tmp_path))
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///a.db"
    app.config["SQLALCHEMY_BINDS"] = {
        "reports": {"url": "sqlite:///b.db", **bulkhead.options(name="flask-reports", tickets=2)}
    }
    db = flask_sqlalchemy.SQLAlchemy(app)
    with app.app_context():
        assert not hasattr(db.engines[None].dialect, "bulkhead")
        assert db.engines["reports"].dialect.bulkhead is bulkhead.find("sql:flask-reports")
        for engine in db.engines.values():
            engine.dispose()
    bulkhead.unregister("sql:flask-reports")

"""Where only text can be configured: engine_from_config, URLs, and names that are defined once for all."""

from __future__ import annotations

import configparser
import os
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_engine_from_config

import bulkhead

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _defined() -> None:
    bulkhead.install("sqlalchemy")
    bulkhead.define("recipe-main", tickets=10, tenant_tickets=2, call_timeout=5.0)


def test_an_ini_file_as_alembic_and_pyramid_have_it(tmp_path: Path) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(f"""
[app:main]
sqlalchemy.url = sqlite:///{tmp_path}/a.db
sqlalchemy.pool_pre_ping = true
sqlalchemy.bulkhead = recipe-main
""")
    engine = sa.engine_from_config(dict(parser["app:main"]), "sqlalchemy.")
    assert engine.dialect.bulkhead is bulkhead.find("sql:recipe-main")  # type: ignore[attr-defined]
    engine.dispose()


def test_an_ini_file_for_asyncio(tmp_path: Path) -> None:
    engine = async_engine_from_config(
        {"sqlalchemy.url": f"sqlite+aiosqlite:///{tmp_path}/a.db", "sqlalchemy.bulkhead": "recipe-main"}
    )
    assert engine.dialect.bulkhead is bulkhead.find("sql:recipe-main")  # type: ignore[attr-defined]


@pytest.mark.parametrize("query", ["plugin=bulkhead&bulkhead=recipe-main", "bulkhead=recipe-main"])
def test_a_url_from_the_environment(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite://?{query}")
    engine = sa.create_engine(os.environ["DATABASE_URL"])
    assert engine.dialect.bulkhead is bulkhead.find("sql:recipe-main")  # type: ignore[attr-defined]
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar() == 1

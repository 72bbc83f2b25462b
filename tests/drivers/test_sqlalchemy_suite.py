"""The shared cases for SQLAlchemy engines, sync and async, over psycopg on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drivers.harness import Seen
from drivers.sqlalchemy_harness import SQLAlchemyAsync, SQLAlchemySync
from drivers.suite import DriverSuite

import bulkhead
from bulkhead import events

if TYPE_CHECKING:
    from drivers.harness import Harness

    from bulkhead.testing import PostgresServer


class TestSQLAlchemy(DriverSuite):
    @pytest.fixture(params=[SQLAlchemySync, SQLAlchemyAsync], ids=["sync", "async"])
    def harness_type(self, request: pytest.FixtureRequest) -> type[Harness]:
        chosen: type[Harness] = request.param
        return chosen

    @pytest.fixture
    def server(self, postgres_server: PostgresServer) -> PostgresServer:
        return postgres_server

    async def test_calls_are_announced_with_scope_and_driver(self, harness: Harness) -> None:
        """As the shared case, where the first connect asks the server for its version, which are calls too."""
        wanted = harness.options(tickets=2)
        with Seen(f"{harness.kind}:{wanted['name']}", events.Success, events.Busy) as seen:
            client = await harness.client(wanted)
            with bulkhead.tenant("acme"):
                await harness.call(client)
        assert {(one.driver, one.tenant) for one in seen.all} == {("sqlalchemy", "acme")}
        assert [one.scope for one in seen.all][:2] == ["connection", "query"]
        assert all(one.duration > 0 for one in seen.of(events.Success))

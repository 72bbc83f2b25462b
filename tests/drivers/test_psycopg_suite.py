"""The shared driver suite for psycopg and psycopg_pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drivers.psycopg_harness import PoolAsync, PoolSync, PsycopgAsync, PsycopgSync
from drivers.suite import DriverSuite

if TYPE_CHECKING:
    from drivers.harness import Harness

    from bulkhead.testing import PostgresServer


class TestPsycopg(DriverSuite):
    @pytest.fixture(
        params=[PsycopgSync, PsycopgAsync, PoolSync, PoolAsync], ids=["sync", "async", "pool", "async-pool"]
    )
    def harness_type(self, request: pytest.FixtureRequest) -> type[Harness]:
        harness: type[Harness] = request.param
        return harness

    @pytest.fixture
    def server(self, postgres_server: PostgresServer) -> Any:
        return postgres_server

"""The shared driver suite for redis-py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drivers.redis_harness import RedisAsync, RedisSync
from drivers.suite import DriverSuite

if TYPE_CHECKING:
    from drivers.harness import Harness

    from bulkhead.testing import RedisServer


class TestRedis(DriverSuite):
    @pytest.fixture(params=[RedisSync, RedisAsync], ids=["sync", "async"])
    def harness_type(self, request: pytest.FixtureRequest) -> type[Harness]:
        harness: type[Harness] = request.param
        return harness

    @pytest.fixture
    def server(self, redis_server: RedisServer) -> Any:
        return redis_server

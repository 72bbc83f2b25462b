"""The shared cases for httpx and httpx2 clients, sync and async."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drivers.httpx_harness import HARNESSES
from drivers.suite import DriverSuite

if TYPE_CHECKING:
    from drivers.harness import Harness

    from bulkhead.testing import HttpServer


class TestHttpx(DriverSuite):
    @pytest.fixture(params=HARNESSES, ids=lambda harness: harness.__name__)
    def harness_type(self, request: pytest.FixtureRequest) -> type[Harness]:
        chosen: type[Harness] = request.param
        return chosen

    @pytest.fixture
    def server(self, http_server: HttpServer) -> HttpServer:
        return http_server

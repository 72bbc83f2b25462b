"""The public names: a name that is added or lost is a decision, written down here."""

from __future__ import annotations

import importlib
import importlib.util
import types

import pytest

CORE = """
    BulkheadError CarryingExecutor CircuitOpenError ConfigurationError Options QuotaExceeded Rejected Resource
    ResourceBusyError UnknownTenantError bypass carry current_tenant defaults define detached find install options
    protect rejection reset_tenant resource resources set_tenant subscribe tenant unknown_tenant unregister
"""
ADAPTER = """
    Adapter Cause Checkout CircuitOpenError ConfigurationError Errors Late Options Outcome Permit Rejected Resource
    ResourceBusyError Session Site UnknownTenantError connections detached guard inside interpret make_errors nesting
    protects resolver set_resolver unmark verdict
"""
EVENTS = "Busy Bypassed CircuitOpen Event Failure Ignored LruGc StateChange Subscription Success WouldReject"
TESTING = """
    CLOSE SILENT HttpServer NeverAccepting PostgresServer Proxy RedisServer ScriptedRedis ScriptedServer ServerProcess
    ServerUnavailable SilentServer Toxic Toxiproxy ToxiproxyError ToxiproxyServer free_port
"""
CELLS = """
    AsyncCellTransport Cell CellMap CellProxy CellRouter CellTransport CellUnavailableError Difference FileSource
    FixedSource HttpSource HttpxCellBusyError HttpxCellCircuitOpenError HttpxCellTenantError HttpxCellUnavailableError
    HttpxUnsafePathError MapSource MapUnavailableError MapVersion Refusal RetryAfter UnsafePathError diff load promote
    publish raise_version rebalance
"""
PUBLIC = {
    "bulkhead": CORE,
    "bulkhead.adapter": ADAPTER,
    "bulkhead.cells": CELLS,
    "bulkhead.connections": "IDENTIFIER LENDING caps checkout held limit set_limit totals",
    "bulkhead.events": EVENTS,
    "bulkhead.jobs": """
        AsyncRunner BacklogFull Job JobCancelled JobRecord JobTimeout NotTaking Report Runner Sender Stats job lane_queue
        lane_queues named
    """,
    "bulkhead.memory": "Charge MemoryCell MemoryCells Scratch cells current_memory_cell",
    "bulkhead.metrics": "BulkheadCollector BulkheadMirror register",
    "bulkhead.settings": """
        Bulkhead Following Jobs Memory Server Settings Tenancy Watch current load on_change reload reload_on_sighup
        section watch
    """,
    "bulkhead.testing": TESTING,
    "bulkhead.web": "InvalidTenant",
    "bulkhead.web.asgi": "TenancyMiddleware",
    "bulkhead.web.django": "TenancyMiddleware",
    "bulkhead.web.flask": "TenancyMiddleware init_app",
    "bulkhead.web.wsgi": "TenancyMiddleware",
    "adapters": "install installed resolve uninstall",
    "adapters.redis": """
        RedisCircuitOpenError RedisOwnRetryCircuitOpenError RedisOwnRetryResourceBusyError
        RedisOwnRetryUnknownTenantError RedisResourceBusyError RedisUnknownTenantError
    """,
    "adapters.psycopg": """
        PsycopgCallTimeoutError PsycopgCircuitOpenError PsycopgResourceBusyError PsycopgUnknownTenantError
    """,
    "adapters.sqlalchemy": """
        BulkheadPlugin SQLAlchemyCircuitOpenError SQLAlchemyResourceBusyError SQLAlchemyUnknownTenantError
    """,
    "adapters.httpx": "HttpxCircuitOpenError HttpxResourceBusyError HttpxUnknownTenantError",
    "adapters.httpx2": "Httpx2CircuitOpenError Httpx2ResourceBusyError Httpx2UnknownTenantError",
}
# What an adapter module is made of beside its error classes; `bulkhead.install()` uses it.
MACHINERY = {"adapter", "apply", "driver", "outcome"}


def names(module: str) -> types.ModuleType:
    """The module; skipped where its driver, or framework, is not installed."""
    subject = module.rpartition(".")[2]
    foreign = module.startswith("adapters.") or module in ("bulkhead.web.django", "bulkhead.web.flask")
    if foreign and importlib.util.find_spec(subject) is None:
        pytest.skip(f"{subject} is not installed")
    if module == "bulkhead.cells":  # some of its names are of extras
        for extra in ("httpx", "aiohttp"):
            pytest.importorskip(extra)
    return importlib.import_module(module)


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_of_a_module_are_these(module: str) -> None:
    assert sorted(set(names(module).__all__) - MACHINERY) == sorted(PUBLIC[module].split())


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_exists_and_says_what_it_is(module: str) -> None:
    found = names(module)
    assert found.__doc__
    for name in found.__all__:
        value = getattr(found, name)
        assert isinstance(value, (str, types.ModuleType)) or value.__doc__ or name in ("CLOSE", "SILENT", "Event"), name

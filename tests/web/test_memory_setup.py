"""Settings of memory cells that make no sense for an application that is served."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bulkhead.memory import cells
from bulkhead.web.asgi import TenancyMiddleware


def warnings(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [
        getattr(one, "bulkhead_setting", None)
        for one in caplog.records
        if getattr(one, "bulkhead_event", "") == "settings_warning"
    ]


@pytest.mark.parametrize(
    ("options", "memory", "warned"),
    [
        ({"source": "header"}, {"max_cells": 0}, ["memory.max_cells"]),
        ({"source": "subdomain", "domain": "example.com"}, {"max_cells": 0}, ["memory.max_cells"]),
        ({"source": lambda scope: None}, {"max_cells": 0}, []),
        ({"source": "header"}, {"max_cells": 0, "enabled": False}, []),
        ({"source": "header"}, {"max_cells": 1000}, []),
        ({"source": "header"}, {"charge_bodies": True}, ["memory.charge_bodies"]),
        ({"source": "header"}, {"charge_bodies": True, "quota_bytes": 1}, []),
        ({"source": "header"}, {"charge_bodies": True, "tenant_quota_bytes": {"acme": 1}}, []),
        ({"source": "header"}, {"charge_bodies": True, "tenant_quota_bytes": len}, []),
        ({"enabled": False}, {"charge_bodies": True, "max_cells": 0}, []),
    ],
)
def test_what_bounds_nothing_is_said_once(
    options: dict[str, Any], memory: dict[str, Any], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "bulkhead")
    cells.configure(**memory)
    middleware = TenancyMiddleware(lambda *_: None, **options)  # type: ignore[arg-type]
    cells.configure(idle_ttl_secs=5.0)  # a change: the plan is made anew
    assert warnings(caplog) == warned
    assert middleware is not None

"""The quick start of docs/web.md does what it says, as pasted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from web.asgi_servers import client, of, serving

pytest.importorskip("fastapi")

PAGE = Path(__file__).parents[2] / "docs" / "web.md"


@pytest.mark.anyio
async def test_the_quick_start_runs_as_pasted() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## FastAPI and Starlette\n")[2]
    block = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert block
    namespace: dict[str, Any] = {"__name__": "pasted"}
    exec(compile(block[1], str(PAGE), "exec"), namespace)  # noqa: S102
    with serving(namespace["app"]) as server:
        async with client(server) as web:
            assert (await web.get("/", headers=of("acme"))).json() == "hello acme"
            assert (await web.get("/health")).json() == "ok"
            refused = await web.get("/")
            assert refused.status_code == 400
            assert refused.headers["content-type"] == "application/problem+json"

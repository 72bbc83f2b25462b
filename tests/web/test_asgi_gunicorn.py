"""The ASGI edge under gunicorn with a uvicorn worker, forked before and after the application was loaded."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from web.asgi_servers import LONG, of

from bulkhead.testing import ServerProcess

pytest.importorskip("fastapi")
pytest.importorskip("gunicorn")
pytest.importorskip("uvicorn_worker")

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import AsyncEventually

pytestmark = pytest.mark.anyio

APPLICATION = """
import asyncio, os, pathlib
from fastapi import FastAPI
import bulkhead
from bulkhead.web.asgi import TenancyMiddleware

app = FastAPI()
app.add_middleware(TenancyMiddleware, max_concurrent_requests=1, public_paths=["/state"])
opened = pathlib.Path(__file__).with_name("opened")

@app.get("/wait")
async def wait():
    while not opened.exists():
        await asyncio.sleep(0.01)
    return bulkhead.current_tenant()

@app.get("/")
async def hello():
    return bulkhead.current_tenant()

@app.get("/state")
async def state():
    resource = bulkhead.find("server:requests")
    return {"pid": os.getpid(), "in_use": 0 if resource is None else resource.in_use}

@app.get("/exit")
async def end():
    os._exit(3)
"""
ROOT = Path(__file__).parents[2]


class Gunicorn(ServerProcess):
    """One worker of gunicorn's."""

    name = "gunicorn"
    stop_signal = signal.SIGTERM

    def __init__(self, *arguments: str) -> None:
        super().__init__(Path(sys.executable), "")
        self.arguments = arguments

    def _prepare(self) -> None:
        (self.folder / "application.py").write_text(APPLICATION, encoding="utf-8")

    def _command(self) -> list[str]:
        python = [sys.executable, "-m", "gunicorn", "-k", "uvicorn_worker.UvicornWorker", "-w", "1"]
        paths = f"{self.folder},{ROOT}"
        places = ["--bind", self.address, "--pythonpath", paths, "--worker-tmp-dir", str(self.folder)]
        return [*python, *places, "--graceful-timeout", "5", *self.arguments, "application:app"]

    def _ready(self) -> bool:
        return self.state() is not None

    def state(self) -> dict[str, Any] | None:
        try:
            answer = httpx.get(f"http://{self.address}/state", timeout=5, trust_env=False)
        except httpx.TransportError:
            return None
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def open(self) -> None:
        (self.folder / "opened").touch()


def in_use(server: Gunicorn, number: int, *, other_than: int = 0) -> Callable[[], bool]:
    def so() -> bool:
        state = server.state()
        return state is not None and state["in_use"] == number and state["pid"] != other_than

    return so


@pytest.mark.parametrize("arguments", [(), ("--preload",)], ids=["loaded by the worker", "loaded before the fork"])
async def test_limits_hold_and_a_worker_that_dies_takes_its_permits_with_it(
    arguments: tuple[str, ...], aeventually: AsyncEventually
) -> None:
    with Gunicorn(*arguments) as server:
        async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=LONG, trust_env=False) as web:
            held = asyncio.create_task(web.get("/wait", headers=of("noisy")))
            await aeventually(in_use(server, 1), 20)
            refused = await web.get("/", headers=of("noisy"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert (await web.get("/", headers=of("quiet"))).json() == "quiet"
            worker = (server.state() or {})["pid"]
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                await held
            await aeventually(in_use(server, 0, other_than=worker), 20)
            held = asyncio.create_task(web.get("/wait", headers=of("noisy")))
            await aeventually(in_use(server, 1), 20)
            server.open()
            assert (await held).json() == "noisy"
            assert (await web.get("/", headers=of("noisy"))).json() == "noisy"
            await aeventually(in_use(server, 0), 20)

"""Three FastAPI applications that say hello: without middleware, with one that does nothing, with ours. Run by web.py.

    python hello.py PORT

They share a process and an event loop, so that what distinguishes processes distinguishes none of them; which one
serves is decided by the path, for all three at the same cost.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from bulkhead.web.asgi import TenancyMiddleware

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LIMIT = 1000  # requests; never reached, which is what is measured


class NoOp:
    """A pure ASGI middleware that does nothing."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application."""
        await self.app(scope, receive, send)


def application(path: str) -> FastAPI:
    """A hello-world at this path."""
    app = FastAPI()

    @app.get(path)
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


APPS = {path: application(path) for path in ("/none", "/noop", "/ours")}
APPS["/noop"].add_middleware(NoOp)
APPS["/ours"].add_middleware(TenancyMiddleware, source="header", max_concurrent_requests=LIMIT)


async def serve(scope: Any, receive: Any, send: Any) -> None:
    """The application of the request's path."""
    await APPS[scope["path"]](scope, receive, send)


if __name__ == "__main__":
    uvicorn.run(
        serve,
        port=int(sys.argv[1]),
        http="httptools",
        loop="asyncio",
        lifespan="off",
        timeout_keep_alive=600,
        access_log=False,
        log_level="warning",
    )

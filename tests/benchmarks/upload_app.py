"""A FastAPI application that takes uploads and says hello; run by uploads.py.

    python upload_app.py (cells | none) PORT

An upload is kept until it is complete, as most handlers do it: what a tenant sends is in memory. With "cells" it is
charged to the tenant's memory cell as it arrives.
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI, Request

from bulkhead.memory import cells
from bulkhead.web.asgi import TenancyMiddleware

QUOTA = 8 * 2**20

app = FastAPI()
app.add_middleware(TenancyMiddleware, source="header", max_concurrent_requests=50, public_paths=["/ready"])


@app.get("/")
async def hello() -> dict[str, str]:
    """Small and short: what the quiet tenants ask for."""
    return {"hello": "world"}


@app.get("/ready")
async def ready() -> str:
    """For who starts this."""
    return "ready"


@app.post("/upload")
async def upload(request: Request) -> int:
    """Its size."""
    return len(await request.body())


if __name__ == "__main__":
    if sys.argv[1] == "cells":
        cells.configure(quota_bytes=QUOTA, charge_bodies=True)
    uvicorn.run(
        app,
        port=int(sys.argv[2]),
        http="httptools",
        loop="asyncio",
        timeout_keep_alive=600,
        access_log=False,
        log_level="warning",
    )

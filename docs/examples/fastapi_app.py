"""A shop with many tenants: FastAPI on PostgreSQL, through SQLAlchemy's asyncio and psycopg.

What keeps one tenant from slowing the others down is `bulkhead.install()`, one middleware, the name of the engine's
options, and the numbers in bulkhead.toml. Handlers catch nothing: a refusal, at the door or inside a query, becomes 503
with Retry-After in the middleware. README.md says how to run it.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import bulkhead

bulkhead.install()  # first: drivers are guarded from here on

import sqlalchemy as sa
from fastapi import FastAPI, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import create_async_engine

from bulkhead import metrics, settings
from bulkhead.web.asgi import TenancyMiddleware

settings.load()  # bulkhead.toml, and BULKHEAD_… of the environment over it
metrics.register()

engine = create_async_engine(
    os.environ.get("DATABASE_URL", "postgresql+psycopg:///shop"),
    pool_size=10,
    max_overflow=0,
    isolation_level="AUTOCOMMIT",  # each handler is one statement
    bulkhead="shop",  # tickets and circuit of [resources.shop]
)
tables = sa.MetaData()
orders = sa.Table(
    "orders",
    tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("tenant", sa.String, nullable=False),
    sa.Column("item", sa.String, nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.Column("created", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
    sa.Index("orders_of_tenant", "tenant", "id"),
)

mine = orders.c.tenant == sa.bindparam("tenant")  # limits keep loads apart, not data: every query names the tenant
period = sa.bindparam("days", type_=sa.Integer)
LATEST = sa.select(orders).where(mine).order_by(orders.c.id.desc()).limit(sa.bindparam("limit"))
CREATE = sa.insert(orders).returning(orders)
# The more days, the slower: pg_sleep stands for a query that keeps its connection busy for so long.
REPORT = sa.select(
    sa.func.count().label("orders"),
    sa.func.coalesce(sa.func.sum(orders.c.quantity), 0).label("items"),
    sa.func.pg_sleep(period / 1000.0),
).where(mine, orders.c.created > sa.func.now() - sa.func.make_interval(0, 0, 0, period))


class NewOrder(BaseModel):
    """What a client sends."""

    item: Annotated[str, Field(min_length=1, max_length=100)]
    quantity: Annotated[int, Field(ge=1, le=1000)]


class Order(NewOrder):
    """What it gets."""

    id: int


class Report(BaseModel):
    """The orders of some days."""

    orders: int
    items: int


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Make the table. From here on `kill -HUP` brings changed limits into force."""
    settings.reload_on_sighup()
    async with engine.begin() as connection:
        await connection.run_sync(tables.create_all)
    yield
    await engine.dispose()


app = FastAPI(title="Shop", lifespan=lifespan)
app.add_middleware(TenancyMiddleware)  # does what [tenancy] says


async def ask(statement: sa.Executable, **values: object) -> sa.Result[Any]:
    """Run a statement for the tenant of the request."""
    async with engine.connect() as connection:
        return await connection.execute(statement, {"tenant": bulkhead.current_tenant(), **values})


@app.get("/orders", response_model=list[Order])
async def latest(limit: Annotated[int, Query(ge=1, le=100)] = 10) -> Any:
    """The tenant's latest orders."""
    return (await ask(LATEST, limit=limit)).all()


@app.post("/orders", response_model=Order, status_code=201)
async def create(new: NewOrder) -> Any:
    """Order something."""
    return (await ask(CREATE, item=new.item, quantity=new.quantity)).one()


@app.get("/orders/report", response_model=Report)
async def report(days: Annotated[int, Query(ge=1, le=3650)] = 30) -> Any:
    """Sums of the tenant's orders; slow."""
    return (await ask(REPORT, days=days)).one()


@app.get("/health")
async def health() -> str:
    """For probes: a public path, which needs no tenant and is never refused."""
    return "ok"


@app.get("/metrics")
async def scrape() -> Response:
    """For Prometheus, of one process; docs/metrics.md has what several need."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

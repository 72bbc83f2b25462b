"""Responses of the httpx transports for cells that are not read to their end: each gives its ticket back, once."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import httpx
import pytest

import bulkhead
from bulkhead.cells.cell import Cell
from bulkhead.cells.router import CellRouter
from bulkhead.cells.transport import AsyncCellTransport, CellTransport

if TYPE_CHECKING:
    from cells.cell_servers import Cells
    from conftest import AsyncEventually

    from bulkhead.adapter import Resource
    from bulkhead.testing import HttpServer

LONG = 30.0
ACME = {"tenant": "acme"}


def resource_of(name: str) -> Resource:
    found = bulkhead.find(f"cell:{name}")
    assert found is not None
    return found


def test_a_stream_that_is_left_without_being_closed_gives_its_ticket_back(two: Cells) -> None:
    transport = CellTransport(two.map, tickets=1)
    with httpx.Client(transport=transport, base_url="http://cell.internal", timeout=LONG) as client:
        resource = resource_of(two.map.router.for_tenant("acme").name)
        answer = client.send(client.build_request("GET", "/drip", extensions=ACME), stream=True)
        assert next(answer.iter_raw()) == b"first"
        assert resource.in_use == 1
        del answer
        gc.collect()
        assert resource.in_use == 0
        assert client.get("/who", extensions=ACME).status_code == 200


@pytest.mark.anyio
async def test_an_asynchronous_stream_that_is_left_gives_its_ticket_back(
    two: Cells, aeventually: AsyncEventually
) -> None:
    transport = AsyncCellTransport(two.map, tickets=1)
    async with httpx.AsyncClient(transport=transport, base_url="http://cell.internal", timeout=LONG) as client:
        resource = resource_of(two.map.router.for_tenant("acme").name)
        answer = await client.send(client.build_request("GET", "/drip", extensions=ACME), stream=True)
        assert await anext(answer.aiter_raw()) == b"first"
        assert resource.in_use == 1
        del answer

        def given_back() -> bool:  # the loop closes httpx's own generators first
            gc.collect()
            return resource.in_use == 0

        assert await aeventually(given_back)
        assert (await client.get("/who", extensions=ACME)).status_code == 200


@pytest.mark.anyio
async def test_a_reader_that_is_cancelled_in_the_body_gives_its_ticket_back_and_nothing_is_counted(
    two: Cells, aeventually: AsyncEventually
) -> None:
    name = two.map.router.for_tenant("acme").name
    transport = AsyncCellTransport(two.map, tickets=1)

    async def read() -> None:
        async with client.stream("GET", "/drip", extensions=ACME) as answer:
            async for _ in answer.aiter_raw():
                pass

    async with httpx.AsyncClient(transport=transport, base_url="http://cell.internal", timeout=LONG) as client:
        task = asyncio.create_task(read())
        await aeventually(lambda: two.apps[name].waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert resource_of(name).in_use == 0
        assert resource_of(name).totals()["calls", "failure"] == 0


def test_a_body_that_breaks_off_counts_against_the_cell(http_server: HttpServer) -> None:
    transport = CellTransport(CellRouter([Cell("a", http_server.url)]), tickets=1)
    with httpx.Client(transport=transport, base_url="http://cell.internal", timeout=LONG) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/broken", extensions=ACME)
        resource = resource_of("a")
        assert (resource.totals()["calls", "failure"], resource.in_use) == (1, 0)


@pytest.mark.anyio
async def test_an_asynchronous_body_that_breaks_off_counts_too(http_server: HttpServer) -> None:
    transport = AsyncCellTransport(CellRouter([Cell("a", http_server.url)]), tickets=1)
    async with httpx.AsyncClient(transport=transport, base_url="http://cell.internal", timeout=LONG) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/broken", extensions=ACME)
        resource = resource_of("a")
        assert (resource.totals()["calls", "failure"], resource.in_use) == (1, 0)

"""The cell of the code that runs now: by its tenant, and the same one to the end of a request."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING

import pytest
from counts import often
from stories import together

import bulkhead
from bulkhead import request
from bulkhead.memory import MemoryCell, cells, current_memory_cell

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


@pytest.fixture
def held() -> Iterator[request.Held]:
    """As a middleware does for a request."""
    one: request.Held = {}
    token = request.current.set(one)
    yield one
    request.current.reset(token)


def mine() -> MemoryCell:
    cell = current_memory_cell()
    assert cell is not None
    return cell


def test_outside_any_tenant_there_is_none() -> None:
    assert current_memory_cell() is None
    with bulkhead.tenant("acme"), bulkhead.tenant(None):
        assert current_memory_cell() is None
    assert len(cells) == 0


def test_the_first_call_makes_the_cell_of_the_tenant() -> None:
    with bulkhead.tenant("acme"):
        assert len(cells) == 0
        first = mine()
        assert first is mine()
        with bulkhead.tenant("other"):
            assert mine().tenant == "other"
    assert first is cells.find("acme")
    assert len(cells) == 2


def test_a_client_that_went_is_no_cell(held: request.Held) -> None:
    held[None] = True
    assert current_memory_cell() is None
    with bulkhead.tenant("acme"):
        assert mine().tenant == "acme"


def test_a_request_keeps_the_cell_that_it_first_got(held: request.Held) -> None:
    with bulkhead.tenant("acme"):
        first = mine()
        cells.evict("acme")
        assert mine() is first
        fresh = Context().run(lambda: cells.get_or_create("acme"))
        assert fresh is not first
        assert mine() is first
        token = request.current.set({})
        assert mine() is fresh, "another request"
        request.current.reset(token)
        assert mine() is first


def test_a_block_keeps_the_cell_that_it_first_got() -> None:
    """And what it holds there: it was let go, not ordered to go."""
    cells.configure(max_cells=1)
    with bulkhead.tenant("acme"):
        first = mine()
        first.scratch["key"] = b"value"
        assert cells.get_or_create("other") in cells
        assert first not in cells
        assert mine() is first
        assert bulkhead.carry(mine)() is first
        assert first not in cells, "nobody asked the registry"
        with bulkhead.tenant("acme"):
            assert mine() is first
        assert first in cells


def test_a_block_gets_a_fresh_cell_after_an_order() -> None:
    with bulkhead.tenant("acme"):
        first = mine()
        cells.evict("acme")
        second = mine()
        assert second is not first
        assert mine() is second


def test_a_block_keeps_no_cell_of_another_tenant() -> None:
    with bulkhead.tenant("acme"):
        token = bulkhead.set_tenant("other")
        gone = weakref.ref(mine())
        bulkhead.reset_tenant(token)
        cells.evict("other")
        assert gone() is None


def test_no_block_keeps_a_cell_after_its_end() -> None:
    block = bulkhead.tenant("acme")
    with block:
        gone = weakref.ref(mine())
    cells.evict("acme")
    assert gone() is None
    with block:
        assert mine().tenant == "acme"


def test_what_outlives_a_block_does_not_keep_its_cell() -> None:
    """A copy of its context: of a task, a timer, a connection of a pool. Nor what it asks for after the block's end."""
    with bulkhead.tenant("acme"):
        gone = weakref.ref(mine())
        carried, again = bulkhead.carry(mine), copy_context()
        with bulkhead.tenant("acme"):
            inner = copy_context()
            assert mine() is gone()
    for context in (again, inner):
        assert context.run(mine) is carried() is gone()
    cells.evict("acme")
    assert gone() is None
    assert carried().tenant == "acme"


def test_a_block_that_ends_below_others_keeps_no_cell() -> None:
    def rows() -> Generator[int, None, None]:
        with bulkhead.tenant("rows"):
            found.append(weakref.ref(mine()))
            yield 1

    found: list[weakref.ref[MemoryCell]] = []
    one, two, three = rows(), rows(), rows()
    next(one)
    with bulkhead.tenant("acme"):
        found.append(weakref.ref(mine()))
        contexts = [copy_context()]
        assert contexts[0].run(mine) is found[1]()
        one.close()
        assert mine() is found[1](), "that block goes on"
        next(two)
        next(three)
        contexts.append(copy_context())
    for tenant in ("acme", "rows"):
        cells.evict(tenant)
    assert [one() for one in found] == [None] * 4
    assert {context.run(mine).tenant for context in contexts} == {"acme", "rows"}
    two.close()
    three.close()


def test_outside_of_requests_and_blocks_nothing_is_bound() -> None:
    token = bulkhead.set_tenant("acme")
    gone = weakref.ref(mine())
    assert gone() is mine()
    cells.evict("acme")
    assert gone() is None
    bulkhead.reset_tenant(token)


def test_after_its_end_a_request_keeps_nothing_but_that_its_client_had_gone(held: request.Held) -> None:
    with bulkhead.tenant("acme"):
        gone = weakref.ref(mine())
        held[None] = True
        request.end(held)
        cells.evict("acme")
        assert gone() is None
        again = weakref.ref(mine())
        assert again() is mine() is cells.find("acme")
        cells.evict("acme")
        assert again() is None
        assert request.client_gone()


def test_threads_and_tasks_of_a_request_share_its_cell(held: request.Held) -> None:
    async def tasks() -> list[MemoryCell]:
        first = await asyncio.create_task(asyncio.to_thread(mine))
        cells.evict("acme")
        return [first, *await asyncio.gather(asyncio.to_thread(mine), asyncio.create_task(asyncio.sleep(0, mine())))]

    with bulkhead.tenant("acme"):
        found = asyncio.run(tasks())
        carried: list[MemoryCell] = []

        def carry_on() -> None:
            carried.append(mine())

        thread = threading.Thread(target=bulkhead.carry(carry_on))
        thread.start()
        thread.join()
    assert len({*map(id, found), *map(id, carried)}) == 1


def test_threads_that_ask_first_at_the_same_time_agree(held: request.Held) -> None:
    """Also where each is handed another cell."""

    def ask() -> list[MemoryCell]:
        first = mine()
        cells.evict(first.tenant)
        return [first, mine()]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(often(100, 2000)):
            held.clear()
            with bulkhead.tenant(f"t{number}"):
                found = together(*[partial(copy_context().run, ask) for _ in range(8)])
            assert len({id(cell) for pair in found for cell in pair}) == 1
    finally:
        sys.setswitchinterval(before)


def test_detached_work_belongs_to_no_request(held: request.Held) -> None:
    with bulkhead.tenant("acme"):
        mine()
        assert bulkhead.detached(current_memory_cell)() is None
        assert bulkhead.detached(request.current.get)() is None


def test_a_request_for_very_many_tenants_does_not_keep_all_their_cells(held: request.Held) -> None:
    for number in range(500):
        with bulkhead.tenant(str(number)):
            mine()
    assert len(held) == 100
    with bulkhead.tenant("0"):
        assert mine() is held["0"]


def test_switched_off_there_are_none() -> None:
    cells.configure(enabled=False)
    with bulkhead.tenant("acme"):
        assert current_memory_cell() is None
        cells.get_or_create("acme")
        assert current_memory_cell() is None
        cells.configure(enabled=True)
        assert mine().tenant == "acme"


def test_the_cell_asked_for_last_goes_last() -> None:
    cells.configure(max_cells=2)
    for tenant in ("a", "b", "a", "c"):
        with bulkhead.tenant(tenant):
            mine()
    assert [cell.tenant for cell in cells] == ["a", "c"]


def test_a_cell_that_was_asked_for_just_now_is_not_idle() -> None:
    for tenant in ("a", "b"):
        with bulkhead.tenant(tenant):
            mine().used -= 100  # seconds ago
    with bulkhead.tenant("a"):
        mine()
    assert cells.evict_idle_older_than(50) == 1
    assert [cell.tenant for cell in cells] == ["a"]

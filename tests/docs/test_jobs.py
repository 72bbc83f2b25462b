"""docs/jobs.md: the examples run as pasted, its table has every public name."""

from __future__ import annotations

import builtins
import re
import symtable
from typing import TYPE_CHECKING

import pytest

from bulkhead import jobs
from bulkhead.hashing import shuffle_shard, slot_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunPython


@pytest.fixture
def guide(root: Path) -> str:
    return (root / "docs" / "jobs.md").read_text(encoding="utf-8")


def blocks(guide: str) -> list[str]:
    return re.findall(r"^<!-- tested: [^\n]*-->\n```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)


def test_the_first_example_runs_as_pasted(guide: str, run_python: RunPython) -> None:
    told = run_python(blocks(guide)[0]).stdout.splitlines()
    assert told == [
        "invoice 7 for acme",
        "invoice 8 for acme",
        "Report(finished=0, returned=[], running=[])",
    ]


def test_the_example_of_fastapi_runs_as_pasted(guide: str, run_python: RunPython) -> None:
    pytest.importorskip("fastapi")
    told = run_python(
        blocks(guide)[1]
        + """
import asyncio, httpx

async def main():
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://shop") as web:
            answer = await web.post("/orders/7", headers={"X-Tenant-ID": "acme"})
            print(answer.status_code, len(answer.json()["job"]))

asyncio.run(main())
"""
    )
    assert told.stdout == "200 32\n"


def test_each_example_binds_the_names_that_it_uses(guide: str) -> None:
    """Those for brokers that are not installed here, too."""
    found = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert len(found) >= 4
    for block in found:
        top = symtable.symtable(block, "jobs.md", "exec")
        tables = [top]
        for table in tables:
            tables += table.get_children()
        bound = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
        used = {one.get_name() for table in tables for one in table.get_symbols() if one.is_global() or table is top}
        assert used - bound - set(dir(builtins)) == set(), block


CELERY = """
import threading
from celery.contrib.testing.worker import start_worker
from bulkhead.jobs import lane_queues

app.conf.update(broker_url="memory://", result_backend="cache+memory://")
for tenant in ("acme", None):
    token = bulkhead.set_tenant(tenant)
    enqueue(7)
    bulkhead.reset_tenant(token)
done = threading.Event()
left = [2]

@task_postrun.connect
def note(**_):
    left[0] -= 1
    if not left[0]:
        done.set()

with start_worker(app, perform_ping_check=False, pool="solo", queues=lane_queues("shop", 8)):
    assert done.wait(30)
assert bulkhead.current_tenant() is None
"""


def test_the_example_of_celery_runs_as_pasted(guide: str, run_python: RunPython) -> None:
    pytest.importorskip("celery")
    (block,) = re.findall(r"^```python\n(from celery.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    told = run_python(f"{block}\n{CELERY}").stdout.splitlines()
    assert sorted(told) == ["report 7 for None", "report 7 for acme"]


def test_the_table_of_names_has_every_public_one(guide: str) -> None:
    table = guide[guide.index("| name of") : guide.index("<!-- tested")]
    first = " ".join(line.split("|")[1] for line in table.splitlines()[2:] if line.startswith("|"))
    told = {re.match(r"\w+", one).group() for one in re.findall(r"`([^`]+)`", first)}  # type: ignore[union-attr]
    assert told | {"Sender"} == set(jobs.__all__)
    assert "`Sender`" in table


def test_lanes_and_slots_of_the_page_are_those_of_the_code(guide: str) -> None:
    """Known fault 85: what a process works out is what is written down."""
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in guide.splitlines() if line.startswith("| ")]
    start = next(index for index, cells in enumerate(rows) if cells[0] == "acme")
    tenants, lanes, slots = rows[start : start + 3]
    assert len(tenants) == 5
    assert lanes == [", ".join(map(str, shuffle_shard(tenant, 8, 2))) for tenant in tenants]
    assert slots == [str(slot_of(tenant)) for tenant in tenants]


def test_numbers_of_the_page_are_those_of_the_code(guide: str) -> None:
    from bulkhead.jobs.attempts import LONGEST_STEP  # noqa: PLC0415  internals
    from bulkhead.jobs.dead import MAXIMUM  # noqa: PLC0415
    from bulkhead.jobs.handlers import MAX_ATTEMPTS  # noqa: PLC0415
    from bulkhead.jobs.retries import pause  # noqa: PLC0415
    from bulkhead.settings import Jobs  # noqa: PLC0415

    text = " ".join(guide.split())
    assert f"After `max_attempts` ({MAX_ATTEMPTS};" in text
    assert f"at most {MAXIMUM:,} of them" in text
    assert f"for more than {LONGEST_STEP:g} s in one step" in text
    assert f"0 to {pause(1, 1.0):g} s, then 0 to {pause(2, 1.0):g} s, {pause(3, 1.0):g} s" in text
    assert f"for `grace_secs` ({Jobs().grace_secs:g}:" in text
    assert f"of a tenant wait ({Jobs().max_backlog_per_tenant:,};" in text
    assert f"Above `max_backlog` ({Jobs().max_backlog:,})" in text

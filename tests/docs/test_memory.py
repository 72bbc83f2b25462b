"""Every Python block of docs/memory.md runs as pasted, and the sizes that it names are so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import bulkhead
from bulkhead.memory import cells
from bulkhead.option_rows import rows_of
from bulkhead.settings import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import RunPython

PICTURE = b"p" * 1000


@pytest.fixture
def text(root: Path) -> str:
    return (root / "docs" / "memory.md").read_text(encoding="utf-8")


@pytest.fixture
def block(text: str) -> Callable[[str], str]:
    """The block below `<!-- run: name -->`."""

    def of(name: str) -> str:
        (found,) = re.findall(rf"^<!-- run: {name} -->\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        return str(found)

    return of


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    before = set(bulkhead.resources())
    yield
    cells._given, cells._started, cells._following = {}, False, ()
    for cell in cells:
        cells.evict(cell.tenant)
    for identifier in set(bulkhead.resources()) - before:
        bulkhead.unregister(identifier)


def run(source: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "pasted"}
    exec(source, scope)  # noqa: S102  our own page
    return scope


def test_every_block_is_marked_and_run(text: str) -> None:
    marked = re.findall(r"^<!-- run: ([\w ]+) -->\n```python$", text, re.MULTILINE)
    assert text.count("```python") == len(marked)
    assert sorted(marked) == sorted(
        ["configure", "charges", "scratch", "FastAPI", "Django", "Django view", "Flask", "WSGI", "ASGI", "console"]
    )


def test_the_table_has_the_keys_of_the_section_and_their_defaults(text: str) -> None:
    section = text.split("## Switching it on")[1].split("\n## ", 1)[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (\S.*?) \|", section, re.MULTILINE))
    assert set(told) == set(rows_of(Memory))
    options = Memory()
    words = {"none": "None", "as measured": str(options.scratch_entry_overhead)}
    for name, shown in told.items():
        value = getattr(options, name)
        assert words.get(shown, shown.replace(",", "").capitalize()) == str(
            int(value) if value.__class__ is float else value
        )


def test_quotas_by_a_function(block: Callable[[str], str]) -> None:
    run(block("configure"))
    assert cells.options.charge_bodies
    assert [cells.get_or_create(one).quota_bytes for one in ("acme", "other")] == [200_000_000, 50_000_000]


def test_charges(block: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    run(block("charges"))
    assert capsys.readouterr().out == "acme 600000 600000 1000000\n1033 1033 600000\n"


def test_a_cache_in_the_scratch_store(block: Callable[[str], str]) -> None:
    cells.configure(quota_bytes=10_000)
    thumbnail = run(block("scratch"))["thumbnail"]
    assert thumbnail("no tenant") == b"no tenant" * 1000
    with bulkhead.tenant("acme"):
        scratch = cells.get_or_create("acme").scratch
        assert thumbnail("a") is scratch["a"]
        assert thumbnail("a") == b"a" * 1000
        assert thumbnail("too large for it") == b"too large for it" * 1000
        assert len(scratch) == 0


def test_the_console(block: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    held = [cells.get_or_create(f"tenant-{size}").charge(size) for size in range(1, 13)]
    run(block("console"))
    lines = capsys.readouterr().out.splitlines()
    assert len(held) == 12
    assert (len(lines), lines[0]) == (10, "tenant-12 12 of 0 at most 12")


@pytest.mark.parametrize("name", ["Flask", "WSGI"])
def test_wsgi(name: str, block: Callable[[str], str]) -> None:
    pytest.importorskip(name.lower().replace("wsgi", "wsgiref"))
    scope = run(block(name))
    app = scope.get("application") or scope["app"]
    with httpx.Client(transport=httpx.WSGITransport(app=app), base_url="http://shop") as web:
        headers = {"X-Tenant-ID": "acme"}
        kept = web.post("/pictures/p", content=PICTURE, headers=headers)
        assert kept.status_code == 200, kept.text
        assert 2 * len(PICTURE) < int(kept.text) < 3 * len(PICTURE)  # as a body, and in the scratch store
        assert_refused(web.post("/pictures/p", content=PICTURE * 1000, headers=headers))
    assert cells.get_or_create("acme").tracked_bytes < 2 * len(PICTURE)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["FastAPI", "ASGI"])
async def test_asgi(name: str, block: Callable[[str], str]) -> None:
    if name == "FastAPI":
        pytest.importorskip("fastapi")
    app = run(block(name))["app"]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://shop") as web:
        headers = {"X-Tenant-ID": "acme"}
        kept = await web.post("/pictures/p", content=PICTURE, headers=headers)
        assert kept.status_code == 200, kept.text
        assert 2 * len(PICTURE) < int(kept.text) < 3 * len(PICTURE)
        assert_refused(await web.post("/pictures/p", content=PICTURE * 1000, headers=headers))
    assert cells.get_or_create("acme").tracked_bytes < 2 * len(PICTURE)


def assert_refused(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["reason"]) == (503, "1", "quota")


def test_django(block: Callable[[str], str], run_python: RunPython) -> None:
    pytest.importorskip("django")
    source = f"""
{block("Django")}
import sys, types
import django
from django.conf import settings
settings.configure(
    MIDDLEWARE=MIDDLEWARE, BULKHEAD_TENANCY=BULKHEAD_TENANCY, SECRET_KEY="k", ROOT_URLCONF="urls", ALLOWED_HOSTS=["*"],
)
django.setup()
{block("Django view")}
from django.test import Client
from django.urls import path

urls = sys.modules["urls"] = types.ModuleType("urls")
urls.urlpatterns = [path("pictures/<name>", keep)]
for size in (1000, 900_000, 1_000_001):
    answer = Client().post("/pictures/p", b"p" * size, "image/png", headers={{"X-Tenant-ID": "acme"}})
    print(answer.status_code, answer.status_code == 503 or 2 * size < int(answer.content) < 3 * size)
"""
    assert run_python(source).stdout == "200 True\n503 True\n503 True\n"

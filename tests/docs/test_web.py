"""The quick starts of docs/web.md run as pasted."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import bulkhead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import RunPython


@pytest.fixture
def quick_start(root: Path) -> Callable[[str], str]:
    """The first Python block of a section."""

    def of(section: str) -> str:
        text = (root / "docs" / "web.md").read_text(encoding="utf-8").split(f"\n## {section}\n")[1]
        found = re.search(r"^```python\n(.*?)^```$", text.split("\n## ")[0], re.MULTILINE | re.DOTALL)
        assert found
        return found[1]

    return of


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    before = set(bulkhead.resources())
    yield
    for identifier in set(bulkhead.resources()) - before:
        bulkhead.unregister(identifier)


@pytest.mark.parametrize(
    ("section", "framework", "name"), [("Flask", "flask", "app"), ("Plain WSGI", "wsgiref", "application")]
)
def test_a_quick_start_of_wsgi_runs_as_pasted(
    section: str, framework: str, name: str, quick_start: Callable[[str], str]
) -> None:
    pytest.importorskip(framework)
    scope: dict[str, Any] = {"__name__": "pasted"}
    exec(quick_start(section), scope)  # noqa: S102  our own page
    with httpx.Client(transport=httpx.WSGITransport(app=scope[name]), base_url="http://shop") as web:
        assert web.get("/", headers={"X-Tenant-ID": "acme"}).text == "hello acme"
        assert web.get("/").status_code == 400
        assert framework != "flask" or web.get("/health").text == "ok"
    assert bulkhead.find("server:requests") is not None


def test_the_quick_start_of_django_runs_as_pasted(quick_start: Callable[[str], str], run_python: RunPython) -> None:
    pytest.importorskip("django")
    source = f"""
{quick_start("Django")}
import sys, types
import django
from django.conf import settings
settings.configure(
    MIDDLEWARE=MIDDLEWARE, BULKHEAD_TENANCY=BULKHEAD_TENANCY, SECRET_KEY="k", ROOT_URLCONF="urls", ALLOWED_HOSTS=["*"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
)
django.setup()
import bulkhead
from django.http import HttpResponse
from django.test import Client
from django.urls import path

def login(request):
    request.session["tenant"] = "acme"
    return HttpResponse("welcome")

urls = sys.modules["urls"] = types.ModuleType("urls")
urls.urlpatterns = [path("login", login), path("", lambda request: HttpResponse(bulkhead.current_tenant()))]
web = Client()
print(web.get("/").status_code, web.get("/login").content, web.get("/").content)
"""
    assert run_python(source).stdout.strip() == "401 b'welcome' b'acme'"


def test_every_middleware_of_the_page_is_there(root: Path) -> None:
    text = (root / "docs" / "web.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`bulkhead\.web\.(\w+)\.(TenancyMiddleware|init_app)`", text))
    assert {module for module, _ in named} == {"asgi", "wsgi", "django", "flask"}
    for module, name in named:
        if module in ("django", "flask"):
            pytest.importorskip(module)
        assert hasattr(importlib.import_module(f"bulkhead.web.{module}"), name)

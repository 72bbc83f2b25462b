"""Setting the Django middleware up: each case is a program of its own, as Django is configured once in a process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("django")

if TYPE_CHECKING:
    from conftest import RunPython

PROGRAM = """
import asyncio, json, sys, warnings
from asgiref.sync import markcoroutinefunction
import bulkhead
import django
from django.conf import settings
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

def hello(request):
    return HttpResponse(str(bulkhead.current_tenant()))

def busy(request):
    raise bulkhead.ResourceBusyError("sql:x", "acme", "tenant")

async def later(request):
    return "acme"

OURS = "bulkhead.web.django.TenancyMiddleware"
urlpatterns = [path("", hello), path("busy", busy)]
sys.modules["project"] = sys.modules[__name__]
settings.configure(ROOT_URLCONF="project", ALLOWED_HOSTS=["*"], SECRET_KEY="k", MIDDLEWARE=[OURS])
django.setup()

class Later:
    sync_capable, async_capable = False, True
    def __init__(self, get_response):
        self.get_response = get_response
        markcoroutinefunction(self)
    async def __call__(self, request):
        return await self.get_response(request)

def ask(path="/", client=Client, reraise=False, **options):
    with override_settings(**options):
        answer = client(raise_request_exception=reraise).get(path, headers={"X-Tenant-ID": "acme"})
        if client is AsyncClient:
            answer = asyncio.run(answer)
        return [answer.status_code, answer.content.decode()]

def fault(**options):
    try:
        ask(**options)
    except bulkhead.ConfigurationError as error:
        return str(error)
"""


@pytest.fixture
def told(run_python: RunPython) -> Any:
    """What an expression of that program gives."""

    def run(*expressions: str) -> Any:
        lines = [f"print(json.dumps({one}))" for one in expressions]
        answers = run_python("\n".join([PROGRAM, *lines])).stdout.splitlines()
        return [json.loads(one) for one in answers]

    return run


def test_what_is_wrong_is_found_when_the_server_starts(told: Any) -> None:
    cases = {
        "fault(BULKHEAD_TENANCY=['source'])": 'is a dict of options, such as {"source": "session"}',
        "fault(BULKHEAD_TENANCY={'sources': 'header'})": "did you mean 'source'",
        "fault(BULKHEAD_TENANCY={'max_concurrent_requests': -1})": "max_concurrent_requests must be",
        "fault(BULKHEAD_TENANCY={'source': 'nowhere.at_all'})": "source names a function that cannot be imported",
        "fault(BULKHEAD_TENANCY={'source': later})": "this framework is synchronous",
        "fault(client=AsyncClient, BULKHEAD_TENANCY={'source': 'jwt'})": "jwt_key",
    }
    for (case, says), fault in zip(cases.items(), told(*cases), strict=True):
        assert says in (fault or ""), case


def test_it_is_off_without_options_and_settings_and_on_with_any(told: Any) -> None:
    off, refused, on, disabled, translated, asynchronous, awaited = told(
        "ask()",
        "ask('/busy')[0]",
        "ask(BULKHEAD_TENANCY={'enabled': True})",
        "ask(BULKHEAD_TENANCY={'enabled': False, 'source': 'session'})",
        "ask('/busy', BULKHEAD_TENANCY={'source': 'header'})[0]",
        "ask(client=AsyncClient, BULKHEAD_TENANCY={'source': 'header'})",
        "ask(client=AsyncClient, BULKHEAD_TENANCY={'source': later})",
    )
    assert off == disabled == [200, "None"]
    assert on == asynchronous == awaited == [200, "acme"]
    assert (refused, translated) == (500, 503)


def test_beside_a_middleware_that_is_asynchronous_only_it_works_under_wsgi_too(told: Any) -> None:
    options = "MIDDLEWARE=[OURS, 'project.Later'], BULKHEAD_TENANCY={'source': 'header', 'hold': 'body'}"
    assert told(f"ask({options})", f"ask('/busy', {options})[0]") == [[200, "acme"], 503]


def test_without_the_session_middleware_before_it_it_says_so(told: Any) -> None:
    (fault,) = told("fault(reraise=True, BULKHEAD_TENANCY={'source': 'session'})")
    assert "after 'django.contrib.sessions.middleware.SessionMiddleware' in MIDDLEWARE" in fault

"""Memory cells of Django's requests, and bodies that are charged as views read them: gunicorn (WSGI), uvicorn (ASGI)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from web.served import client, is_refusal, new_gate, serving
from web.uploads import uploading, without_end

pytest.importorskip("django")

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from conftest import Eventually
    from web.served import Application, Client

QUOTA = 1_000_000

DJANGO = """
from gates import *
import bulkhead
from contextvars import copy_context
from bulkhead import request as belongings
from bulkhead.memory import cells, current_memory_cell
import django
from django.conf import settings
cells.configure(quota_bytes=CONFIG["quota"], charge_bodies=True)
settings.configure(
    SECRET_KEY="k", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, DATA_UPLOAD_MAX_MEMORY_SIZE=None,
    LOGGING_CONFIG=None,
    MIDDLEWARE=["bulkhead.web.django.TenancyMiddleware", "application.Inside"],
    BULKHEAD_TENANCY={"source": "header", "public_paths": ["/state"], "max_concurrent_requests": 4},
)
django.setup()
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import sync_and_async_middleware
from asgiref.sync import iscoroutinefunction

@sync_and_async_middleware
def Inside(get_response):
    if iscoroutinefunction(get_response):
        async def middleware(request):
            note(request.GET.get("gate", ""), "let in")
            return await get_response(request)
    else:
        def middleware(request):
            note(request.GET.get("gate", ""), "let in")
            return get_response(request)
    return middleware

def body(request):
    return HttpResponse(str(len(request.body)))

def form(request):
    return HttpResponse(str(len(request.POST["a"])))

def file(request):
    return HttpResponse(str(request.FILES["a"].size))

def lines(request):
    return HttpResponse(str(sum(map(len, request))))

async def abody(request):
    return HttpResponse(str(len(request.body)))

def caught(request):
    try:
        return HttpResponse(str(len(request.body)))
    except bulkhead.QuotaExceeded:
        return HttpResponse("my own answer", status=413)

def streamed(request):
    try:
        return HttpResponse(str(len(request.body)))
    except bulkhead.QuotaExceeded:
        return StreamingHttpResponse(["my own ", "answer"], status=413)

kept = []

def keep(request):
    if not kept:
        kept.append(current_memory_cell().charge(500_000))
    return HttpResponse("kept")

def waits(request):
    request.body
    wait(request.GET["gate"])
    return HttpResponse("waited")

contexts = []  # as tasks, timers and pools have them

def plain(request):
    current_memory_cell()
    contexts.append(copy_context())
    return HttpResponse("plain")

def steps(request):
    first = current_memory_cell()
    contexts.append(copy_context())
    def parts():
        for _ in range(3):
            cells.evict(first.tenant)
            yield f"{current_memory_cell() is first} "
    return StreamingHttpResponse(parts())

async def asteps(request):
    first = current_memory_cell()
    contexts.append(copy_context())
    inside = await asyncio.to_thread(current_memory_cell)
    async def parts():
        yield f"{inside is first} "
        for _ in range(2):
            cells.evict(first.tenant)
            yield f"{current_memory_cell() is first} "
    return StreamingHttpResponse(parts())

def over(request):
    current_memory_cell().charge(CONFIG["quota"] + 1)

def tell(request):
    found = state()
    found["held"] = [key for one in contexts for key in one.run(belongings.current.get) if key]
    found["contexts"] = len(contexts)
    found["cells"] = {cell.tenant: [cell.tracked_bytes, cell.peak_bytes] for cell in cells}
    return JsonResponse(found)

urlpatterns = [path(view.__name__, view) for view in (body, form, file, lines, abody, caught, streamed, keep, waits, plain, steps, asteps, over)]
urlpatterns.append(path("state", tell))
application = ASGIHandler() if CONFIG["asynchronous"] else WSGIHandler()
"""


@pytest.fixture(scope="module", params=["gthread", "uvicorn"])
def server(request: pytest.FixtureRequest) -> Iterator[Application]:
    """WSGI and ASGI."""
    with serving(DJANGO, request.param, quota=QUOTA, asynchronous=request.param == "uvicorn") as running:
        yield running


def cell(server: Application, tenant: str) -> tuple[int, int]:
    """Tracked bytes and their peak."""
    tracked, peak = server.state()["cells"].get(tenant, (0, 0))
    return tracked, peak


def post(web: Client, path: str, tenant: str, size: int) -> httpx.Response:
    """Upload a body of about this size."""
    data, headers = b"a" * size, {"X-Tenant-ID": tenant}
    if path == "/file":
        return web.web.post(path, files={"a": data}, headers=headers)
    if path == "/form":
        return web.web.post(path, data={"a": data.decode()}, headers=headers)
    return web.web.post(path, content=data, headers=headers)


@pytest.mark.parametrize("path", ["/body", "/abody", "/lines", "/caught", "/streamed", "/form", "/file"])
def test_a_body_over_the_quota_is_refused_whatever_the_view_makes_of_it(
    path: str, server: Application, eventually: Eventually
) -> None:
    """Its length alone is within the quota: noisy keeps something besides."""
    with client(server, eventually) as web:
        web.get("/keep", "noisy")
        before = cell(server, "noisy")[0]
        assert before == 500_000
        for tenant, statuses in (("quiet", [200, 200]), ("noisy", [503, 200])):
            for size, status in zip((900_000, 100), statuses, strict=True):
                answer = post(web, path, tenant, size)
                assert answer.status_code == status, (tenant, size, answer.text)
                assert answer.text == str(size) if status == 200 else is_refusal(answer, "quota")
        web.until(lambda: cell(server, "noisy")[0] == before)
        web.until(lambda: cell(server, "quiet")[0] == 0)
        assert 500_000 < cell(server, "noisy")[1] <= QUOTA
        assert cell(server, "quiet")[1] >= 900_000


@pytest.mark.parametrize("server", ["gthread"], indirect=True)
def test_a_tenant_that_uploads_without_end_gets_503_and_the_others_are_served(
    server: Application, eventually: Eventually
) -> None:
    """Django reads no body without a length under WSGI; under ASGI it collects it, to its end, before anybody is asked."""
    with client(server, eventually) as web:
        found = without_end(server.port, "/body", "endless", length=10**12)
        assert found.status == 503
        assert json.loads(found.body)["reason"] == "quota"
        assert post(web, "/body", "quiet", 1000).text == "1000"


def test_a_body_whose_length_is_over_the_quota_is_refused_before_a_view_is_called(
    server: Application, eventually: Eventually
) -> None:
    gate = new_gate()
    with client(server, eventually) as web:
        answer = web.web.post(f"/body?gate={gate}", content=b"a" * (QUOTA + 1), headers={"X-Tenant-ID": "large"})
        assert is_refusal(answer, "quota")
    assert server.seen(gate) == []
    assert cell(server, "large") == (0, 0)


def test_a_bodys_charge_is_held_until_the_response_is_closed(server: Application, eventually: Eventually) -> None:
    gate = new_gate()
    with client(server, eventually) as web:
        with uploading(server.port, f"/waits?gate={gate}", "acme", length=900_000) as connection:
            connection.sendall(b"a" * 900_000)
            web.stands_at(gate)
            if server.kind == "gthread":  # a plain view has the one thread of an ASGI server's requests
                assert cell(server, "acme")[0] > 900_000
                answer = web.web.post("/body", content=b"a" * 900_000, headers={"X-Tenant-ID": "acme"})
                assert is_refusal(answer, "quota")
                assert web.web.post("/body", content=b"a" * 900_000, headers={"X-Tenant-ID": "other"}).is_success
            server.open(gate)
            assert connection.recv(12) == b"HTTP/1.1 200"
        web.until(lambda: cell(server, "acme")[0] == 0)
        assert cell(server, "acme")[1] > 900_000


def test_a_request_keeps_its_cell_over_the_steps_of_its_body(server: Application, eventually: Eventually) -> None:
    view = "/asteps" if server.kind == "uvicorn" else "/steps"
    with client(server, eventually) as web:
        assert [web.get(view).text for _ in range(2)] == ["True True True "] * 2
        assert web.get("/plain").text == "plain"
        assert server.state()["contexts"] == 3
        web.until(lambda: not server.state()["held"])


def test_a_view_over_the_quota_is_a_503(server: Application, eventually: Eventually) -> None:
    with client(server, eventually) as web:
        assert is_refusal(web.get("/over"), "quota")

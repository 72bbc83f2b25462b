"""The Django project that test_django*.py run: source text for a process of its own, WSGI and ASGI.

One process has several applications, each with its own options: Django reads them when a handler is made, and the first
part of the path says which one is asked.
"""

APPLICATION = """
from gates import *
import contextvars, sqlite3
import bulkhead
bulkhead.install()
import django
from django.conf import settings
from django.test import override_settings

SECRET = "password=hunter2"
sessions = HERE / "sessions.db"
with sqlite3.connect(sessions) as made:
    made.execute("create table if not exists django_session"
        " (session_key varchar(40) primary key, session_data text, expire_date datetime)")
databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(sessions)}}
if CONFIG["postgres"]:
    host, port = CONFIG["postgres"]
    databases["shop"] = {
        "ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port, "USER": "postgres", "NAME": "postgres",
        "OPTIONS": bulkhead.options(name="shop", tickets=20, tenant_tickets=5, call_timeout=30.0),
    }
settings.configure(
    SECRET_KEY=CONFIG["key"], ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, DATABASES=databases, USE_TZ=True,
    INSTALLED_APPS=["django.contrib.sessions"],
    LOGGING={"version": 1, "disable_existing_loggers": False,
        "handlers": {"file": {"class": "logging.FileHandler", "filename": str(HERE / "django.log")}},
        "loggers": {"django.request": {"handlers": ["file"], "level": "WARNING"}}},
    MIDDLEWARE=[
        "application.Outside",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "bulkhead.web.django.TenancyMiddleware",
        "application.Inside",
        "django.middleware.common.CommonMiddleware",
    ],
)
django.setup()
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.http import FileResponse, Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import sync_and_async_middleware
from asgiref.sync import iscoroutinefunction

dependency = bulkhead.resource("slow", tickets=9, cancel_counts_after=0.001)

def gate_of(request):
    return request.GET.get("gate", "")

@sync_and_async_middleware
def Outside(get_response):
    if iscoroutinefunction(get_response):
        async def middleware(request):
            note(gate_of(request), "outside")
            response = await get_response(request)
            note(gate_of(request), "outside, after")
            if request.path_info == "/moody":
                response["X-Mood"] = mood.get()
            return response
    else:
        def middleware(request):
            note(gate_of(request), "outside")
            response = get_response(request)
            note(gate_of(request), "outside, after")
            return response
    return middleware

class Inside:
    async_capable = False
    def __init__(self, get_response):
        self.get_response = get_response
    def __call__(self, request):
        note(gate_of(request), "inside")
        if request.path_info == "/middleware":
            raise bulkhead.ResourceBusyError("sql:users", "acme", "tenant")
        response = self.get_response(request)
        if request.path_info == "/mended" and response.status_code == 500:
            return HttpResponse("a page of the shop")
        return response
    def process_view(self, request, view, args, kwargs):
        if request.path_info in ("/process-view", "/mended"):
            raise RuntimeError(SECRET) from bulkhead.CircuitOpenError("sql:users", "acme", 2.5)

if CONFIG["asynchronous"]:  # nothing between the server and an asynchronous view makes it wait for a thread
    settings.MIDDLEWARE.remove("application.Inside")

def hello(request):
    return HttpResponse(f"{bulkhead.current_tenant()} {request.META['bulkhead.tenant']}")

async def ahello(request):
    await asyncio.sleep(0)
    return hello(request)

def login(request, tenant):
    request.session["tenant"] = tenant
    return HttpResponse("welcome")

def waits(request):
    wait(gate_of(request))
    return hello(request)

async def awaits(request):
    await await_(gate_of(request))
    return hello(request)

def stream(request):
    gate = gate_of(request)
    def parts():
        try:
            yield "begin\\n"
            wait(gate)
            with bulkhead.tenant("inner"):
                yield "middle\\n"
                note(gate, "block goes on")
            yield "end\\n"
        finally:
            note(gate, "finally")
    return StreamingHttpResponse(parts())

async def astream(request):
    gate = gate_of(request)
    async def parts():
        try:
            yield "begin\\n"
            await await_(gate)
            with bulkhead.tenant("inner"):
                yield "middle\\n"
                note(gate, "block goes on")
            yield "end\\n"
        finally:
            note(gate, "finally")
    return StreamingHttpResponse(parts())

def endless(request):
    gate = gate_of(request)
    def parts():
        try:
            while True:
                yield b"x" * 100_000
        finally:
            note(gate, "finally")
    return StreamingHttpResponse(parts())

async def aendless(request):
    gate = gate_of(request)
    async def parts():
        try:
            while True:
                await asyncio.sleep(0)  # sending does not wait, once the client is gone
                yield b"x" * 100_000
        finally:
            note(gate, "finally")
    return StreamingHttpResponse(parts())

mood = contextvars.ContextVar("mood", default="calm")

async def moody(request):
    mood.set("merry")
    async def parts():
        yield f"{mood.get()} {await asyncio.to_thread(bulkhead.current_tenant)}"
    return StreamingHttpResponse(parts())

async def guarded(request):
    async with dependency.permit():
        await await_(gate_of(request))

async def guarded_in_task(request):
    await asyncio.gather(guarded(request))

async def guarded_stream(request):
    async def parts():
        yield "begin\\n"
        async with dependency.permit():
            await await_(gate_of(request))
    return StreamingHttpResponse(parts())

async def deadline(request):
    try:
        async with asyncio.timeout(0.05), dependency.permit():
            await await_(gate_of(request))
    except TimeoutError:
        return HttpResponse("late")

def query(request):
    with connections["shop"].cursor() as cursor:
        cursor.execute("SELECT 41 + 1")
        return HttpResponse(str(cursor.fetchone()[0]))

def refused_query(request):
    query(request)
    resource = bulkhead.find("postgres:shop")
    resource.open("by the test")
    try:
        return query(request)
    finally:
        resource.close()

def wrapped(request):
    raise RuntimeError(SECRET) from bulkhead.CircuitOpenError("sql:shop", "acme", 2.5)

async def awrapped(request):
    raise ExceptionGroup(SECRET, [ValueError(SECRET), bulkhead.CircuitOpenError("sql:shop", "acme", 2.5)])

def late(request):
    def parts():
        yield "begin\\n"
        raise bulkhead.ResourceBusyError("sql:shop", "acme", "tenant")
    return StreamingHttpResponse(parts())

async def alate(request):
    async def parts():
        yield "begin\\n"
        raise bulkhead.ResourceBusyError("sql:shop", "acme", "tenant")
    return StreamingHttpResponse(parts())

def not_found(request):
    try:
        wrapped(request)
    except RuntimeError:
        raise Http404("decided by the view")

def error(request):
    raise ValueError(SECRET)

def file(request):
    return FileResponse(open(__file__, "rb"))

def file_in_memory(request):
    import io
    class Named(io.BytesIO):
        def read(self, *size):
            note(gate_of(request), "read")
            return super().read(*size)
        def close(self):
            note(gate_of(request), "close")
            super().close()
    return FileResponse(Named(b"in memory"), filename="memory.txt")

def middleware(request):
    raise AssertionError("never called")

def urls(*views):
    for view in views:
        yield path(view.__name__.replace("_", "-"), view)

urlpatterns = [
    path("", hello), path("login/<tenant>", login), path("public", hello), path("process-view", middleware),
    path("mended", middleware),
    *urls(ahello, waits, awaits, stream, astream, endless, aendless, moody, guarded, guarded_in_task, guarded_stream, deadline,
        query, refused_query, wrapped, awrapped, late, alate, not_found, error, file, file_in_memory, middleware),
]

def by_function(request):
    assert request.META is not None
    if "refused" in request.GET:
        raise bulkhead.CircuitOpenError("sql:accounts", None, 1.5)
    return request.headers.get("X-Org") or request.session.get("org")

async def by_coroutine_function(request):
    await asyncio.sleep(0)
    return by_function(request)

WAYS = {
    "header": {"source": "header"},
    "body": {"source": "header", "hold": "body"},
    "session": {"source": "session"},
    "jwt": {"source": "jwt", "jwt_key": CONFIG["key"], "jwt_algorithms": ["HS256"]},
    "subdomain": {"source": "subdomain", "domain": "example.com"},
    "function": {"source": "application.by_function"},
    "share": {"missing": "share", "invalid": "share"},
    "allow": {"missing": "allow", "invalid": "allow"},
}
if CONFIG["asynchronous"]:
    WAYS["coroutine"] = {"source": by_coroutine_function}

def handlers(kind):
    found = {}
    for name, options in WAYS.items():
        limits = {"max_concurrent_requests": 1, "public_paths": ["/login/*", "/public"]}
        with override_settings(BULKHEAD_TENANCY={**limits, **options}):
            found[name] = kind()
    return found

if CONFIG["asynchronous"]:
    from bulkhead.web.asgi import TenancyMiddleware
    found = handlers(ASGIHandler)

    async def application(scope, receive, send):
        first, _, rest = scope["path"][1:].partition("/")
        if first == "outer":
            await outer({**scope, "path": f"/{rest}"}, receive, send)
        elif first == "cut":
            async def cutting(message):
                await send(message)
                if message["type"] == "http.response.body":
                    raise OSError("the client is gone")  # as servers do that follow version 2.4 of ASGI
            part, _, rest = rest.partition("/")
            await found[part]({**scope, "path": f"/{rest}"}, receive, cutting)
        elif first in found:
            await found[first]({**scope, "root_path": f"/{first}"}, receive, send)
        else:
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": json.dumps(state()).encode()})

    outer = TenancyMiddleware(application, max_concurrent_requests=1)
else:
    found = handlers(WSGIHandler)

    def application(environ, start_response):
        first, _, rest = environ["PATH_INFO"][1:].partition("/")
        if first in found:
            environ["SCRIPT_NAME"], environ["PATH_INFO"] = f"/{first}", f"/{rest}"
            return found[first](environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(state()).encode()]
"""

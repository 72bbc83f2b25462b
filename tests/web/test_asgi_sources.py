"""Where the tenant comes from, and what becomes of requests without one."""

from __future__ import annotations

import base64
import hmac
import json
import logging
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from web.asgi_servers import Asked, ask, client, serving

import bulkhead
from bulkhead.web import InvalidTenant
from bulkhead.web.asgi import TenancyMiddleware

pytest.importorskip("fastapi")
pytest.importorskip("jwt")
pytest.importorskip("itsdangerous")
import jwt
from fastapi import FastAPI
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request  # noqa: TC002  FastAPI looks at annotations

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

KEY = "a secret of at least thirty-two bytes"
CHECKED_BY: dict[str, Any] = {"jwt_key": KEY, "jwt_algorithms": ["HS256"]}


# ---- header


@pytest.mark.parametrize(
    ("value", "tenant"),
    [
        ("acme", "acme"),
        ("42", "42"),
        ("größe", "größe"),
        ("x" * 256, "x" * 256),
        ("with space", "with space"),
        (b"\xff\xfe", 400),
        ("x" * 257, 400),
        ("ü" * 200, 400),
        ("a\x00b", 400),
        ("a\x7fb", 400),
        ("", 400),
    ],
)
async def test_a_header_names_the_tenant(value: str | bytes, tenant: str | int) -> None:
    asked = await ask({"X-Tenant-ID": value}, source="header")
    assert (asked.tenant if asked.status == 200 else asked.status) == tenant


async def test_the_header_may_have_another_name_in_any_case() -> None:
    assert (await ask({"x-organisation": "acme"}, header="X-ORGANISATION")).tenant == "acme"


async def test_a_header_given_twice_is_neither_of_the_two() -> None:
    """A proxy may have checked the one, the application must not take the other."""
    assert (await ask([("X-Tenant-ID", "a"), ("X-Tenant-ID", "b")], source="header")).tenant == "a, b"


async def test_values_that_were_seen_lately_are_known_and_change_nothing() -> None:
    asked = Asked()
    middleware = TenancyMiddleware(asked.app, source="header")
    name = b"x-tenant-id"
    for values, tenant in (([b"a"], "a"), ([b"a"], "a"), ([b"a", b"b"], "a, b"), ([b"b"], "b"), ([b"b", b"a"], "b, a")):
        await middleware({"type": "http", "headers": [(name, one) for one in values]}, asked.receive, asked.send)
        assert asked.tenant == tenant
    for number in range(5000):
        await middleware({"type": "http", "headers": [(name, b"t%d" % number)]}, asked.receive, asked.send)
        assert asked.tenant == f"t{number}"
    plan = middleware._edge.plan
    assert plan is not None
    assert plan.quick is not None
    assert 0 < len(plan.quick[1]) <= 1000
    for bad in (b"", b"a\x00", b"\xff"):
        for _ in range(2):
            asked.status = 200
            await middleware({"type": "http", "headers": [(name, bad)]}, asked.receive, asked.send)
            assert asked.status == 400


# ---- subdomain


@pytest.mark.parametrize(
    ("host", "tenant"),
    [
        ("acme.example.com", "acme"),
        ("ACME.Example.COM", "acme"),
        ("acme.example.com:8443", "acme"),
        ("acme.example.com.", "acme"),
        ("xn--gre-6ka8i.example.com", "xn--gre-6ka8i"),
        ("example.com", "missing"),
        ("10.0.0.7:8000", "missing"),
        ("[::1]:8000", "missing"),
        ("[::1]", "missing"),
        ("acme.example.com.evil.org", "missing"),
        ("notexample.com", "missing"),
        ("", "missing"),
        ("a.b.example.com", "invalid"),
        (".example.com", "invalid"),
        ("a b.example.com", "invalid"),
        (f"{'x' * 64}.example.com", "invalid"),
        ("größe.example.com", "invalid"),
    ],
)
async def test_the_label_below_the_domain_names_the_tenant(host: str, tenant: str) -> None:
    asked = await ask({"Host": host}, source="subdomain", domain="example.com")
    told = asked.tenant if asked.status == 200 else json.loads(asked.body)["reason"].removeprefix("tenant_")
    assert told == tenant


def test_subdomain_needs_the_domain() -> None:
    with pytest.raises(bulkhead.ConfigurationError, match="domain"):
        TenancyMiddleware(Asked().app, source="subdomain")


# ---- session


async def test_the_session_of_the_framework_names_the_tenant() -> None:
    app = FastAPI()
    app.add_middleware(TenancyMiddleware, source="session", session_key="org", public_paths=["/login/*"])
    app.add_middleware(SessionMiddleware, secret_key=KEY)

    @app.get("/login/{org}")
    async def login(request: Request, org: int) -> None:
        request.session["org"] = org

    @app.get("/")
    async def who() -> str | None:
        return bulkhead.current_tenant()

    with serving(app) as server:
        async with client(server) as web:
            unknown = await web.get("/")
            assert (unknown.status_code, unknown.headers["www-authenticate"]) == (401, "Cookie")
            assert (await web.get("/login/17")).status_code == 200
            assert (await web.get("/")).json() == "17"


async def test_without_session_middleware_around_it_the_error_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    app.add_middleware(SessionMiddleware, secret_key=KEY)  # inside: added before
    app.add_middleware(TenancyMiddleware, source="session")
    with serving(app) as server, caplog.at_level(logging.ERROR):
        async with client(server) as web:
            assert (await web.get("/")).status_code == 500
    assert "app.add_middleware(TenancyMiddleware, …) and then app.add_middleware(SessionMiddleware" in caplog.text


# ---- JSON Web Token


def token(claims: dict[str, Any] | None = None, key: Any = KEY, algorithm: str = "HS256") -> str:
    return str(jwt.encode({"tenant": "acme", **(claims or {})}, key, algorithm=algorithm))


@pytest.mark.parametrize(
    ("authorization", "options", "tenant"),
    [
        (lambda: f"Bearer {token()}", {}, "acme"),
        (lambda: f"bearer   {token()}", {}, "acme"),
        (lambda: f"Bearer {token({'tenant': 17})}", {}, "17"),
        (lambda: f"Bearer {token({'org': 'x'})}", {"jwt_claim": "org"}, "x"),
        (lambda: f"Bearer {token({'exp': time.time() + 600})}", {}, "acme"),
        (lambda: f"Bearer {token({'aud': 'us'})}", {"jwt_audience": "us"}, "acme"),
        (lambda: f"Bearer {token({'iss': 'them'})}", {"jwt_issuer": "them"}, "acme"),
        (lambda: "", {}, "missing"),
        (lambda: "Basic YTpi", {}, "missing"),
        (lambda: f"Bearer {token({'tenant': None})}", {}, "missing"),
        (lambda: f"Bearer {token({'tenant': ''})}", {}, "missing"),
        (lambda: "Bearer ", {}, "missing"),
        (token, {}, "acme"),
        (lambda: "Bearer nonsense", {}, "invalid"),
        (lambda: "nonsense", {}, "invalid"),
        (lambda: "Bearer two words", {}, "invalid"),
        (lambda: "Bearer größe", {}, "invalid"),
        (lambda: f"Bearer {'[' * 20_000}.e30.e30", {}, "invalid"),
        (lambda: f"Bearer {token({'tenant': ['acme']})}", {}, "invalid"),
        (lambda: f"Bearer {token({'tenant': 1.5})}", {}, "invalid"),
        (lambda: f"Bearer {token(key='another secret of thirty-two bytes')}", {}, "invalid"),
        (lambda: f"Bearer {token(algorithm='HS512')}", {}, "invalid"),
        (lambda: f"Bearer {token(key='', algorithm='none')}", {}, "invalid"),
        (lambda: f"Bearer {token({'exp': time.time() - 600})}", {}, "invalid"),
        (lambda: f"Bearer {token({'nbf': time.time() + 600})}", {}, "invalid"),
        (lambda: f"Bearer {token({'aud': 'them'})}", {"jwt_audience": "us"}, "invalid"),
        (lambda: f"Bearer {token()}", {"jwt_audience": "us"}, "invalid"),
        (lambda: f"Bearer {token({'aud': 'us'})}", {}, "invalid"),  # for somebody, and nobody said that we are it
        (lambda: f"Bearer {token({'iss': 'us'})}", {"jwt_issuer": "them"}, "invalid"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*HMAC key:UserWarning")  # PyJWT's, of a token of ours that is wrong on purpose
async def test_a_token_names_the_tenant_if_it_verifies(
    authorization: Callable[[], str], options: dict[str, Any], tenant: str
) -> None:
    asked = await ask({"Authorization": authorization()}, source="jwt", **CHECKED_BY, **options)
    if tenant in ("missing", "invalid"):
        assert (asked.status, asked.headers["www-authenticate"]) == (401, "Bearer")
        assert json.loads(asked.body)["reason"] == f"tenant_{tenant}"
    else:
        assert asked.tenant == tenant


async def test_a_token_may_stand_alone_in_a_header_of_its_own() -> None:
    options: dict[str, Any] = {"source": "jwt", "jwt_header": "X-Token", **CHECKED_BY}
    assert (await ask({"X-Token": token()}, **options)).tenant == "acme"
    assert (await ask({"X-Token": f"Bearer {token()}"}, **options)).tenant == "acme"
    assert (await ask({"Authorization": f"Bearer {token()}"}, **options)).status == 401


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "jwt_key"),
        ({"jwt_key": KEY}, "jwt_algorithms"),
        ({"jwt_algorithms": ["HS256"]}, "jwt_key"),
        ({"jwt_key": KEY, "jwt_algorithms": ["none"]}, "none"),
        ({"jwt_key": KEY, "jwt_algorithms": ["HS256", "None"]}, "None"),
        ({"jwt_key": KEY, "jwt_algorithms": ["HS256", "RS256"]}, "public key"),
        ({"jwt_key": KEY, "jwt_algorithms": ["RS256"]}, "RS256"),
        ({"jwt_key": KEY, "jwt_algorithms": ["XX1"]}, "XX1"),
    ],
)
def test_key_and_algorithms_must_be_stated_and_make_sense(options: dict[str, Any], says: str) -> None:
    with pytest.raises(bulkhead.ConfigurationError, match=says) as caught:
        TenancyMiddleware(Asked().app, source="jwt", **options)
    assert KEY not in str(caught.value)


async def test_a_public_key_verifies_and_a_token_signed_with_it_as_secret_does_not() -> None:
    """The algorithm confusion of RFC 8725, 2.1."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    private = ec.generate_private_key(ec.SECP256R1())
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    options: dict[str, Any] = {"source": "jwt", "jwt_key": public.decode(), "jwt_algorithms": ["ES256"]}
    assert (await ask({"Authorization": f"Bearer {token(key=private, algorithm='ES256')}"}, **options)).tenant == "acme"
    parts = [json.dumps(one).encode() for one in ({"alg": "HS256", "typ": "JWT"}, {"tenant": "acme"})]
    signed = b".".join(base64.urlsafe_b64encode(one).rstrip(b"=") for one in parts)
    forged = signed + b"." + base64.urlsafe_b64encode(hmac.digest(public, signed, "sha256")).rstrip(b"=")
    assert (await ask({"Authorization": f"Bearer {forged.decode()}"}, **options)).status == 401


def test_without_pyjwt_the_error_names_the_extra(run_python: Any) -> None:
    source = f"""
import sys
sys.modules["jwt"] = None
from bulkhead.web.asgi import TenancyMiddleware
try:
    TenancyMiddleware(print, source="jwt", jwt_key={KEY!r}, jwt_algorithms=["HS256"])
except ValueError as error:
    print(error)
"""
    assert 'pip install "bulkhead-toolkit[jwt]"' in run_python(source).stdout


# ---- a function


async def test_a_function_of_the_users_is_given_the_scope() -> None:
    def plain(scope: Any) -> str | None:
        return str(scope["path"]).strip("/") or None

    async def coroutine(scope: Any) -> str | None:
        return plain(scope)

    class Instance:
        async def __call__(self, scope: Any) -> str | None:
            return plain(scope)

    async def of_two(prefix: str, scope: Any) -> str:
        return f"{prefix}{plain(scope)}"

    for source in (plain, coroutine, Instance()):
        assert (await ask({}, path="/acme", source=source)).tenant == "acme"
        assert (await ask({}, path="/", source=source)).status == 400
    assert (await ask({}, path="/acme", source=partial(of_two, "x-"))).tenant == "x-acme"


async def test_a_function_may_answer_int_and_uuid_or_say_that_a_tenant_is_invalid() -> None:
    number = uuid.uuid4()
    assert (await ask({}, source=lambda scope: 17)).tenant == "17"
    assert (await ask({}, source=lambda scope: number)).tenant == str(number)

    def refuse(scope: Any) -> str:
        raise InvalidTenant("a secret reason")

    asked = await ask({}, source=refuse)
    assert json.loads(asked.body)["reason"] == "tenant_invalid"
    assert b"secret" not in asked.body


async def test_an_error_of_the_function_is_the_applications_and_a_rejection_is_503() -> None:
    def fails(scope: Any) -> str:
        raise LookupError

    def rejected(scope: Any) -> str:
        raise bulkhead.CircuitOpenError("sql:tenants", None, 5.0)

    with pytest.raises(LookupError):
        await ask({}, source=fails)
    asked = await ask({}, source=rejected)
    assert (asked.status, asked.headers["retry-after"]) == (503, "5")

"""Where the tenant of a request comes from: header, subdomain, session, JSON Web Token, or a function of the user's.

A source is built once, from the settings and a framework's `Reader`; asked for a request it returns the id as text,
None when the request names no tenant, or raises InvalidTenant. What becomes of the last two is edge.py's question.
Header and host are written by the client: they name a tenant, they do not prove one. Nothing here quotes a request.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bulkhead.errors import ConfigurationError
from bulkhead.tenancy import MAXIMUM_BYTES, tenant_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bulkhead.settings.sections import Tenancy

_LABEL: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_LONGEST_LABEL: Final = 63  # RFC 1035


class InvalidTenant(Exception):
    """The request names a tenant that cannot be. A source of the user's may raise it; its text is never shown."""


class Reader(Protocol):
    """How a framework's requests are read. Each method is asked once and returns what is called for each request.

    It may have a third, `tenant_header(name)`: its own `find` of the source "header", and what Source.quick says.
    """

    def header(self, name: str) -> Callable[[Any], str | None]:
        """The header of that name (case does not matter), several joined by ", "; None when there is none.

        Bytes are decoded as UTF-8 with errors="surrogateescape", which no tenant id passes.
        """
        ...

    def session(self, key: str) -> Callable[[Any], object]:
        """The value under that key of the framework's own session, None without; ConfigurationError: no session."""
        ...


class Source(NamedTuple):
    """A source that is ready to be asked. `awaits`: `find` is a coroutine function."""

    find: Callable[[Any], Any]
    awaits: bool = False
    status: int = 400
    """Of the refusal when there is no tenant, or one that cannot be: 401 where the source is an identity."""
    challenge: str | None = None
    """WWW-Authenticate of that refusal."""
    quick: tuple[Any, ...] | None = None
    """What lets a middleware find the tenant without a call: the header's name, and a table of its values."""
    inside: bool = False
    """A plain `find` that wants the framework's own request, and may wait: a session's store, code of the user's."""


def source_of(tenancy: Tenancy, reader: Reader, *, asynchronous: bool) -> Source:
    """The source that the settings name. ConfigurationError for what is missing or contradicts itself.

    `asynchronous`: whether the framework can await a coroutine function.
    """
    source = tenancy.source
    if callable(source):
        return _callable(source, asynchronous=asynchronous)
    if source == "header":
        return _header(tenancy, reader)
    if source == "subdomain":
        return _subdomain(tenancy, reader)
    if source == "session":
        return _session(tenancy, reader)
    if source == "jwt":
        return _jwt(tenancy, reader)
    raise ConfigurationError(
        f'source must be "header", "subdomain", "session", "jwt" or a callable that takes the request, not {source!r}'
    )


def checked(value: Any) -> str | None:
    """The tenant id as text; None for None and for an empty text. Raises InvalidTenant."""
    if value.__class__ is str and value.isascii() and value.isprintable() and len(value) <= MAXIMUM_BYTES:
        return value or None
    if value is None or value == "":
        return None
    try:
        return tenant_text(value)
    except ConfigurationError as error:
        raise InvalidTenant(str(error)) from None


def _header(tenancy: Tenancy, reader: Reader) -> Source:
    own = getattr(reader, "tenant_header", None)
    if own is not None:
        find, *quick = own(tenancy.header)
        return Source(find, quick=tuple(quick))
    read = reader.header(tenancy.header)

    def read_and_check(request: Any) -> str | None:
        return checked(read(request))

    return Source(read_and_check)


def _session(tenancy: Tenancy, reader: Reader) -> Source:
    read = reader.session(tenancy.session_key)

    def find(request: Any) -> str | None:
        return checked(read(request))

    return Source(find, status=401, challenge="Cookie", inside=True)


def _subdomain(tenancy: Tenancy, reader: Reader) -> Source:
    if not tenancy.domain:
        raise ConfigurationError(
            'source = "subdomain" needs the domain below which tenants have their hosts: domain = "example.com"'
        )
    read, ending = reader.header("host"), "." + tenancy.domain.strip(".").lower()

    def find(request: Any) -> str | None:
        host = (read(request) or "").lower()
        if host[-1:] != "]":  # not a bare IPv6 address
            host = host.rpartition(":")[0] or host
        host = host.removesuffix(".")
        if not host.endswith(ending):
            return None  # the domain itself, or a probe that asks by address
        label = host[: -len(ending)]
        if not 0 < len(label) <= _LONGEST_LABEL or not _LABEL.issuperset(label):
            raise InvalidTenant("a tenant's host is one label below the domain")
        return label

    return Source(find)


def _callable(function: Callable[[Any], Any], *, asynchronous: bool) -> Source:
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not (inspect.isroutine(inner) or isinstance(inner, type)):
        inner = type(inner).__call__
    if inspect.iscoroutinefunction(inner):
        if not asynchronous:
            raise ConfigurationError(
                "source is a coroutine function, and this framework is synchronous: pass a plain one"
            )

        async def ask(request: Any) -> str | None:
            return checked(await function(request))

        return Source(ask, awaits=True)

    def find(request: Any) -> str | None:
        return checked(function(request))

    return Source(find, inside=True)


def _jwt(tenancy: Tenancy, reader: Reader) -> Source:
    verify = _verifier(tenancy)
    read, claim = reader.header(tenancy.jwt_header), tenancy.jwt_claim

    def find(request: Any) -> str | None:
        words = (read(request) or "").split(maxsplit=1)
        if len(words) == 2 and words[0].lower() != "bearer":
            return None  # another way to say who one is
        if not words or words[-1].lower() == "bearer":
            return None
        return checked(verify(words[-1]).get(claim))

    return Source(find, status=401, challenge="Bearer")


def _verifier(tenancy: Tenancy) -> Callable[[str], dict[str, Any]]:
    """What turns a token into its claims, if signature, expiry, audience and issuer are right; else InvalidTenant."""
    key, algorithms = tenancy.jwt_key, [*tenancy.jwt_algorithms]
    if key is None or not algorithms:
        raise ConfigurationError(
            'source = "jwt" needs jwt_key and jwt_algorithms, for example jwt_algorithms = ["RS256"]: a token must not '
            "choose how it is checked"
        )
    try:
        import jwt  # noqa: PLC0415  an extra, needed by this source only
    except ImportError:
        raise ConfigurationError('source = "jwt" needs PyJWT: pip install "bulkhead-toolkit[jwt]"') from None
    _check_algorithms(jwt, key, algorithms)
    decode, audience, issuer = jwt.decode, tenancy.jwt_audience, tenancy.jwt_issuer

    def verify(token: str) -> dict[str, Any]:
        try:
            claims: dict[str, Any] = decode(token, key, algorithms=algorithms, audience=audience, issuer=issuer)
        except Exception:  # noqa: BLE001  whatever a token makes the decoder raise, the token is no good
            raise InvalidTenant("the token does not verify") from None
        return claims

    return verify


def _check_algorithms(jwt: Any, key: Any, algorithms: Sequence[str]) -> None:
    """Find at construction what would refuse every token, or let in any."""
    if any(name.lower() == "none" for name in algorithms):
        raise ConfigurationError('jwt_algorithms: "none" lets anybody write a token; it is never accepted')
    if len({name.upper().startswith("HS") for name in algorithms}) > 1:
        raise ConfigurationError(
            "jwt_algorithms: one key is a shared secret (HS…) or a public key (RS…, ES…, PS…, EdDSA), not both"
        )
    for name in algorithms:
        try:
            algorithm = jwt.get_algorithm_by_name(name)
        except NotImplementedError:
            raise ConfigurationError(
                f'jwt_algorithms: PyJWT does not know {name!r} here; RS…, ES…, PS… and EdDSA need "PyJWT[crypto]"'
            ) from None
        if isinstance(key, jwt.PyJWK):
            continue
        try:
            algorithm.prepare_key(key)
        except Exception as error:  # noqa: BLE001  of cryptography, which has many kinds
            raise ConfigurationError(f"jwt_key is no key for {name}: {type(error).__name__}") from None

"""The sections of the settings: what can be set, its default, what it means, what is accepted. One dataclass each.

A section is a frozen dataclass whose fields are rows (`option_rows.row`), as options are: checks, the reference in the
docs, the settings file and the environment follow from them. Every part of the toolkit registers its own section here
by `section()`. Rules that concern two keys at a time stand beside the section. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import choice, flag, row, rows_of, whole
from bulkhead.process_values import ProcessValues
from bulkhead.settings.kinds import PerTenant, per_tenant, secret, text, texts, word_or_callable
from bulkhead.settings.parts import Jobs, Memory

Policy = Literal["reject", "share", "allow"]
Rule = Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]]
"""Given valid values of a section: (key, what is wrong with it) for each that contradicts another."""

_SYMMETRIC = ("HS256", "HS384", "HS512")
_ASYMMETRIC = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES256K", "ES384", "ES512", "EdDSA"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulkhead(ProcessValues):
    """[bulkhead]: the values of `bulkhead.defaults()`, and the policy of `bulkhead.unknown_tenant()`."""

    unknown_tenant: Policy = row(
        "allow",
        "",
        'what becomes of calls outside any tenant: "allow" = only the limits of the whole resource apply, "share" = '
        'all of them together are held to the limit of one tenant, "reject" = UnknownTenantError',
        choice("allow", "share", "reject"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """[tenancy]: who a web request works for, and how much one tenant may have at a time."""

    enabled: bool = row(False, "", "whether TenancyMiddleware does anything", flag())
    source: Literal["header", "subdomain", "session", "jwt"] | Callable[..., str | None] = row(
        "header",
        "",
        'where the tenant of a request comes from. "header" and "subdomain" are chosen by the client: use them behind '
        'something that authenticates; "session" = the framework\'s own; "jwt" = a verified token',
        word_or_callable("header", "subdomain", "session", "jwt"),
        part="source",
        marks=("restart",),
    )
    header: str = row(
        "X-Tenant-ID",
        "",
        'with source = "header": the name of the header',
        text("the name of an HTTP header", r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"),
        part="source",
    )
    domain: str | None = row(
        None,
        "",
        'with source = "subdomain": the base domain; the tenant is the label before it',
        text(
            "a domain name without port and without a leading dot",
            r"(?i)(?!-)[a-z0-9-]+(\.(?!-)[a-z0-9-]+)*",
            none="no domain",
        ),
        part="source",
    )
    session_key: str = row(
        "tenant",
        "",
        'with source = "session": the key of the session',
        text("a text of 1 to 256 bytes", r"(?s).+"),
        part="source",
    )
    jwt_header: str = row(
        "Authorization",
        "",
        'with source = "jwt": the header that carries the token, after "Bearer " or alone',
        text("the name of an HTTP header", r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"),
        part="source",
    )
    jwt_key: Any = row(
        None,
        "",
        'with source = "jwt": the key that verifies the token: the shared secret, or the public key (PEM)',
        secret("a text that is not empty (in code also bytes, or a key object of PyJWT)"),
        part="source",
        marks=("secret",),
    )
    jwt_algorithms: tuple[str, ...] = row(
        (),
        "",
        'with source = "jwt": the algorithms that are accepted; never "none", and never HS… beside the others',
        texts("names of algorithms (HS256, RS256, ES256, EdDSA …)", "|".join((*_SYMMETRIC, *_ASYMMETRIC))),
        part="source",
    )
    jwt_claim: str = row(
        "tenant",
        "",
        'with source = "jwt": the claim that names the tenant',
        text("a text of 1 to 256 bytes", r"(?s).+"),
        part="source",
    )
    jwt_audience: str | None = row(
        None,
        "",
        'with source = "jwt": the audience that the token must be for; None = a token with an audience is refused',
        text("a text of 1 to 256 bytes", r"(?s).+", none="no audience"),
        part="source",
    )
    jwt_issuer: str | None = row(
        None,
        "",
        'with source = "jwt": the issuer that the token must be from; None = not checked',
        text("a text of 1 to 256 bytes", r"(?s).+", none="not checked"),
        part="source",
    )
    missing: Policy = row(
        "reject",
        "",
        'what becomes of a request that names no tenant: "reject" = 400 (jwt, session: 401), "share" = all of them '
        'are one tenant, "allow" = it belongs to nobody and only the limits of the whole apply',
        choice("reject", "share", "allow"),
    )
    invalid: Policy = row(
        "reject",
        "",
        "the same for a request whose tenant cannot be used: no tenant id, a token that does not verify",
        choice("reject", "share", "allow"),
    )
    public_paths: tuple[str, ...] = row(
        (),
        "",
        "paths that need no tenant and are not counted, probes for example: patterns as in a shell (*, ?, […])",
        texts("patterns that begin with / or *", r"[/*][^\x00-\x1f\x7f]*"),
    )
    max_concurrent_requests: PerTenant = row(
        0,
        "requests",
        "requests of one tenant in work; further ones get 503 at once; 0 = no limit",
        per_tenant(),
    )
    max_websockets: PerTenant = row(0, "websockets", "websockets that one tenant has open; 0 = no limit", per_tenant())
    max_db_connections: PerTenant = row(
        0,
        "connections",
        "database connections that one tenant has checked out of all SQLAlchemy engines and psycopg pools of the "
        "process; 0 = no limit",
        per_tenant(),
    )
    hold: Literal["head", "body"] = row(
        "head",
        "",
        'how long a request counts: "head" = until the response begins, "body" = until its body is sent',
        choice("head", "body"),
    )
    retry_after: int = row(1, "s", "Retry-After of a 503 where nothing better is known", whole(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """[server]: what one process takes on, all tenants together."""

    max_concurrent_requests: int = row(
        0, "requests", "requests in work; further ones get 503 at once; 0 = no limit", whole(0)
    )


class Section(NamedTuple):
    """A section: its dataclass, and the rules for keys that contradict each other."""

    kind: type
    rules: tuple[Rule, ...]


def process_rules(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """As `bulkhead.defaults` has it."""
    most, goal = values["maximum_resources"], values["maximum_lru_size"]
    if most is not None and most < goal:
        yield "maximum_resources", f"{most} is below maximum_lru_size ({goal}), the number to come down to"


def tenancy_rules(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a source needs, and what would be a hole in it. Code can complete a section that is not enabled."""
    source, algorithms = values["source"], values["jwt_algorithms"]
    if len({one in _SYMMETRIC for one in algorithms}) > 1:  # RFC 8725, 3.1
        yield "jwt_algorithms", "mixes HS… with signatures: a public key would pass as a shared secret; name one kind"
    if not values["enabled"] or callable(source):
        return
    if source == "subdomain" and values["domain"] is None:
        yield "domain", 'is needed with source = "subdomain"'
    for key in ("jwt_key", "jwt_algorithms"):
        if source == "jwt" and not values[key]:
            yield key, 'is needed with source = "jwt"'
        elif source != "jwt" and values[key]:
            yield key, f'does nothing with source = "{source}", so no token would be verified; set source = "jwt"'


_sections: dict[str, Section] = {
    "bulkhead": Section(Bulkhead, (process_rules,)),
    "tenancy": Section(Tenancy, (tenancy_rules,)),
    "server": Section(Server, ()),
    "memory": Section(Memory, ()),
    "jobs": Section(Jobs, ()),
}
RESOURCES = "resources"
OWN = tuple(_sections)
"""Those that `Settings` has attributes for."""


def section(name: str, kind: type, *rules: Rule) -> None:
    """Register a part's section, before settings are loaded: a frozen dataclass whose fields are rows.

    ConfigurationError if the name is another section's, or the dataclass has fields without a row.
    """
    known = Section(kind, rules)
    if not name.isidentifier() or name != name.lower() or "__" in name or name == RESOURCES:
        raise ConfigurationError(f"{name!r} cannot be the name of a section")
    if len(rows_of(kind)) != len(getattr(kind, "__dataclass_fields__", ())) or not rows_of(kind):
        raise ConfigurationError(f"section {name!r}: {kind.__name__} is no dataclass whose fields are all rows")
    if _sections.setdefault(name, known) != known:
        raise ConfigurationError(f"section {name!r} is already registered by {_sections[name].kind.__name__}")


def sections() -> dict[str, Section]:
    """All registered sections by name."""
    return dict(_sections)

"""The options of TenancyMiddleware as type checkers and editors see them: those of [tenancy], and one of [server].

What each means, its default and what it accepts stands in `bulkhead.settings.Tenancy`; a test compares the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bulkhead.settings.kinds import PerTenant
    from bulkhead.settings.sections import Policy


class TenancyOptions(TypedDict, total=False):
    """`TenancyMiddleware(app, **options)`; with any of them it is on, unless enabled=False."""

    enabled: bool
    source: Literal["header", "subdomain", "session", "jwt"] | Callable[[Any], Any]
    header: str
    domain: str | None
    session_key: str
    jwt_header: str
    jwt_key: str | bytes | None
    jwt_algorithms: Sequence[str]
    jwt_claim: str
    jwt_audience: str | None
    jwt_issuer: str | None
    missing: Policy
    invalid: Policy
    public_paths: Sequence[str]
    max_concurrent_requests: PerTenant
    max_websockets: PerTenant
    max_db_connections: PerTenant
    hold: Literal["head", "body"]
    retry_after: int
    server_max_concurrent_requests: int

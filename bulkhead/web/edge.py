"""What every middleware does, whatever the framework: settings to a plan, a request to a tenant and a permit.

An `Edge` belongs to one middleware and holds its `Plan`: everything that a request needs, worked out once and replaced
as a whole when the settings change. Per request: read `edge.plan` once (None: switched off), `admit` the request, run
the application for the visit's tenant, tell the visit when the response's head is ready and when all is over, and ask
`answer_to` about an exception that came before the head was sent. asgi.py takes the same steps without a Visit.
"""

from __future__ import annotations

import fnmatch
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bulkhead import connections, settings, tenancy
from bulkhead.errors import ConfigurationError, Rejected, rejection
from bulkhead.log_lines import say
from bulkhead.memory import cells
from bulkhead.option_rows import Refused, check_known, keep, rows_of
from bulkhead.registry import unregister
from bulkhead.sessions import Session
from bulkhead.settings.sections import Server, Tenancy, tenancy_rules
from bulkhead.web.answers import Answer, Reason, unavailable, without_tenant
from bulkhead.web.limits import ALLOWED, REQUEST, REQUESTS, SHARED, WEBSOCKET, WEBSOCKETS, Nobody, limited
from bulkhead.web.sources import InvalidTenant, Reader, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bulkhead.entries import Permit
    from bulkhead.outcomes import Site
    from bulkhead.resources import Resource
    from bulkhead.settings import Memory, Settings

MARK: Final = "bulkhead.tenant"
"""In a scope or environ: its tenant, or None. Where it is, an outer middleware has counted the request."""
_LAYERS: Final = 50  # of middleware that are looked through
SERVER_OPTION: Final = "server_max_concurrent_requests"
CHOSEN_BY_CLIENTS: Final = ("header", "subdomain")
"""Sources that name a tenant and do not prove it."""


class TurnedAway(Exception):
    """The request is not let in; `answer` is the response."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Plan:
    """What one middleware does now. Never changed once it is made."""

    __slots__ = (
        "accept",
        "awaits",
        "charge_bodies",
        "find",
        "invalid",
        "missing",
        "plain",
        "public",
        "quick",
        "requests",
        "retry_after",
        "source",
        "websockets",
        "whole_body",
    )

    def __init__(
        self, tenancy: Tenancy, server: int, reader: Reader, *, asynchronous: bool, charge_bodies: bool = False
    ) -> None:
        self.source = source_of(tenancy, reader, asynchronous=asynchronous)
        self.find, self.awaits, self.quick = self.source.find, self.source.awaits, self.source.quick
        """`find(request)`: the tenant's id, None, or InvalidTenant; a coroutine function where `awaits`."""
        self.missing, self.invalid = _nobody(tenancy.missing), _nobody(tenancy.invalid)
        self.public = public_paths(tenancy.public_paths)
        self.whole_body: bool = tenancy.hold == "body"
        """Is the permit held to the end of the body?"""
        self.charge_bodies = charge_bodies
        """Are the bodies of requests charged to their tenants' memory cells?"""
        self.plain = not self.whole_body and not charge_bodies
        self.retry_after: int = tenancy.retry_after
        self.accept = reader.header("accept")
        self.requests: Resource | None = limited(
            REQUESTS, REQUEST, "max_concurrent_requests", tenancy.max_concurrent_requests, server
        )
        self.websockets: Resource | None = limited(WEBSOCKETS, WEBSOCKET, "max_websockets", tenancy.max_websockets)

    # ---- the whole way in, for frameworks that can afford an object for each request

    def admit(self, request: Any, path: str) -> Visit:
        """Who the request is for, and its permit. TurnedAway: it is not let in. Not for a plan that `awaits`."""
        if self.public is not None and self.public(path):
            return Visit(None, None, whole_body=False)
        return self._visit(request, self.whose(request))

    async def aadmit(self, request: Any, path: str) -> Visit:
        """The same where the source may be a coroutine function."""
        if self.public is not None and self.public(path):
            return Visit(None, None, whole_body=False)
        return self._visit(request, await self.awhose(request))

    def _visit(self, request: Any, who: str) -> Visit:
        requests = self.requests
        try:
            session = None if requests is None else Session(permit(requests, who, REQUEST), REQUEST)
        except Rejected as error:
            raise TurnedAway(self.unavailable(error, request)) from None
        return Visit(known(who), session, whole_body=self.whole_body)

    def answer_to(self, error: BaseException, request: Any) -> Answer | None:
        """The response for an exception of the application, if its head was not sent: 503 for a rejection of ours.

        It is looked for in causes and groups too. None: it is not ours, raise it on.
        """
        if isinstance(error, TurnedAway):
            return error.answer
        found = rejection(error) if isinstance(error, Exception) else None
        return None if found is None else self.unavailable(found, request)

    # ---- the steps

    def whose(self, request: Any) -> str:
        """The tenant's id, or SHARED or ALLOWED for nobody's request that is let in; TurnedAway."""
        try:
            return self.find(request) or self.nobody(request)
        except InvalidTenant:
            return self.nobody(request, invalid=True)

    async def awhose(self, request: Any) -> str:
        """The same where the source may be a coroutine function."""
        if not self.awaits:
            return self.whose(request)
        try:
            return await self.find(request) or self.nobody(request)
        except InvalidTenant:
            return self.nobody(request, invalid=True)

    def nobody(self, request: Any, *, invalid: bool = False) -> Nobody:
        """What becomes of a request without a tenant, or with one that cannot be: by the policy."""
        found = self.invalid if invalid else self.missing
        if found is None:
            source = self.source
            reason: Reason = "tenant_invalid" if invalid else "tenant_missing"
            raise TurnedAway(without_tenant(reason, source.status, source.challenge, self.accept(request))) from None
        return found

    def unavailable(self, error: Any, request: Any) -> Answer:
        """503 for this rejection, in the form that the request asks for."""
        return unavailable(error, self.accept(request), self.retry_after)


class Visit:
    """One request that was let in. `tenant`: who to work for, None for nobody."""

    __slots__ = ("_session", "_whole_body", "tenant")

    def __init__(self, tenant: str | None, session: Session | None, *, whole_body: bool) -> None:
        self.tenant, self._session, self._whole_body = tenant, session, whole_body

    def ready(self) -> None:
        """The response's head is ready: the permit goes back, unless hold is "body". Any number of times."""
        if not self._whole_body:
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        """All is over, the body too, or `error` was raised: the permit goes back. Any number of times, any thread."""
        if (session := self._session) is None:
            return
        if error is None:
            session.end()
        else:
            session.fail(error)


def permit(resource: Resource, who: str, site: Site) -> Permit:
    """A permit for this tenant, or for nobody by SHARED or ALLOWED. Raises the resource's rejection."""
    before = tenancy.current.get()
    tenancy.current.set(who)
    try:
        return resource.begin(site)
    finally:
        tenancy.current.set(before)


def known(who: str) -> str | None:
    """The tenant that the application works for."""
    return None if who is SHARED or who is ALLOWED else who


def _nobody(policy: str) -> Nobody | None:
    """How requests without a tenant stand with the limits; None: they are refused."""
    return {"share": SHARED, "allow": ALLOWED}.get(policy)


def public_paths(patterns: tuple[str, ...]) -> Callable[[str], object] | None:
    """Whether a path, below where the application is mounted, matches one of these (fnmatch, case counts)."""
    if not patterns:
        return None
    return re.compile("|".join(map(fnmatch.translate, patterns))).match


def refuse_finished(app: object, finished: Mapping[str, str]) -> None:
    """ConfigurationError if `app`, or what it wraps, is an application that answers its own exceptions.

    `finished`: the full names of the classes of such applications (no framework is imported to find them), and what to
    write instead.
    """
    inner: object | None = app
    for _ in range(_LAYERS):
        inner = getattr(inner, "__self__", inner)  # of app.wsgi_app
        if inner is None:
            return
        for kind in type(inner).__mro__:
            says = finished.get(f"{kind.__module__}.{kind.__qualname__}")
            if says is not None:
                raise ConfigurationError(
                    f"TenancyMiddleware cannot be put around a finished {type(inner).__name__} application: it "
                    f"answers an exception with 500 before anybody around it sees it, so no rejection could become a "
                    f"503. {says}"
                )
        inner = getattr(inner, "app", None)


class Edge:
    """The settings of one middleware, and its plan.

    `given`: options in code, fields of the section [tenancy] and `server_max_concurrent_requests`. They take
    precedence over the settings, and with any of them the middleware is on, unless enabled=False. Without, the
    settings decide. A reload of the settings is followed; one that makes no sense here keeps the plan and is logged.
    """

    def __init__(self, reader: Reader, given: Mapping[str, Any], *, asynchronous: bool = False) -> None:
        self._reader, self._asynchronous = reader, asynchronous
        self._given = _checked(given)
        self._capped = False
        self._warned: set[str] = set()
        self.plan: Plan | None = None
        """Read it once for each request. None: switched off, the request passes untouched."""
        settings.on_change(self._renew)  # held weakly
        cells.on_change(self._renew_for_cells)  # the same
        self.follow(settings.current())

    def _renew(self, now: Settings) -> None:
        try:
            self.follow(now)
        except ConfigurationError as error:
            say("settings_not_followed", str(error), logging.ERROR, setting="tenancy")

    def _renew_for_cells(self, _: Memory) -> None:
        self._renew(settings.current())

    def follow(self, now: Settings) -> None:
        """Make the plan anew from these settings. ConfigurationError: they make no sense here, the plan stays."""
        tenancy, server = _merged(self._given, now)
        before, plan = self.plan, None
        if tenancy.enabled:
            memory = cells.options
            plan = Plan(
                tenancy,
                server,
                self._reader,
                asynchronous=self._asynchronous,
                charge_bodies=memory.enabled and memory.charge_bodies,
            )
            self._compare(tenancy, memory)
        self.plan = plan
        self._cap(tenancy)
        if before is None:
            return
        for identifier, was, stays in (
            (REQUESTS, before.requests, plan is not None and plan.requests is not None),
            (WEBSOCKETS, before.websockets, plan is not None and plan.websockets is not None),
        ):
            if was is not None and not stays:
                unregister(identifier)

    def _compare(self, tenancy: Tenancy, memory: Memory) -> None:
        """Say what of [memory] makes no sense beside the rest."""
        if not memory.enabled:
            return
        if not memory.max_cells and tenancy.source in CHOSEN_BY_CLIENTS:
            self._warn(
                "memory.max_cells",
                f'0 is no bound, and with source = "{tenancy.source}" clients choose the tenants: whoever sends new '
                "names makes new memory cells; set max_cells, or an authenticated source",
            )
        if memory.charge_bodies and not memory.quota_bytes and not memory.tenant_quota_bytes:
            self._warn(
                "memory.charge_bodies", "bodies are charged and there is no quota that refuses one: set quota_bytes"
            )

    def _warn(self, key: str, says: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            say("settings_warning", f"{says} (said once)", setting=key)

    def _cap(self, tenancy: Tenancy) -> None:
        """With options in code the section may be on here and off in the settings, which then set no such limit."""
        if not self._given:
            return
        limit = tenancy.max_db_connections if tenancy.enabled else 0
        if limit or self._capped:
            connections.set_limit(limit)
        self._capped = bool(limit)


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options in code, each checked as in a settings file."""
    rows = rows_of(Tenancy) | {SERVER_OPTION: rows_of(Server)["max_concurrent_requests"]}
    check_known(given, rows, "TenancyMiddleware")
    try:
        return {name: keep(name, value, rows[name]) for name, value in given.items()}
    except Refused as refused:
        raise ConfigurationError(f"TenancyMiddleware: {refused}") from None


def _merged(given: Mapping[str, Any], now: Settings) -> tuple[Tenancy, int]:
    """The section with the options in code over it, and the limit of the whole server."""
    own: dict[str, Any] = {"enabled": True} | dict(given) if given else {}
    server: int = own.pop(SERVER_OPTION, now.server.max_concurrent_requests)
    merged = replace(now.tenancy, **own)
    if own:
        for key, says in tenancy_rules({name: getattr(merged, name) for name in rows_of(Tenancy)}):
            raise ConfigurationError(f"TenancyMiddleware: {key} {says}")
    return merged, server

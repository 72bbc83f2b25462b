"""`bulkhead cells serve`: a reverse proxy that sends each request to its tenant's cell, for tests and development.

Bodies stream both ways and are never kept. Who hangs up ends the request at the cell too. What is wrong is answered
as problem details: 400 without a tenant, 501 for upgrades, 502 and 504 for a cell that fails, 503 with Retry-After
for one that is down or refused, and for tenants that are moving or frozen. The production router is HAProxy
(haproxy.py): an order of magnitude faster, and routing by the same hash.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from bulkhead import tenancy
from bulkhead.adapter import ConfigurationError, Session
from bulkhead.cells.arguments import cell_header_fault, check, header_fault, networks, seconds_fault
from bulkhead.cells.errors import CellUnavailableError
from bulkhead.cells.paths import joined
from bulkhead.cells.places import MISDIRECTED, TENANT_HEADER, VERSION_HEADER, Places, local, wanted
from bulkhead.cells.proxy_answers import Answers, Turned
from bulkhead.cells.proxy_client import Client, UpstreamError, adapter, cannot_pass, headers_of, pass_body_on
from bulkhead.cells.proxy_exchange import ClientGone, Exchange, Young
from bulkhead.cells.proxy_headers import HOP_BY_HOP, Incoming, returned, special
from bulkhead.settings.sections import Tenancy
from bulkhead.web.asgi_scope import ScopeReader, respond
from bulkhead.web.sources import source_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from bulkhead.adapter import Resource
    from bulkhead.cells.cell import Cell
    from bulkhead.cells.maps import CellMap
    from bulkhead.cells.proxy_client import UpstreamResponse
    from bulkhead.cells.router import CellRouter
    from bulkhead.cells.sources import Source
    from bulkhead.web.asgi_scope import Receive, Scope, Send

CELL_HEADER: Final = "X-Cell"
_SITE: Final = adapter.query
_VERSION: Final = VERSION_HEADER.lower().encode()
_ASCII: Final = "".join(map(chr, range(0x21, 0x7F)))
_KNOWN_CALLERS: Final = 1000
_BODILESS: Final = (204, 304)
_ANNOUNCED: Final = ("1.1", "1.0")
"""Versions of HTTP in which a request with a body has a header that says so."""


class BodyLost(Exception):
    """The response broke off in its middle; raised so that the server does not end it as if it were complete."""


class CellProxy:
    """The application. `routes`: a CellRouter, a CellMap, or a source of maps.

    The tenant comes from the header `header` (source="header") or the first label of the host below `domain`
    (source="subdomain"), and is passed on in `tenant_header`. Callers whose address is in `trusted` (networks, such as
    "10.0.0.0/8") may choose the cell by `cell_header`, whatever the state of cell and tenant, are told who answered,
    and are believed their X-Forwarded-…; from others all of these are dropped. Time-outs in seconds: to connect, and
    for the cell to take a part of the body or to send the next one of its answer. `options`: those of each cell's
    resource. ConfigurationError for what cannot be.
    """

    def __init__(  # noqa: PLR0913  options, by name
        self,
        routes: CellRouter | CellMap | Source,
        *,
        source: str = "header",
        header: str = TENANT_HEADER,
        domain: str | None = None,
        tenant_header: str = TENANT_HEADER,
        cell_header: str = CELL_HEADER,
        trusted: Iterable[str] = (),
        connect_timeout: float = 5.0,
        read_timeout: float = 60.0,
        **options: Any,
    ) -> None:
        for name, given in (("header", header), ("tenant_header", tenant_header)):
            check(name, header_fault(given))
        check("cell_header", cell_header_fault(cell_header, header, tenant_header))
        for name, seconds in (("connect_timeout", connect_timeout), ("read_timeout", read_timeout)):
            check(name, seconds_fault(seconds, above=True))
        if domain is not None and source != "subdomain":
            raise ConfigurationError(f'domain is read with source="subdomain" only, and source is {source!r}')
        reader = ScopeReader()
        told = Tenancy(source=source, header=header, domain=domain)  # type: ignore[arg-type]  # source_of looks
        self._tenant = source_of(told, reader, asynchronous=False)
        self._named_by = header.lower().encode() if source == "header" else b""
        self._known = {} if self._tenant.quick is None else self._tenant.quick[1]
        self._answers = Answers(self._tenant, reader.header("accept"))
        self._cell_header, self._tenant_header = (name.lower().encode() for name in (cell_header, tenant_header))
        self._special = special(self._named_by, self._cell_header, self._tenant_header)
        self._not_returned = HOP_BY_HOP | {_VERSION, self._cell_header}
        self._trusts = lru_cache(_KNOWN_CALLERS)(_truster(trusted))
        self._timeouts = connect_timeout, read_timeout
        self._places: Places[tuple[Cell, Resource]] = Places(routes, adapter, options, _place)
        self._client: Client | None = None
        self._young = Young()

    @property
    def source(self) -> Source:
        """Where the map comes from."""
        return self._places.source

    def __repr__(self) -> str:
        return f"<CellProxy of {self._places.source!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the lifespan."""
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self._young)
        before = tenancy.current.get()
        try:
            await self._route(exchange)
        except asyncio.CancelledError:
            if not exchange.was_left():
                raise
        except Exception as error:
            if exchange.gone:
                return
            said = None if exchange.begun else self._answers.to(error, scope)
            if said is None:
                raise
            headers = [*said.raw_headers, (_VERSION, str(self._places.source.current.stamp).encode())]
            with suppress(ClientGone):
                await exchange.send({"type": "http.response.start", "status": said.status, "headers": headers})
                await exchange.send({"type": "http.response.body", "body": said.body})
        finally:
            exchange.end()
            tenancy.current.set(before)

    async def _others(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif "websocket.http.response" in (scope.get("extensions") or ()):
            await respond(send, "websocket.http", self._answers.of(501, "upgrade", scope))
        else:
            await send({"type": "websocket.close", "code": 1011, "reason": "not implemented"})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _route(self, exchange: Exchange) -> None:
        scope = exchange.scope
        incoming = Incoming(scope["headers"], self._special)
        if incoming.upgrades or scope["method"] == "CONNECT":
            raise Turned(501, "upgrade")
        if incoming.coded:
            raise Turned(501, "coding")
        if b"host" in incoming.twice:
            raise Turned(400, "host")
        client = scope.get("client")
        trusted = client is not None and self._trusts(client[0])
        tenant = self._whose(scope, incoming)
        tenancy.current.set(tenant)
        headers = incoming.outgoing(scope, trusted=trusted)
        headers.append((self._tenant_header, tenant.encode()))
        now = self._places.source.current
        wish = incoming.found.get(self._cell_header) if trusted else None
        chosen = None if wish is None else _named(now, wish)
        target, body = _target(scope), exchange.body() if incoming.has_body else None
        if body is None and scope["http_version"] not in _ANNOUNCED:
            body = await exchange.unannounced()
        exchange.watch(started=body is None)
        for attempt in (1, 2):
            cell, resource = self._places.of(now, chosen or _cell_of(now, tenant))
            response, session = await self._ask(resource, scope["method"], cell, target, headers, body, exchange)
            if response.status != MISDIRECTED or chosen is not None:
                break
            response.close()
            session.end()
            asked, told = now, response.headers.get(VERSION_HEADER)
            if attempt == 1:
                now = await self._places.source.arefresh(wanted(asked.stamp, told))
            if attempt > 1 or now.stamp <= asked.stamp or body is not None:
                raise CellUnavailableError(f"cell:{cell.name}", tenant, now.retry_after.moving, "misdirected")
        passed = returned(headers_of(response), self._not_returned)
        passed.append((_VERSION, self._places.stamp(now)))
        if trusted:
            passed.append((self._cell_header, cell.name.encode()))
        await _pass_on(exchange, response, session, passed, cell)

    def _whose(self, scope: Scope, incoming: Incoming) -> str:
        """The tenant of the request; Turned or InvalidTenant. Most were here lately."""
        twice = self._named_by in incoming.twice
        tenant: str | None = None if twice else self._known.get(incoming.found.get(self._named_by))
        if tenant is not None:
            return tenant
        tenant = self._tenant.find(scope)
        if tenant is None or twice:
            raise Turned(self._tenant.status, "tenant_invalid" if twice else "tenant_missing")
        return tenant

    async def _ask(
        self,
        resource: Resource,
        method: str,
        cell: Cell,
        target: str,
        headers: list[tuple[bytes, bytes]],
        body: AsyncIterator[bytes] | None,
        exchange: Exchange,
    ) -> tuple[UpstreamResponse, Session]:
        url = joined(cell.base, target)
        client = self._client
        if client is None:
            client = self._client = Client(*self._timeouts)
        permit = await resource.abegin(_SITE)
        session = Session(permit, _SITE, resource.clock())
        try:
            limit = resource.time_limit(permit[0]) if resource.limits_time else None
            if limit is None:
                response = await client.ask(method, url, headers, body)
            else:
                async with asyncio.timeout(limit):
                    response = await client.ask(method, url, headers, body)
            if cannot_pass(response):
                response.close()
                raise UpstreamError("an answer that cannot be passed on")  # noqa: TRY301  counted as all others are
        except BaseException as error:
            # That the body broke off is how aiohttp tells it; it says nothing about the cell.
            session.fail(ClientGone() if exchange.gone else error)
            raise
        if resource.settles:
            session.settle()
        return response, session


async def _pass_on(
    exchange: Exchange, response: UpstreamResponse, session: Session, headers: list[tuple[bytes, bytes]], cell: Cell
) -> None:
    if response.status == 201 or (300 <= response.status < 400 and response.status != 304):
        headers = [
            (name, local(value.decode("latin-1"), cell, "").encode("latin-1") if name == b"location" else value)
            for name, value in headers
        ]
    elif response.status in _BODILESS:  # a Content-Length is that of a body which does not come
        headers = [pair for pair in headers if pair[0] != b"content-length"]
    send = exchange.send
    try:
        exchange.begun = True
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await pass_body_on(response, send)
    except (UpstreamError, OSError) as error:
        session.fail(ClientGone() if exchange.gone else error)
        response.close()
        raise BodyLost("the cell's response broke off") from None
    except BaseException as error:
        session.fail(ClientGone() if exchange.gone else error)
        response.close()
        raise
    response.release()
    session.end()


def _place(cell: Cell, resource: Resource) -> tuple[Cell, Resource]:
    return cell, resource


def _cell_of(now: CellMap, tenant: str) -> Cell:
    cell, refused = now.route(tenant)
    if refused is not None:
        raise CellUnavailableError(f"cell:{cell.name}", tenant, refused.retry_after, refused.reason)
    return cell


def _named(now: CellMap, name: bytes) -> Cell:
    try:
        return now.router.cell(name.decode("latin-1"))
    except ConfigurationError:
        raise Turned(400, "cell") from None


def _target(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope.get("query_string") or b""
    whole = raw.partition(b"?")[0] + (b"?" + query if query else b"")
    return whole.decode() if whole.isascii() else quote(whole, safe=_ASCII)


def _truster(trusted: Iterable[str]) -> Callable[[str], bool]:
    """Whether an address is in one of these networks. ConfigurationError for what is none."""
    known = networks("trusted", trusted)

    def trusts(host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:  # a Unix socket
            return False
        return any(address in network for network in known)

    return trusts

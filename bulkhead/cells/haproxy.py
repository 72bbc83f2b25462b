"""The same routing for HAProxy 2.6 and later, the production router: a configuration and the tables that it reads.

It computes the same hash (`xxh64(0),and(16383)`), so it needs no code of ours. Tables: slots.map (slot to cell),
pins.map and tenants.map (tenant to cell, and to its state; keys are the id's UTF-8 in hexadecimal, as ids may hold
blanks), cells.map (cell to its state). HAProxy can change entries while it runs (`set map`), and reads all files anew
when it is reloaded, which drops no connection.
"""

from __future__ import annotations

import json
import math
import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bulkhead.cells.arguments import cell_header_fault, check, header_fault, networks
from bulkhead.cells.places import TENANT_HEADER, VERSION_HEADER
from bulkhead.errors import ConfigurationError
from bulkhead.tenancy import MAXIMUM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bulkhead.cells.cell import Cell
    from bulkhead.cells.maps import CellMap

CONFIGURATION: Final = "haproxy.cfg"
_BIND: Final = re.compile(r"[A-Za-z0-9.:*\[\]@/_-]+( [A-Za-z0-9./_-]+)*")

# A segment ".." as a server may see it, behind whatever encoding. HAProxy decodes twice besides, for encoded escapes,
# which it can only do where every "%" is one.
_STRAY: Final = "%[0-9a-f]?([^0-9a-f]|$)"
_DOT: Final = r"(\.|%(25)*2e|%(25)*(c0|e0%(25)*80)%(25)*ae)"
_SLASH: Final = r"(/|\\|%(25)*(2f|5c)|%(25)*(c0|e0%(25)*80)%(25)*af|%(25)*(c1|e0%(25)*81)%(25)*9c)"
_BLANK: Final = r"([[:space:]]|%(25)*(20|09|00|0a|0d))*"
_CLIMBS: Final = rf"(^|{_SLASH}){_BLANK}{_DOT}{_DOT}{_BLANK}($|;|%(25)*(3b|3f|23)|{_SLASH})"


def files(
    now: CellMap,
    *,
    bind: str = ":8080",
    tenant_header: str = TENANT_HEADER,
    cell_header: str = "X-Cell",
    trusted: Iterable[str] = (),
    stats_socket: str | None = None,
) -> dict[str, str]:
    """Name and text of each file. ConfigurationError for what HAProxy cannot do, or what would break its syntax.

    `bind` is what stands behind that word there (":443 ssl crt cells.pem"). `trusted`: networks whose callers may
    choose the cell by `cell_header`. `stats_socket`: a path; HAProxy is then told to pass its listeners on by it.
    """
    router = now.router
    if router.hash != "xxh64":
        raise ConfigurationError(f"HAProxy cannot compute the hash {router.hash}; it has xxh64")
    check("tenant_header", header_fault(tenant_header))
    check("cell_header", cell_header_fault(cell_header, tenant_header))
    check("bind", bind_fault(bind))
    if stats_socket is not None:
        check("stats_socket", bind_fault(stats_socket))
    callers = [str(one) for one in networks("trusted", trusted)]
    lines = [
        *_head(now, stats_socket),
        *_frontend(now, bind, tenant_header, cell_header, callers),
        *(line for cell in router.cells for line in _backend(cell)),
    ]
    return {
        "slots.map": _table(f"{slot} {cell.name}" for slot, cell in enumerate(router.owners())),
        "pins.map": _table(f"{_key(tenant)} {name}" for tenant, name in sorted(router.pins.items())),
        "tenants.map": _table(f"{_key(tenant)} {state}" for tenant, state in sorted(now.tenants.items())),
        "cells.map": _table(f"{cell.name} {cell.state}" for cell in router.cells),
        CONFIGURATION: "\n".join(lines) + "\n",
    }


def bind_fault(text: object) -> str | None:
    """What is wrong with the words behind "bind" or "stats socket"; None = nothing."""
    if text == "":
        return "is empty"
    if isinstance(text, str) and _BIND.fullmatch(text) is not None:
        return None
    return f"{text!r} holds characters that HAProxy would read as syntax"


def _head(now: CellMap, stats_socket: str | None) -> Iterator[str]:
    yield f"# Written by `bulkhead cells haproxy` from version {now.stamp} of the map. Change the map, not this."
    yield "global"
    yield "    default-path config"
    if stats_socket is not None:
        yield f"    stats socket {stats_socket} mode 600 level admin expose-fd listeners"
    yield "\ndefaults"
    yield "    mode http"
    yield "    timeout connect 5s"
    yield "    timeout client 60s"
    yield "    timeout server 60s"
    yield "    timeout http-request 10s"
    yield "    timeout http-keep-alive 75s"
    yield "    timeout tunnel 1h"
    yield "    option idle-close-on-response # a reload closes no connection under a request"
    if any(not _is_address(_host(cell)) for cell in now.router.cells):
        yield "\nresolvers system"
        yield "    parse-resolv-conf"


def _frontend(now: CellMap, bind: str, header: str, cell_header: str, callers: list[str]) -> Iterator[str]:
    yield "\nfrontend cells"
    yield f"    bind {bind}"
    yield f"    http-after-response set-header {VERSION_HEADER} {now.stamp}"
    when_told_nothing = "if { status 503 } !{ res.hdr(Retry-After) -m found }"
    yield f"    http-after-response set-header Retry-After {_seconds(now.retry_after.down)} {when_told_nothing}"
    yield '    # Whatever ".." looks like, it is not passed on.'
    yield f"    acl climbs path -m reg -i {_quoted(_STRAY)}"
    for decoded in ("path", "path,url_dec", "path,url_dec,url_dec"):
        yield f"    acl climbs {decoded} -m reg -i {_quoted(_CLIMBS)}"
    yield f"    {_return(400, 'path')} if climbs"
    yield "    http-request set-uri %[pathq] unless { url_beg / } || { url -m str * }"
    yield f"    http-request set-var(txn.tenant) req.fhdr({header})"
    yield f"    acl one_tenant req.fhdr_cnt({header}) 1"
    yield f"    acl tenant_fits req.fhdr({header}),length 1:{MAXIMUM_BYTES}"
    yield f"    {_return(400, 'tenant_missing')} if !one_tenant || !tenant_fits"
    yield "    # The cell: a pin, else the hash. xxh64 with seed 0, 16384 slots."
    yield "    http-request set-var(txn.cell) var(txn.tenant),hex,map_str(pins.map)"
    slot = "var(txn.tenant),xxh64(0),and(16383)"
    yield f"    http-request set-var(txn.cell) {slot},map_str(slots.map) unless {{ var(txn.cell) -m found }}"
    asked = ""
    if callers:
        yield f"    acl chosen src {' '.join(callers)}"
        yield f"    acl named req.fhdr_cnt({cell_header}) gt 0"
        yield f"    acl known req.fhdr({cell_header}),map_str(cells.map) -m found"
        yield f"    {_return(400, 'cell')} if chosen named !known"
        yield f"    http-request set-var(txn.cell) req.fhdr({cell_header}) if chosen named"
        yield "    http-request set-var(txn.chosen) bool(true) if chosen named"
        asked = " !{ var(txn.chosen) -m bool }"
    yield "    http-request set-var(txn.state) var(txn.tenant),hex,map_str(tenants.map)"
    yield "    http-request set-var(txn.cell_state) var(txn.cell),map_str(cells.map)"
    for state, after in (("moving", now.retry_after.moving), ("frozen", now.retry_after.frozen)):
        yield f"    {_return(503, 'unavailable', after)} if {{ var(txn.state) -m str {state} }}{asked}"
    yield f"    {_return(503, 'unavailable', now.retry_after.down)} if {{ var(txn.cell_state) -m str down }}{asked}"
    yield "    # CGI, and so WSGI, spells X_Tenant_ID and X-Tenant-ID alike."
    for name in (header, cell_header, "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host"):
        yield f"    http-request del-header ^{name.lower().replace('-', '[-_]')}$ -m reg"
    yield f"    http-request set-header {header} %[var(txn.tenant)]"
    yield "    http-request del-header Forwarded"
    yield "    http-request set-header X-Forwarded-For %[src]"
    yield "    http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]"
    yield "    http-request set-header X-Forwarded-Host %[req.hdr(host)]"
    yield '    # "Not my tenant": the map that this file was made from is not the newest.'
    yield f"    {_return(503, 'unavailable', now.retry_after.moving, 'http-response')} if {{ status 421 }}"
    yield "    use_backend cell_%[var(txn.cell)]"


def _backend(cell: Cell) -> Iterator[str]:
    parts = urlsplit(cell.base)
    host, port, secure = _host(cell), parts.port, parts.scheme == "https"
    address = f"[{host}]" if ":" in host else host
    yield f"\nbackend cell_{cell.name}"
    if parts.path:
        yield f"    http-request set-path {_quoted(parts.path.replace('%', '%%') + '%[path]')}"
    # As `places.local` does it. What begins with two slashes would be another host's.
    default = 443 if secure else 80
    perhaps = "?" if port in (None, default) else ""
    own = f"([Hh][Tt][Tt][Pp][Ss]?:)?//{_any_case(address)}(:{port or default}){perhaps}"
    here = f"^({own}){'?' if parts.path else ''}{re.escape(parts.path)}"
    for rest, seen in (("([?#].*)?", r"/\4"), (r"(/[/\\].*)", r"/.\4"), ("(/.*)", r"\4")):
        yield f"    http-response replace-header Location {_quoted(f'{here}{rest}$')} '{seen}'"
    words = [f"server {cell.name} {address}:{port or default}"]
    if secure:
        words.append("ssl verify required ca-file @system-ca")
        if not _is_address(host):
            words.append(f"sni str({host}) verifyhost {host}")
    if not _is_address(host):
        words.append("resolvers system init-addr libc,none")
    yield f"    {' '.join(words)}"


def _return(status: int, reason: str, after: float | None = None, rule: str = "http-request") -> str:
    problem: dict[str, object] = {"type": "about:blank", "title": _TITLES[status], "status": status}
    problem |= {"detail": _DETAILS[reason], "reason": reason}
    headers = " hdr Cache-Control no-store"
    if after is not None:
        problem["retry_after"] = _seconds(after)
        headers += f" hdr Retry-After {_seconds(after)}"
    body = json.dumps(problem)
    return f"{rule} return status {status} content-type application/problem+json string '{body}'{headers}"


_TITLES: Final = {400: "Bad Request", 503: "Service Unavailable"}
_DETAILS: Final = {
    "path": "The path of the request cannot be passed on.",
    "tenant_missing": "The request does not say which tenant it is for.",
    "cell": "There is no such cell.",
    "unavailable": "This request cannot be served now.",
}


def _any_case(host: str) -> str:
    """A pattern of this host; case does not matter in it."""
    return "".join(f"[{one.lower()}{one.upper()}]" if one.isalpha() else re.escape(one) for one in host)


def _quoted(text: str) -> str:
    """One word for HAProxy, whatever it holds."""
    return "'" + text.replace("'", "'\\''") + "'"


def _seconds(after: float) -> int:
    return max(1, math.ceil(after))


def _key(tenant: str) -> str:
    return tenant.encode().hex().upper()


def _table(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _host(cell: Cell) -> str:
    return urlsplit(cell.base).hostname or ""


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True

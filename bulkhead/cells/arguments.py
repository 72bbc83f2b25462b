"""What can be wrong with the arguments of sources and routing clients: headers, networks, seconds.

Each function gives what is wrong as a text, or None, so that an error names the parameter in Python and the option on
the command line. Maps have their own checks (router.py, maps.py, map_files.py).
"""

from __future__ import annotations

import math
import re
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import shown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Network, IPv6Network

_NAME: Final = re.compile(r"[A-Za-z0-9-]+")  # the other letters that one may have are HAProxy's syntax, or CGI's
_TAKEN: Final = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "via"),
        *("expect", "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-cell-map-version"),
        *("proxy-connection", "proxy-authenticate", "proxy-authorization", "proxy-authentication-info"),
    )
)
_LONGEST: Final = 1e9  # seconds; what a thread can wait for ends soon above it


def check(name: str, fault: str | None) -> None:
    """ConfigurationError that says of the argument `name` what is wrong with it, if anything is."""
    if fault is not None:
        raise ConfigurationError(f"{name}: {fault}")


def header_fault(name: object) -> str | None:
    """A header that we set, or that is read: one name for us, HAProxy and the application."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        return f"{shown(name)} is no name of a header, of letters, digits and -"
    if name.lower() in _TAKEN:
        return f"{name!r} has a meaning of its own between clients, routers and cells; take another name"
    return None


def cell_header_fault(name: object, *tenant_headers: str) -> str | None:
    """The header by which a cell is chosen: one beside those of the tenant."""
    if any(name.lower() == one.lower() for one in tenant_headers if isinstance(name, str)):
        return f"{name!r} is the header of the tenant already; take another name"
    return header_fault(name)


def seconds_fault(value: object, least: float = 0.0, *, above: bool = False) -> str | None:
    """A finite number of seconds, `least` or more, or above it."""
    number = isinstance(value, (int, float)) and type(value) is not bool and math.isfinite(value)
    if number and (value > least if above else value >= least) and value <= _LONGEST:  # type: ignore[operator]
        return None
    return f"must be a number of seconds, {f'above {least:g}' if above else f'{least:g} or more'}, not {shown(value)}"


def network_fault(text: object) -> str | None:
    """A network, or a single address."""
    try:
        ip_network(text if isinstance(text, str) else "")
    except ValueError:
        return f"{shown(text)} is no network, such as 10.0.0.0/8"
    return None


def networks(name: str, given: Iterable[str]) -> list[IPv4Network | IPv6Network]:
    """The networks of the argument `name`; ConfigurationError for what is none."""
    if isinstance(given, str):
        raise ConfigurationError(f"{name} takes several networks, [{given!r}], not one text")
    known = tuple(given)
    for one in known:
        check(name, network_fault(one))
    return [ip_network(one) for one in known]

"""`bulkhead cells serve` and `bulkhead cells haproxy`: the arguments of both, and how they are run."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bulkhead.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BACKLOG = 2048  # connections that wait; as uvicorn has it
RENEWED = 1.0
"""Seconds between two looks at the map, from which the next one is drawn."""


def add_parsers(parts: argparse._SubParsersAction[Any]) -> None:
    """Add both commands."""
    serve_ = parts.add_parser(
        "serve",
        help="run a reverse proxy that sends each request to its tenant's cell (extra: cells)",
        description="Runs a reverse proxy for development and tests: each request goes to the cell of its tenant. The "
        "map is looked at about once a second, and a newer one holds from the next request on. For production, "
        "`bulkhead cells haproxy` writes a configuration of HAProxy, which routes alike.",
    )
    serve_.add_argument("map", metavar="MAP", type=named, help="the map: a TOML or JSON file, or an http(s) URL")
    serve_.add_argument(
        "--keep", metavar="FILE", type=named, help="where to keep the last good map, which serves while MAP does not"
    )
    serve_.add_argument("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)")
    serve_.add_argument("--port", type=_port, default=8080, help="the port to listen on (default 8080; 0 = any)")
    serve_.add_argument("--source", choices=("header", "subdomain"), default="header", help="where the tenant is named")
    serve_.add_argument("--domain", help="with --source subdomain: the domain whose subdomains are tenants")
    serve_.add_argument("--read-timeout", type=_seconds, default=60.0, metavar="SECONDS", help="default 60")
    serve_.add_argument("--connect-timeout", type=_seconds, default=5.0, metavar="SECONDS", help="default 5")
    haproxy_ = parts.add_parser(
        "haproxy",
        help="write a configuration of HAProxy that routes alike",
        description="Writes haproxy.cfg and the tables that it reads. HAProxy 2.6 or later then routes by the same "
        "hash, pins and states. After a change of the map: write again, `haproxy -c -f haproxy.cfg`, reload.",
    )
    haproxy_.add_argument("map", metavar="MAP", type=named, help="the map: a TOML or JSON file, or an http(s) URL")
    haproxy_.add_argument("--out", required=True, type=file, metavar="DIR", help="the folder for the files")
    haproxy_.add_argument("--bind", type=_bind, default=":8080", help='what follows "bind" in the frontend (:8080)')
    haproxy_.add_argument(
        "--stats-socket", type=_bind, metavar="PATH", help="HAProxy's control socket; reloads pass listeners on by it"
    )
    for one in (serve_, haproxy_):
        one.add_argument(
            "--header",
            type=_header,
            default="X-Tenant-ID",
            help="the header that names the tenant (default X-Tenant-ID)",
        )
        one.add_argument(
            "--cell-header",
            type=_header,
            default="X-Cell",
            help="the header by which trusted callers choose a cell (default X-Cell)",
        )
        one.add_argument(
            "--trust",
            action="append",
            type=_network,
            default=[],
            metavar="NETWORK",
            help="whose callers may choose a cell; may be repeated",
        )


def named(text: str) -> str:
    """A file or a URL; an empty one is a variable of the shell that is not set."""
    _refuse(None if text else "is empty")
    return text


def file(text: str) -> Path:
    """A file or a folder; an empty name would be the one that the command runs in."""
    return Path(named(text))


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port, 0 to 65535")
    return int(text)


def _refuse(fault: str | None) -> None:
    if fault is not None:
        raise argparse.ArgumentTypeError(fault)


def _seconds(text: str) -> float:
    from bulkhead.cells.arguments import seconds_fault  # noqa: PLC0415  each command loads what it needs

    given: float | str = text
    with contextlib.suppress(ValueError):
        given = float(text)
    _refuse(seconds_fault(given, above=True))
    return float(given)


def _header(text: str) -> str:
    from bulkhead.cells.arguments import header_fault  # noqa: PLC0415

    _refuse(header_fault(text))
    return text


def _network(text: str) -> str:
    from bulkhead.cells.arguments import network_fault  # noqa: PLC0415

    _refuse(network_fault(text))
    return text


def _bind(text: str) -> str:
    from bulkhead.cells.haproxy import bind_fault  # noqa: PLC0415

    _refuse(bind_fault(text))
    return text


def haproxy(given: argparse.Namespace) -> int:
    """Write the files; the exit status."""
    from bulkhead.cells.haproxy import CONFIGURATION, files  # noqa: PLC0415  each command loads what it needs
    from bulkhead.console.cells import map_of  # noqa: PLC0415

    now = map_of(given.map)
    written = files(
        now,
        bind=given.bind,
        tenant_header=given.header,
        cell_header=given.cell_header,
        trusted=given.trust,
        stats_socket=given.stats_socket,
    )
    write(given.out, written)
    print(f"   {given.out / CONFIGURATION}: version {now.stamp}, {len(now.router.cells)} cells", flush=True)  # noqa: T201
    return 0


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Each file in one step: HAProxy may be starting at this moment. Its configuration is the last one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            number, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
            Path(path).chmod(0o644)
            Path(path).replace(folder / name)
    except OSError as error:
        raise ConfigurationError(f"{folder}: the files cannot be written: {error.strerror}") from None


def serve(given: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; the exit status."""
    from bulkhead.console.cells import source_of  # noqa: PLC0415

    try:
        import uvicorn  # noqa: PLC0415  an extra

        from bulkhead.cells.proxy import CellProxy  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError('`cells serve` needs uvicorn: pip install "bulkhead-toolkit[cells]"') from None
    if (given.source == "subdomain") != bool(given.domain):
        raise ConfigurationError("--source subdomain and --domain go together: give both or none")
    source = source_of(given.map, keep=given.keep)
    app = CellProxy(
        source,
        source=given.source,
        header=given.header,
        domain=given.domain,
        cell_header=given.cell_header,
        trusted=given.trust,
        connect_timeout=given.connect_timeout,
        read_timeout=given.read_timeout,
    )
    server = uvicorn.Server(uvicorn.Config(app, **settings()))
    with listening(given.host, given.port) as listener, source.start(RENEWED), contextlib.suppress(KeyboardInterrupt):
        print(f"   version {source.current.stamp}, {_url(listener)}", file=sys.stderr, flush=True)  # noqa: T201
        server.run(sockets=[listener])
    return 0 if server.started else 1


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. ConfigurationError names the option that cannot be."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Of a name with several addresses one is enough, and clients that try one only try IPv4.
        family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        # Connections inherit it. asyncio sets it for sockets of an explicit protocol only, uvloop for all; without it
        # each answer waits 40 ms for the client's acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener  # noqa: TRY300
    except socket.gaierror as error:
        raise ConfigurationError(f"--host {host}: {(error.strerror or 'no such host').lower()}") from None
    except UnicodeError:
        raise ConfigurationError(f"--host {host!r}: is no name of a host") from None
    except OSError as error:
        option = f"--host {host}" if error.errno == errno.EADDRNOTAVAIL else f"--port {port}"
        raise ConfigurationError(f"{option}: {os.strerror(error.errno or 0).lower()}") from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def settings() -> dict[str, Any]:
    """How uvicorn is run: it adds no headers, believes none about the client, and passes no WebSocket on."""
    return {
        "ws": "none",
        "proxy_headers": False,
        "server_header": False,
        "date_header": False,
        "access_log": False,
        "log_level": "error",
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": 10,
    }

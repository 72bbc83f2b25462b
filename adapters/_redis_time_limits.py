"""Shorter time-outs for one call on one connection, and the old ones put back.

redis-py keeps a time-out in four places: on the connection (read when it connects; async: at each read), on the live
socket, and in the parser, which puts its own copy back on the socket after reads with a time-out of their own. A limit
only ever shortens; it holds per read, so a server that drips can make the call last longer.
"""

from __future__ import annotations

from typing import Any

# The old time-outs of reads and connects, ours, and the socket that got ours.
Kept = tuple[float | None, float | None, float, float, Any]


def lower(connection: Any, limit: float) -> Kept | None:
    """Lower the time-outs; what `put_back` needs, None: they are shorter as it is."""
    read, connect = connection.socket_timeout, connection.socket_connect_timeout
    our_read = limit if read is None or read > limit else read
    our_connect = limit if connect is None or connect > limit else connect
    if our_read == read and our_connect == connect:
        return None
    connection.socket_timeout = our_read
    connection.socket_connect_timeout = our_connect
    sock = getattr(connection, "_sock", None)  # async: none
    if sock is not None:
        sock.settimeout(our_read)
    return read, connect, our_read, our_connect, sock


def put_back(connection: Any, kept: Kept | None) -> None:
    """Undo `lower`, also on a socket and parser that were made meanwhile. What others changed meanwhile stays."""
    if kept is None:
        return
    read, connect, our_read, our_connect, known = kept
    if connection.socket_timeout == our_read:
        connection.socket_timeout = read
    if connection.socket_connect_timeout == our_connect:
        connection.socket_connect_timeout = connect
    sock = getattr(connection, "_sock", None)
    if sock is None:
        return  # async, or disconnected
    if sock.gettimeout() == our_read:
        sock.settimeout(read)
    if sock is known:
        return  # the parser was not made anew, so its copy is the old one
    parser = connection._parser  # noqa: SLF001  nothing public leads to its copy
    for holder, name in ((parser, "_socket_timeout"), (getattr(parser, "_buffer", None), "socket_timeout")):
        if getattr(holder, name, None) == our_read:
            setattr(holder, name, read)

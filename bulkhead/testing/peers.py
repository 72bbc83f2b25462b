"""Real peers with bad manners, inside this process: scripted, silent, and never accepting.

They are sockets and threads, not mocks: a driver connects to them as to any server. Threads, so not for programs that
fork; for a real Redis or PostgreSQL that hangs, use `pause` of servers.py.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Self, TypeAlias

from bulkhead.testing.processes import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType


class Manner(Enum):
    """What a scripted peer does instead of answering."""

    SILENT = "never answers"
    CLOSE = "closes the connection"


SILENT: Final = Manner.SILENT
CLOSE: Final = Manner.CLOSE
Reply: TypeAlias = "bytes | Literal[Manner.SILENT, Manner.CLOSE]"


class Peer:
    """A listening loopback socket. A context manager; leaving closes it and every connection that it knows."""

    backlog = 128

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind((HOST, 0))
        self._listener.listen(self.backlog)
        self.host, self.port = self._listener.getsockname()
        self._open: list[socket.socket] = []

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        """Stop listening, close the connections."""
        for one in (self._listener, *self._open):
            # Closing alone does not wake a thread that waits in accept or recv; shutting down does.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ScriptedServer(Peer):
    """Accepts, and lets `talk` have each connection in a thread of its own; the connection closes when it returns."""

    def __init__(self, talk: Callable[[socket.socket], None]) -> None:
        super().__init__()
        self.connections = 0
        self._talk = talk
        self._threads = [threading.Thread(target=self._accept, name=f"peer-{self.port}", daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Also waits, for a short while, for the threads."""
        super().close()
        for thread in self._threads:
            thread.join(timeout=1)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), name=f"peer-{self.port}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._talk(connection)


class SilentServer(ScriptedServer):
    """Accepts, reads, never answers."""

    def __init__(self) -> None:
        super().__init__(read_for_ever)


def read_for_ever(connection: socket.socket) -> None:
    """Read until the other side hangs up."""
    while connection.recv(65536):
        pass


class ScriptedRedis(ScriptedServer):
    """Speaks Redis's protocol and answers each command as the script says.

    `script`: command name -> a reply, or a list of replies used up in order, the last of which repeats; "*" is for all
    that are not named. A reply is exact bytes, SILENT or CLOSE. Without "*", HELLO gets a right answer and everything
    else +OK. `received` lists the commands in order of arrival.
    """

    def __init__(self, script: Mapping[str, Reply | list[Reply]]) -> None:
        self.script = {name.upper(): replies for name, replies in script.items()}
        self.received: list[list[str]] = []
        super().__init__(self._converse)

    @property
    def url(self) -> str:
        """For redis.from_url."""
        return f"redis://{self.address}/0"

    def count(self, command: str) -> int:
        """How often `command` arrived."""
        return sum(words[0].upper() == command.upper() for words in self.received)

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while words := read_command(stream):
                self.received.append(words)
                reply = self._reply(words)
                if reply is CLOSE:
                    return
                if reply is SILENT:
                    read_for_ever(connection)
                    return
                connection.sendall(reply)

    def _reply(self, words: list[str]) -> Reply:
        name = words[0].upper()
        reply = self.script.get(name)
        if reply is None and name == "HELLO":
            return hello(words[1] if len(words) > 1 else "2")
        if reply is None:
            reply = self.script.get("*", b"+OK\r\n")
        if isinstance(reply, list):
            return reply.pop(0) if len(reply) > 1 else reply[0]
        return reply


def hello(protocol: str) -> bytes:
    """What a Redis answers to HELLO `protocol`."""
    head = b"%3\r\n" if protocol == "3" else b"*6\r\n"
    number = b":%s\r\n" % protocol.encode()
    return head + b"$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n$5\r\nproto\r\n" + number


def read_command(stream: BinaryIO) -> list[str]:
    """The next command as a list of words; an empty list at the end of the connection."""
    head = stream.readline()
    if not head.startswith(b"*"):
        return head.decode(errors="replace").split()  # an inline command, or the end
    words: list[str] = []
    for _ in range(int(head[1:])):
        size = int(stream.readline()[1:])
        words.append(stream.read(size + 2)[:-2].decode(errors="replace"))
    return words


class NeverAccepting(Peer):
    """A full backlog that nobody accepts from: a connect to it gets no answer at all, and times out."""

    backlog = 0

    def __init__(self) -> None:
        super().__init__()
        # How many connects a backlog of 0 lets through differs between systems: fill until one hangs.
        deadline = time.monotonic() + 5
        while self._fill():
            if time.monotonic() > deadline:
                self.close()
                raise RuntimeError("the backlog of a listening socket does not fill up on this system")

    def _fill(self) -> bool:
        filler = socket.socket()
        filler.settimeout(0.1)
        self._open.append(filler)
        try:
            filler.connect((self.host, self.port))
        except TimeoutError:
            return False
        return True

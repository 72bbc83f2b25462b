"""How an ASGI scope is read: path, headers, session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bulkhead.errors import ConfigurationError
from bulkhead.web.sources import checked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from bulkhead.web.answers import Answer

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]


def path_of(scope: Scope) -> str:
    """The path below the place where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path") or "")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        return path[len(root) :] or "/"
    return path


async def respond(send: Send, kind: str, answer: Answer) -> None:
    """Send a whole answer; `kind` "http" or "websocket.http"."""
    await send({"type": f"{kind}.response.start", "status": answer.status, "headers": [*answer.raw_headers]})
    await send({"type": f"{kind}.response.body", "body": answer.body})


_KNOWN = 1000  # values of a header; a client may send any number of different ones


class ScopeReader:
    """How a scope is read."""

    def header(self, name: str) -> Callable[[Any], str | None]:
        """See sources.Reader."""
        wanted = name.lower().encode()

        def read(scope: Scope) -> str | None:
            found: bytes | None = None
            for key, value in scope["headers"]:
                if key == wanted:
                    found = value if found is None else found + b", " + value
            return found if found is None else found.decode("utf-8", "surrogateescape")

        return read

    def tenant_header(self, name: str) -> tuple[Callable[[Any], str | None], bytes, dict[bytes | None, str]]:
        """`header` and `checked` in one step; the header's name as it stands in scopes; values known to be good.

        Most requests name a tenant that was here lately, so the middleware looks there first. The same text each time
        is also found faster in the tables behind.
        """
        read, known = self.header(name), dict[bytes | None, str]()
        wanted = name.lower().encode()

        def find(scope: Scope) -> str | None:
            text = checked(read(scope))
            values = [value for key, value in scope["headers"] if key == wanted]
            if text is not None and len(values) == 1:
                if len(known) >= _KNOWN:
                    known.clear()
                known[values[0]] = text
            return text

        return find, wanted, known

    def session(self, key: str) -> Callable[[Any], object]:
        """See sources.Reader."""

        def read(scope: Scope) -> object:
            session = scope.get("session")
            if session is None:
                raise ConfigurationError(
                    'source = "session": this request has no session. SessionMiddleware has to be around '
                    "TenancyMiddleware: add it after it, app.add_middleware(TenancyMiddleware, …) and then "
                    "app.add_middleware(SessionMiddleware, …)"
                )
            return session.get(key)

        return read

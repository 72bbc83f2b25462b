"""How a WSGI environ is read, and Django's META, which is made like one: path, headers; and how an answer is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bulkhead.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from wsgiref.types import StartResponse, WSGIEnvironment

    from bulkhead.web.answers import Answer


def path_of(environ: WSGIEnvironment) -> str:
    """The path below the place where the application is mounted."""
    return as_sent(environ.get("PATH_INFO") or "/")


def as_sent(text: str) -> str:
    """What the client wrote. PEP 3333: texts of an environ are bytes, each as the character of that number."""
    return text if text.isascii() else text.encode("latin-1").decode("utf-8", "surrogateescape")


def header_reader(name: str) -> Callable[[Mapping[str, Any]], str | None]:
    """A function that reads this header out of an environ."""
    key = name.upper().replace("-", "_")
    if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        key = f"HTTP_{key}"

    def read(environ: Mapping[str, Any]) -> str | None:
        text: str | None = environ.get(key)
        return text if text is None else as_sent(text)

    return read


def respond(answer: Answer, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    """Begin a whole answer; what is returned is its body."""
    start_response(f"{answer.status} {answer.phrase}", [*answer.headers])
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [answer.body]


class EnvironReader:
    """How an environ is read."""

    def header(self, name: str) -> Callable[[Any], str | None]:
        """See sources.Reader."""
        return header_reader(name)

    def session(self, key: str) -> Callable[[Any], object]:
        """See sources.Reader."""
        raise ConfigurationError(
            'source = "session": plain WSGI has no session. Pass a function that asks the one of your library, for '
            f'example source=lambda environ: environ["beaker.session"].get({key!r}); Flask has bulkhead.web.flask'
        )

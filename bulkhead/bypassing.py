"""`bypass`: the calls of one task or thread go through as if nothing were guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bulkhead import events, nesting, tenancy
from bulkhead.errors import ConfigurationError
from bulkhead.log_lines import say
from bulkhead.option_rows import is_identifier, shown
from bulkhead.registry import find

if TYPE_CHECKING:
    from types import TracebackType


class bypass:  # noqa: N801  reads as a function: with bulkhead.bypass(identifier)
    """`with bulkhead.bypass("postgres:main"):` calls of this task or thread are neither refused nor counted.

    For migrations and consoles. Works with `with` and `async with`; announced by one event and one log line. Tasks and
    threads that are started inside are not bypassed. ConfigurationError for what can be no identifier, `<kind>:<name>`.
    """

    __slots__ = ("_identifier", "_marks")

    def __init__(self, identifier: str) -> None:
        if not is_identifier(identifier):
            raise ConfigurationError(
                f"bypass takes an identifier like 'redis:inventory', not {shown(identifier)}; "
                "bulkhead.resources() lists those in use"
            )
        self._identifier = identifier
        self._marks: list[nesting.Mark] = []

    def __enter__(self) -> None:
        say("bypassed", "this resource is bypassed here", identifier=self._identifier)
        if events.anybody():
            events.tell(events.Bypassed(self._identifier, tenancy.current.get(), "call", "query"))
        nesting.bypassed.add(self._identifier)
        resource = find(self._identifier)
        self._marks.append(nesting.mark(self._identifier) if resource is None else resource.mark())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        nesting.unmark(self._marks.pop())

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

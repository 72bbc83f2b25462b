"""Steps of one request: the tenant's, as in bulkhead.tenancy, and what belongs to the request (bulkhead.request)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from bulkhead import request, tenancy
from bulkhead.request import current as of_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bulkhead.request import Held

P = ParamSpec("P")
R = TypeVar("R")


class Steps(tenancy.Steps):
    """Each step finds the request's tenant, and in `held` what an earlier step remembered for the request."""

    __slots__ = ("held",)

    def __init__(self, tenant: str | None) -> None:
        super().__init__(tenant)
        self.held: Held = {}

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """One step: call the function."""
        before = of_request.get()
        of_request.set(self.held)
        try:
            return super().run(function, *args, **kwargs)
        finally:
            of_request.set(before)

    async def arun(self, awaitable: Awaitable[R], /) -> R:
        """One step: await this."""
        before = of_request.get()
        of_request.set(self.held)
        try:
            return await super().arun(awaitable)
        finally:
            of_request.set(before)

    def end(self) -> None:
        """The request is over."""
        request.end(self.held)

"""Guarded calls in the forms that users and adapters write."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from peers import Client, work, work_async

import bulkhead
from bulkhead.adapter import Adapter, CircuitOpenError, Errors, Outcome, ResourceBusyError, UnknownTenantError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.adapter import Options, Resource

_numbers = itertools.count()
FAILURE, SUCCESS = Outcome.FAILURE, Outcome.SUCCESS  # finding them in the enum takes 200 ns in Python 3.11


def outcome(error: Exception, options: Options) -> Outcome:
    """What an adapter's outcome function looks like at its simplest."""
    return FAILURE if isinstance(error, ValueError) else SUCCESS


ADAPTER = Adapter("bench", "call", Errors(ResourceBusyError, CircuitOpenError, UnknownTenantError), outcome)
SITE = ADAPTER.query

CIRCUIT: dict[str, Any] = {"error_threshold": 3, "error_timeout": 100_000.0, "success_threshold": 2}
BOTH: dict[str, Any] = {"tickets": 64, "tenant_tickets": 16}  # tenant ticket, resource ticket, shared circuit


def made(**options: Any) -> Resource:
    """A resource of its own."""
    return bulkhead.resource(f"bench-{next(_numbers)}", **options)


def inlined(function: Callable[..., Any] = work) -> Callable[..., Any]:
    """The guarded call as a hot adapter writes it out."""

    def wrapper(self: Client, value: int) -> Any:
        resource = self.bulkhead
        if resource is None:
            return function(self, value)
        if resource.late:
            resource = resource.now()
        ticket = None
        try:
            take, give, take_shared, give_shared, failed = resource.fast[resource.key()]
            ticket = take()
            shared = take_shared()
        except LookupError:
            ticket, give, shared, give_shared, failed = resource.enter(SITE, ticket)
        try:
            result = function(self, value)
        except BaseException as error:
            failed(ticket, shared, error, SITE, None)
            del ticket, shared
            raise
        give_shared(shared)
        give(ticket)
        return result

    return wrapper


def by_begin(function: Callable[..., Any] = work) -> Callable[..., Any]:
    """The guarded call of an adapter that asks `begin()` for its permit."""

    def wrapper(self: Client, value: int) -> Any:
        resource = self.bulkhead
        if resource is None:
            return function(self, value)
        if resource.late:
            resource = resource.now()
        ticket, give, shared, give_shared, failed = resource.begin(SITE)
        try:
            result = function(self, value)
        except BaseException as error:
            failed(ticket, shared, error, SITE, None)
            del ticket, shared
            raise
        give_shared(shared)
        give(ticket)
        return result

    return wrapper


def inlined_async(function: Callable[..., Any] = work_async) -> Callable[..., Any]:
    """The same in a coroutine."""

    async def wrapper(self: Client, value: int) -> Any:
        resource = self.bulkhead
        if resource is None:
            return await function(self, value)
        if resource.late:
            resource = resource.now()
        ticket = None
        try:
            take, give, take_shared, give_shared, failed = resource.fast[resource.key()]
            ticket = take()
            shared = take_shared()
        except LookupError:
            ticket, give, shared, give_shared, failed = await resource.aenter(SITE, ticket)
        try:
            result = await function(self, value)
        except BaseException as error:
            failed(ticket, shared, error, SITE, None)
            del ticket, shared
            raise
        give_shared(shared)
        give(ticket)
        return result

    return wrapper


def inlined_async_with_start(function: Callable[..., Any] = work_async) -> Callable[..., Any]:
    """The same with the start time, by which cancellations are judged."""

    async def wrapper(self: Client, value: int) -> Any:
        resource = self.bulkhead
        if resource is None:
            return await function(self, value)
        if resource.late:
            resource = resource.now()
        ticket = None
        try:
            take, give, take_shared, give_shared, failed = resource.fast[resource.key()]
            ticket = take()
            shared = take_shared()
        except LookupError:
            ticket, give, shared, give_shared, failed = await resource.aenter(SITE, ticket)
        started = resource.clock()
        try:
            result = await function(self, value)
        except BaseException as error:
            failed(ticket, shared, error, SITE, started)
            del ticket, shared
            raise
        give_shared(shared)
        give(ticket)
        return result

    return wrapper

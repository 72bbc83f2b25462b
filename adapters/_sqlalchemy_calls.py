"""Statements of one engine: what replaces `do_execute` and its siblings on its dialect, and what listens to its errors.

A statement is one call: admission, the original method, one outcome. The mark around the original tells the driver's
own adapter below that a call of the same identifier is under way. Statements that end work (COMMIT, ROLLBACK, RELEASE)
are never refused; those sent by the driver's methods do not pass here at all. Failures that happen outside these
methods (fetching rows, committing, pinging) arrive at the error listener, which says so to the circuit; it never
raises, or SQLAlchemy would raise that in the place of the user's error.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.util.concurrency import await_only, in_greenlet

from adapters._sql_text import bare
from adapters._sqlalchemy_limits import ended_by_limit, limits_of
from bulkhead.adapter import Rejected, inside, nesting

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Engine, ExceptionContext

    from adapters._patch import Driver
    from bulkhead.adapter import Adapter, Permit, Resource, Site

log = logging.getLogger("bulkhead")

_NAME = r"""(?:[\w$]+|"[^"]+"|`[^`]+`|\[[^\]]+\])"""
_ENDS_WORK = re.compile(
    rf"""
        (?:ROLLBACK|COMMIT|END|ABORT)(?:\s+(?:WORK|TRANSACTION|TRAN))?
        |ROLLBACK(?:\s+(?:WORK|TRANSACTION|TRAN))?\s+(?:TO(?:\s+SAVEPOINT)?\s+)?{_NAME}
        |RELEASE(?:\s+SAVEPOINT)?\s+{_NAME}
        |(?:ROLLBACK\s+PREPARED|COMMIT\s+PREPARED|PREPARE\s+TRANSACTION)\s+'[^']+'
        |XA\s+(?:END|PREPARE|COMMIT|ROLLBACK)\s+(?:'[^']+'|%s|%\(\w+\)s|\?|:\w+)
    """,
    re.IGNORECASE | re.VERBOSE,
)


def ends_work(statement: object) -> bool:
    """Does the whole statement only end a transaction or a savepoint? A part of it is not enough."""
    if not isinstance(statement, str):
        return False
    text = bare(statement)
    return text is not None and _ENDS_WORK.fullmatch(text) is not None


class Guards:
    """What the hooks of one engine share: its dialect (which holds `bulkhead`), the two sites, how it is waited."""

    def __init__(self, dialect: Any, adapter: Adapter, driver: Driver) -> None:
        self.dialect, self.driver = dialect, driver
        self.query, self.connection = adapter.query, adapter.connection
        self.is_async: bool = dialect.is_async
        self.limits = limits_of(dialect)

    def resource(self) -> Resource:
        """The resource of a call that is made now."""
        bound = self.dialect.bulkhead
        return bound.now() if bound.late else bound  # type: ignore[no-any-return]

    def enter(self, resource: Resource, site: Site, ticket: Any = None) -> Permit:
        """The slow path of admission. In an asyncio engine the task waits for a ticket, not the event loop."""
        if self.is_async and in_greenlet():
            return await_only(resource.aenter(site, ticket))
        return resource.enter(site, ticket)

    def hook_statements(self) -> None:
        """Put guards in the place of the dialect's three methods, on this instance."""
        dialect = self.dialect
        dialect.do_execute = self._guarded(dialect.do_execute)
        dialect.do_executemany = self._guarded(dialect.do_executemany)
        without = dialect.do_execute_no_params

        def execute(cursor: Any, statement: Any, parameters: Any, context: Any = None) -> None:  # noqa: ARG001
            without(cursor, statement, context)

        guarded = self._guarded(execute)

        def do_execute_no_params(cursor: Any, statement: Any, context: Any = None) -> None:
            guarded(cursor, statement, None, context)

        dialect.do_execute_no_params = do_execute_no_params

    def _guarded(self, original: Callable[..., Any]) -> Callable[..., None]:  # noqa: PLR0915  one hot function
        dialect, driver, site, is_async = self.dialect, self.driver, self.query, self.is_async
        get_mark, set_mark, own = nesting.current.get, nesting.current.set, nesting.own
        enter, pass_free, limited = self.enter, self._pass_free, self.limits.statement

        def do_execute(cursor: Any, statement: Any, parameters: Any, context: Any = None) -> None:
            resource = dialect.bulkhead
            if driver.off:
                original(cursor, statement, parameters, context)
                return
            if resource.late:
                resource = resource.now()
            outer = get_mark()
            if outer:
                if inside(resource.identifier):
                    original(cursor, statement, parameters, context)
                    return
                outer = own(outer)
            else:
                outer = None
            ticket = None
            try:
                take, give, take_shared, give_shared, failed = resource.fast[resource.key()]
                ticket = take()
                shared = take_shared()
            except LookupError:
                if ends_work(statement):
                    ticket = None  # goes back by itself
                    pass_free(resource, original, cursor, statement, parameters, context)
                    return
                ticket, give, shared, give_shared, failed = enter(resource, site, ticket)
            started = resource.clock() if is_async else None
            mark = None
            if resource.nests:  # another driver guards by the same identifier: psycopg below, most likely
                mark = [resource.identifier, outer]
                mark.append(set_mark(mark))
            try:
                if resource.limits_time:
                    with limited(cursor, resource.time_limit(ticket), resource.identifier):
                        original(cursor, statement, parameters, context)
                else:
                    original(cursor, statement, parameters, context)
            except BaseException as error:
                if mark is not None:
                    mark.clear()
                    if outer:
                        outer[2] = set_mark(outer)
                failed(ticket, shared, error, site, started)
                del ticket, shared
                raise
            if mark is not None:
                mark.clear()
                if outer:
                    outer[2] = set_mark(outer)
            give_shared(shared)
            give(ticket)

        return do_execute

    def _pass_free(self, resource: Resource, original: Callable[..., Any], *arguments: Any) -> None:
        """What must never be refused: no ticket, but a failure counts."""
        mark = resource.mark()
        try:
            original(*arguments)
        except Exception as error:
            resource.report(error, self.query)
            raise
        finally:
            nesting.unmark(mark)

    def hook_exchanges(self) -> None:
        """Ping, commit and rollback are never refused, but end in time, as statements do, where the driver can that."""
        if self.limits.limits_exchanges:
            dialect = self.dialect
            dialect.do_ping = self._limited(dialect.do_ping)
            dialect.do_commit = self._limited(dialect.do_commit)
            dialect.do_rollback = self._limited(dialect.do_rollback)

    def _limited(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def exchange(dbapi_connection: Any) -> Any:
            if self.driver.off or not (resource := self.resource()).limits_time:
                return original(dbapi_connection)
            seconds = resource.time_limit(None)
            if resource.state != "closed" and (shorter := resource.options.half_open_resource_timeout) is not None:
                seconds = shorter if seconds is None else min(seconds, shorter)
            with self.limits.exchange(dbapi_connection, seconds, resource.identifier):
                return original(dbapi_connection)

        return exchange

    def hook_errors(self, engine: Engine) -> None:
        """Hear of the errors of fetch, commit, rollback and ping, which pass no hook of ours."""

        def handle_error(context: ExceptionContext) -> None:
            if not self.driver.off:
                try:
                    self._note(context)
                except Exception:
                    log.exception("[BULKHEAD] an error of an engine could not be noted")

        dialect = self.dialect
        watched = dialect._has_events  # noqa: SLF001  what makes each execution look for listeners
        event.listen(engine, "handle_error", handle_error)
        if watched:
            return
        # Nobody else listens to this dialect: until there is an error, executions need not look (2 us each). Before
        # SQLAlchemy asks whether anybody handles an error it asks the dialect whether that is a disconnect.
        dialect._has_events = False  # noqa: SLF001
        original = dialect.is_disconnect

        def is_disconnect(error: Any, connection: Any, cursor: Any) -> Any:
            dialect._has_events = True  # noqa: SLF001
            return original(error, connection, cursor)

        dialect.is_disconnect = is_disconnect

    def _note(self, context: ExceptionContext) -> None:
        error = context.original_exception
        if isinstance(error, Rejected) or not isinstance(error, Exception):
            return
        if ended_by_limit(error):  # one call was cut off; the other connections of the pool are as good as before
            context.invalidate_pool_on_disconnect = False
        resource = self.resource()
        identifier = resource.identifier
        # With a statement it was judged where it ran; without a connection it is a connect, judged there.
        elsewhere = context.statement is None and (context.connection is not None or context.is_pre_ping)
        if elsewhere and getattr(error, "bulkhead_identifier", None) != identifier and not inside(identifier):
            resource.report(error, self.query)
        wrapped = context.sqlalchemy_exception
        if wrapped is not None and (tag := getattr(error, "bulkhead_identifier", None)) is not None:
            wrapped.bulkhead_identifier = tag  # type: ignore[attr-defined]

"""The guarded attempts: commands, pipelines, connects, and retry loops that know a rejection. Sync and asyncio.

Each attempt is one guarded call, inside redis-py's own retry loop: a loop around the guard would hide up to eleven
attempts in one outcome. The hot functions have redis-py's own signatures and do nothing but take and give while
nothing is special. The two flavours are one text that differs by `await`, as in bulkhead.guard.

A connection is used by one caller at a time, so `connection.bulkhead_inside` says whether an attempt is under way on
it: connects, health checks and their retry loops inside one are part of it, and run once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redis.asyncio.client
import redis.asyncio.connection
import redis.client
import redis.connection

from adapters._redis_commands import SPECIAL, is_cached, kind_of
from adapters._redis_flavours import compiled, named
from adapters._redis_outcomes import REPLY, error_replies, worst
from adapters._redis_retry import has_own_retry
from adapters._redis_time_limits import lower, put_back
from bulkhead.adapter import Adapter, Resource, Site, nesting

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters._patch import Driver

TEMPLATE = """
{a}def guarded(connection, resource, take, site, call, pipeline=None):
    '''Any attempt, slowly: with its mark on the connection and its time limit.'''
    ticket, give, shared, give_shared, failed = {w}take(site)
    started = {clock}
    try:
        connection.bulkhead_inside = True
        if resource.limits_time and (limit := resource.time_limit(ticket)) is not None:
            kept = lower(connection, limit)
            try:
                result = {w}call()
            finally:
                put_back(connection, kept)
        else:
            result = {w}call()
    except BaseException as error:
        connection.bulkhead_inside = False
        failed(ticket, shared, said_worst(pipeline, error, site, resource), site, started)
        del ticket, shared
        raise
    connection.bulkhead_inside = False
    if result.__class__ is Replies:
        failed(ticket, shared, worst(result.errors, site, resource.options), site, started)
        return result.everything
    give_shared(shared)
    give(ticket)
    return result


def make_command(original):
    {a}def _send_command_parse_response(self, conn, command_name, *args, **options):
        try:
            resource = conn.bulkhead
        except AttributeError:
            resource = UNUSUAL
        if resource is None or driver.off:
            return {w}original(self, conn, command_name, *args, **options)
        if resource.late:
            if resource is UNUSUAL:
                return {w}unusual(original, self, conn, command_name, args, options)
            resource = resource.now()
        if command_name in SPECIAL or resource.marked:
            return {w}careful(original, self, conn, conn, resource, command_name, args, options)
        ticket = None
        try:
            take, give, take_shared, give_shared, failed = resource.fast[resource.key()]
            ticket = take()
            shared = take_shared()
        except LookupError:
            ticket, give, shared, give_shared, failed = {w}resource.{enter}(site_of(conn), ticket)
        started = {clock}
        try:
            conn.bulkhead_inside = True
            if resource.limits_time and (limit := resource.time_limit(ticket)) is not None:
                kept = lower(conn, limit)
                try:
                    result = {w}original(self, conn, command_name, *args, **options)
                finally:
                    put_back(conn, kept)
            else:
                result = {w}original(self, conn, command_name, *args, **options)
        except BaseException as error:
            conn.bulkhead_inside = False
            failed(ticket, shared, error, site_of(conn), started)
            del ticket, shared
            raise
        conn.bulkhead_inside = False
        give_shared(shared)
        give(ticket)
        return result
    return _send_command_parse_response


{a}def unusual(original, client, conn, command_name, args, options):
    '''A connection that is none of redis-py's own kind: client-side caching wraps one of those.'''
    inner = getattr(conn, "_conn", None)
    resource = getattr(inner, "bulkhead", None)
    if resource is None or is_cached(conn, args, options):
        return {w}original(client, conn, command_name, *args, **options)
    if resource.late:
        resource = resource.now()
    return {w}careful(original, client, conn, inner, resource, command_name, args, options)


{a}def careful(original, client, conn, marked, resource, command_name, args, options):
    '''A command inside another guarded call, or one that needs a look at its name.'''
    {a}def call():
        return {w}original(client, conn, command_name, *args, **options)
    if inside(resource.identifier):
        return {w}call()
    site = site_of(marked)
    kind = kind_of(command_name, args)
    if kind is None or kind == "exec":
        {a}def call_exec():
            return replies({w}call(), (((command_name,), None),), whole=True)
        return {w}guarded(marked, resource, resource.{begin}, site, call if kind is None else call_exec)
    if kind == "blocks":
        resource.check(site)
    try:
        return {w}call()
    except BaseException as error:
        if kind == "free" or not isinstance(error, TimeoutError):
            resource.report(error, site)
        raise


def make_pipeline(original):
    {a}def execute(self, connection, commands, raise_on_error):
        marked = connection if hasattr(connection, "bulkhead") else getattr(connection, "_conn", None)
        resource = getattr(marked, "bulkhead", None)
        if resource is None or driver.off:
            return {w}original(self, connection, commands, raise_on_error)
        if resource.late:
            resource = resource.now()
        if inside(resource.identifier):
            return {w}original(self, connection, commands, raise_on_error)
        {a}def call():
            self.__dict__[ERRORS] = []
            return replies({w}original(self, connection, commands, raise_on_error), commands)
        try:
            return {w}guarded(marked, resource, resource.{begin}, site_of(marked), call, self)
        finally:
            self.__dict__.pop(ERRORS, None)
    return execute


def make_connect(original):
    {a}def connect(self{declared}):
        if self.{connected}:
            return None  # as the original begins: this is called before each command
        resource = getattr(self, "bulkhead", None)
        if resource is None or driver.off:
            return {w}original(self{passed})
        if self.bulkhead_inside:
            return {w}original(self{passed_inside})
        if resource.late:
            resource = resource.now()
        if inside(resource.identifier):
            return {w}original(self{passed})
        {a}def call():
            return {w}original(self{passed})
        return {w}guarded(self, resource, resource.{enter}, connect_site_of(self), call)
    return connect
"""

ERRORS = "_bulkhead_errors"


class Unusual:
    """In the place of a resource: the connection is none of redis-py's own kind, so it has to be looked at."""

    late = True


@dataclass(slots=True)
class Replies:
    """What a pipeline returned, with errors in it."""

    everything: Any
    errors: list[Exception]


def replies(result: Any, commands: Any, *, whole: bool = False) -> Any:
    """`result`, or with errors in it Replies. `whole`: it is the reply to the one command."""
    errors = error_replies([result] if whole else result, commands) if isinstance(result, list) else []
    return Replies(result, errors) if errors else result


def said_worst(pipeline: Any, error: BaseException, site: Site, resource: Resource) -> BaseException:
    """The error of an attempt, or a worse one among the replies of the pipeline that it stands for."""
    others = None if pipeline is None else vars(pipeline).get(ERRORS)
    if not others or not isinstance(error, Exception):
        return error
    return worst([error, *others], site, resource.options)


def make_raise_first_error(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Pipeline.raise_first_error`, which tells the guard of the errors that are not raised."""

    def raise_first_error(self: Any, commands: Any, response: Any) -> Any:
        noted = vars(self).get(ERRORS)
        if noted is not None:
            noted += error_replies(response, commands)
        return original(self, commands, response)

    return raise_first_error


def make_annotate_exception(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Pipeline.annotate_exception` changes the text. Transactions call it for all that was refused while queued."""

    def annotate_exception(self: Any, exception: Any, number: Any, command: Any) -> Any:
        noted = vars(self).get(ERRORS)
        if noted is not None:
            noted.append(exception)
            setattr(exception, REPLY, str(exception))
        return original(self, exception, number, command)

    return annotate_exception


class Calls:
    """Patches the methods that make attempts; `adapter` for most users, `plain` for those with a Retry of their own."""

    def __init__(self, driver: Driver, adapter: Adapter, plain: Adapter) -> None:
        self._driver, self._adapter, self._plain = driver, adapter, plain

    def site_of(self, connection: Any) -> Site:
        """The site of a command: its errors depend on who retries."""
        return self._plain.query if has_own_retry(connection) else self._adapter.query

    def connect_site_of(self, connection: Any) -> Site:
        """The site of a connect."""
        return self._plain.connection if has_own_retry(connection) else self._adapter.connection

    def apply(self) -> None:
        """Patch both flavours."""
        self._flavour(redis.client, redis.connection, is_async=False)
        self._flavour(redis.asyncio.client, redis.asyncio.connection, is_async=True)

    def _flavour(self, client: Any, connection: Any, *, is_async: bool) -> None:
        replace = self._driver.replace
        owner = connection.AbstractConnection
        attempts = hasattr(owner, "connect_check_health")  # redis-py 6: connect() is a loop around it
        made = compiled(
            TEMPLATE,
            self._names(),
            is_async=is_async,
            enter="aenter" if is_async else "enter",
            begin="abegin" if is_async else "begin",
            clock="resource.clock()" if is_async else "None",
            connected="is_connected" if is_async else "_sock",
            declared=", check_health=True, retry_socket_connect=True" if attempts else "",
            passed=", check_health, retry_socket_connect" if attempts else "",
            passed_inside=", check_health, False" if attempts else "",
        )
        name = "_send_command_parse_response"
        replace(client.Redis, name, named(name, made["make_command"]))
        for name in ("_execute_pipeline", "_execute_transaction"):
            replace(client.Pipeline, name, named(name, made["make_pipeline"]))
        replace(client.Pipeline, "raise_first_error", make_raise_first_error)
        replace(client.Pipeline, "annotate_exception", make_annotate_exception)
        name = "connect_check_health" if attempts else "connect"
        replace(owner, name, named(name, made["make_connect"]))

    def _names(self) -> dict[str, Any]:
        """The globals of the template."""
        return {
            "ERRORS": ERRORS,
            "SPECIAL": SPECIAL,
            "Replies": Replies,
            "TimeoutError": redis.TimeoutError,
            "UNUSUAL": Unusual,
            "connect_site_of": self.connect_site_of,
            "driver": self._driver,
            "inside": nesting.inside,
            "is_cached": is_cached,
            "kind_of": kind_of,
            "lower": lower,
            "put_back": put_back,
            "replies": replies,
            "said_worst": said_worst,
            "site_of": self.site_of,
            "worst": worst,
        }

"""Every statement of a connection, guarded: `Connection.wait` consumes all of psycopg's protocol generators.

A permit is taken before a generator starts, so a refused statement has sent nothing. After it, the permit is given
back unless the connection is still ACTIVE (rows, a COPY or a pipeline are under way): then it stays on the connection
object until a later wait leaves it otherwise, or the connection is closed or dropped. Generators that go on with
something or end it (FREE) need no permit: refusing those would leave connections dirty; their failures still count.

`wait` is on the way of every statement and of every streamed row, so it is made from a text with the parameters of the
installed version (they differ, and are never passed by name), sync and async from one text.
"""

from __future__ import annotations

import inspect
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as e
from psycopg import generators, pq

from adapters._psycopg_errors import PsycopgCallTimeoutError, adapter
from adapters._psycopg_limits import NATIVE, SLEEPS, Deadline, TimeIsOver, finish, limited, limited_asleep
from adapters._psycopg_statements import passes
from bulkhead.adapter import Late, Rejected, Session, inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters._patch import Driver
    from bulkhead.adapter import Permit, Resource

ACTIVE = int(pq.TransactionStatus.ACTIVE)
LOST = int(pq.ConnStatus.BAD)
OWN_CANCEL_SECONDS = 10.0  # a "query canceled" within this time after our side asked for it is no sign of slowness

TEMPLATE = """
def make(original, driver, inside, EXECUTE, FREE, IDLE_WAIT, site, Rejected, TimeIsOver, Deadline, limited,
         known, keep, note, failed_within, went_on, ended, report, may_pass, overran):
    {a}def wait(self, gen{declared}):
        try:
            resource = self.bulkhead
        except AttributeError:
            return {w}original(self, gen{passed})
        if resource is None or driver.off:
            return {w}original(self, gen{passed})
        session = self.bulkhead_session
        if session is not None:
            if session.careful:
                return {w}carefully(self, session, gen{passed})
            try:
                result = {w}original(self, gen{passed_in_session})
            except BaseException as error:
                failed_within(self, session, gen, error)
                raise
            if self.pgconn.transaction_status != {active}:
                ended(self, session)
            return result
        name = gen.__qualname__
        if name != EXECUTE and name in FREE:
            return {w}freely(self, known(resource), gen{passed})
        if resource.marked and inside(known(resource).identifier):
            return {w}original(self, gen{passed})
        ticket = seconds = None
        try:
            take, give, take_shared, give_shared, failed = resource.fast[resource.key()]
            ticket = take()
            shared = take_shared()
        except (LookupError, AttributeError):  # AttributeError: not known yet, or to be asked for each time
            take = None  # the slow path follows outside, so that its errors do not show this one as their context
        if take is None:
            resource = known(resource)
            permit = {w}admitted(self, resource, gen, ticket)
            if permit is None:
                return {w}freely(self, resource, gen{passed})
            ticket, give, shared, give_shared, failed = permit
            del permit
            if resource.limits_time:
                seconds = resource.time_limit(ticket)
        elif resource.limits_time:
            seconds = resource.options.call_timeout  # no probe comes this way
{begin}
        try:
{call}
        except TimeIsOver as error:
            late = overran(self, gen, resource, seconds, error)
            failed(ticket, shared, late, site, {started})
            del ticket, shared
            try:
                raise late from None
            finally:
                del late  # a frame that keeps its own exception is a cycle
        except BaseException as error:
            failed(ticket, shared, note(self, resource, error), site, {started})
            del ticket, shared
            raise
        if (name != EXECUTE or self._pipeline is not None) and self.pgconn.transaction_status == {active}:
            keep(self, resource, gen, (ticket, give, shared, give_shared, failed), {started})
        else:
            give_shared(shared)
            give(ticket)
        return result

    {a}def admitted(self, resource, gen, ticket):
        if ticket is None and may_pass(self, gen):
            return None
        try:
            return {w}resource.{enter}(site, ticket)
        except Rejected:
            if may_pass(self, gen):
                return None
            gen.close()
            raise

    {a}def carefully(self, session, gen{declared}):
        resource, seconds = session.resource, session.seconds
        try:
{call}
        except BaseException as error:
            failed_within(self, session, gen, error)
            raise
        went_on(self, session, gen)
        return result

    {a}def freely(self, resource, gen{declared}):
        seconds = resource.options.call_timeout if gen.__qualname__ != IDLE_WAIT else None
        try:
{call}
        except TimeIsOver as error:
            if seconds is None:
                raise
            late = overran(self, gen, resource, seconds, error)
            report(self, resource, late)
            try:
                raise late from None
            finally:
                del late
        except BaseException as error:
            report(self, resource, error)
            raise
        return result

    return wait
"""

# psycopg 3.3 has time limits in `wait` itself; older ones get a generator that looks at the clock.
CALL_NATIVE = """
            result = {w}original(self, gen, interval, timeout if seconds is None else seconds)
"""
CALL_LIMITED = """
            if seconds is None:
                result = {w}original(self, gen{passed})
            else:
                deadline = Deadline(seconds, resource.identifier)
                result = {w}original(self, limited(gen, deadline, self.pgconn), deadline.shorter({interval}))
"""
IDLE_WAIT = "notifies"  # waits for other people's messages: as long as it takes


def _names(*owners_and_names: tuple[Any, tuple[str, ...]]) -> frozenset[str]:
    found = (getattr(owner, name, None) for owner, names in owners_and_names for name in names)
    return frozenset(one.__qualname__ for one in found if one is not None)


FREE = _names(
    (
        psycopg.Connection,
        (
            "_commit_gen",
            "_rollback_gen",
            "_tpc_prepare_gen",
            "_tpc_finish_gen",
            "_set_autocommit_gen",
            "_set_isolation_level_gen",
            "_set_read_only_gen",
            "_set_deferrable_gen",
        ),
    ),
    # BEGIN and SAVEPOINT are refused earlier, before the block is entered: psycopg would undo what was not done.
    (psycopg.Transaction, ("_enter_gen", "_exit_gen")),
    (psycopg.Pipeline, ("_enter_gen", "_exit_gen", "_sync_gen", "_fetch_gen", "_communicate_gen")),
    (psycopg.Cursor, ("_stream_fetchone_gen",)),
    (psycopg.ServerCursor, ("_close_gen",)),
    (psycopg.Copy, ("_read_gen", "_read_row_gen", "_end_copy_out_gen")),
    (generators, ("copy_to", "copy_end", IDLE_WAIT)),
)
EXECUTE = psycopg.Cursor._execute_gen.__qualname__  # noqa: SLF001  generators are told by their names
# When one of these returns, the server has answered: the verdict is known although the permit stays out.
ANSWERED = frozenset(
    ("_stream_fetchone_gen", "_start_copy_gen", "_read_gen", "_read_row_gen", "_sync_gen", "_fetch_gen", "copy_end")
)


class Held(Session):
    """The permit of a connection that is still ACTIVE. `careful`: its next waits have more to do than to be passed on.

    One that is dropped with its connection takes its tickets with it, which return by themselves.
    """

    __slots__ = ("careful", "resource", "seconds", "settled")

    def __init__(self, resource: Resource, permit: Permit, started: float | None) -> None:
        super().__init__(permit, adapter.query, started)
        self.resource = resource
        # For each wait of its own: the time that the user takes between two rows is not the server's.
        self.seconds = resource.time_limit(permit[0]) if resource.limits_time else None
        self.settled = False
        self.careful = True

    def answered(self) -> None:
        """The verdict is success now: a half-open circuit need not wait until the last row is read."""
        if not self.settled:
            self.settled = True
            self.careful = self.seconds is not None and not NATIVE
            self.settle()


def wait_hook(driver: Driver, original: Callable[..., Any]) -> Callable[..., Any]:
    """`Connection.wait` or `AsyncConnection.wait`, guarded, with the very same parameters."""
    parameters = list(inspect.signature(original).parameters.values())[2:]
    names = [one.name for one in parameters]
    is_async = inspect.iscoroutinefunction(original)
    w = "await " if is_async else ""
    passed = "".join(f", {name}" for name in names)
    source = TEMPLATE.format(
        a="async " if is_async else "",
        w=w,
        declared="".join(f", {name}=None" for name in names),
        passed=passed,
        passed_in_session=", interval, session.seconds if timeout is None else timeout" if NATIVE else passed,
        call=(CALL_NATIVE if NATIVE else CALL_LIMITED).format(w=w, passed=passed, interval=names[0]).strip("\n"),
        begin="        started = resource.clock()" if is_async else "",
        started="started" if is_async else "None",
        enter="aenter" if is_async else "enter",
        active=ACTIVE,
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<guard of {original.__qualname__}>", "exec"), namespace)  # noqa: S102  as dataclasses do
    wait = namespace["make"](
        original,
        driver,
        inside,
        EXECUTE,
        FREE,
        IDLE_WAIT,
        adapter.query,
        Rejected,
        TimeIsOver,
        Deadline,
        limited_asleep if SLEEPS and not is_async else limited,
        _known,
        _keep,
        _note,
        _failed_within,
        _went_on,
        _ended,
        _report,
        _may_pass,
        _overran,
    )
    wait.__defaults__ = tuple(one.default for one in parameters)  # the inner functions get every argument
    wait.__name__, wait.__qualname__, wait.__doc__ = original.__name__, original.__qualname__, original.__doc__
    wait.__module__ = original.__module__
    wait.__annotations__ = original.__annotations__
    return wait  # type: ignore[no-any-return]


def _known(resource: Resource | Late) -> Resource:
    return resource.now() if isinstance(resource, Late) else resource


def _may_pass(connection: Any, gen: Any) -> bool:
    """Is this one of the statements that are never refused?"""
    if gen.__name__ != "_execute_gen":
        return False
    while (frame := getattr(gen, "gi_frame", None)) is not None and "gen" in frame.f_locals:
        gen = frame.f_locals["gen"]  # within somebody's time limit
    return frame is not None and passes(frame.f_locals.get("query"), connection)


def _keep(connection: Any, resource: Resource, gen: Any, permit: Permit, started: float | None) -> None:
    """The statement goes on after this wait."""
    session = connection.bulkhead_session = Held(resource, permit, started)
    if gen.__name__ in ANSWERED:
        session.answered()


def _went_on(connection: Any, session: Held, gen: Any) -> None:
    if connection.pgconn.transaction_status != ACTIVE:
        _ended(connection, session)
    elif gen.__name__ in ANSWERED:
        session.answered()


def _ended(connection: Any, session: Held) -> None:
    connection.bulkhead_session = None
    session.end()


def _failed_within(connection: Any, session: Held, gen: Any, error: BaseException) -> None:
    connection.bulkhead_session = None
    if isinstance(error, TimeIsOver) and session.seconds is not None:
        late = _overran(connection, gen, session.resource, session.seconds, error)
        session.fail(late)
        try:
            raise late from None
        finally:
            del late, error
    session.fail(_note(connection, session.resource, error))


def _overran(connection: Any, gen: Any, resource: Resource, seconds: float | None, error: Exception) -> Exception:
    """Psycopg's own `wait` gave up at our limit: the connection is in the middle of something and has to go."""
    if seconds is None:
        return error  # the limit was somebody else's
    finish(gen, connection.pgconn)
    return Deadline(seconds, resource.identifier).error()


def _report(connection: Any, resource: Resource, error: BaseException) -> None:
    """A statement that had no permit failed."""
    error = _note(connection, resource, error)
    if connection.pgconn.status != LOST or not _follows_a_failure(error, resource.identifier):
        resource.report(error, adapter.query)


def _follows_a_failure(error: BaseException, identifier: str) -> bool:
    """Was this raised while clearing up after an error that counted? Then it is the same loss: `stream()` reads on."""
    before = error.__context__
    while before is not None and getattr(before, "bulkhead_identifier", None) != identifier:
        before = before.__context__
    return before is not None


def _note(connection: Any, resource: Resource, error: BaseException) -> BaseException:
    """What is to be reported of this error; a connection that cannot be used any more is closed."""
    asked, connection.bulkhead_cancelled = connection.bulkhead_cancelled, None
    if isinstance(error, e.QueryCanceled) and asked is not None and monotonic() - asked < OWN_CANCEL_SECONDS:
        return GeneratorExit()  # says nothing
    if SLEEPS and resource.limits_time and not isinstance(error, Exception) and _left_active(connection):
        connection.pgconn.finish()  # psycopg 3.1 could not drain what `limited_asleep` was reading
    return error


def _left_active(connection: Any) -> bool:
    return isinstance(connection, psycopg.Connection) and connection.pgconn.transaction_status == ACTIVE


def release(connection: Any) -> None:
    """The connection is closed: what it still held goes back, without a verdict."""
    session = connection.bulkhead_session
    if session is not None:
        connection.bulkhead_session = None
        session.fail(GeneratorExit())


__all__ = ["PsycopgCallTimeoutError", "release", "wait_hook"]

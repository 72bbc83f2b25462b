"""What psycopg's errors mean, and the errors that callers of a protected connection see besides psycopg's own.

Importing it patches nothing. The table follows SQLSTATE where the server sent one; without one no connection was made,
it was lost, or psycopg refused by itself. Texts are looked at only where there is nothing else: failed connects carry
no SQLSTATE, so a wrong password and a full server differ in their text alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from psycopg import errors as e

from bulkhead.adapter import Adapter, CircuitOpenError, Errors, Outcome, ResourceBusyError, UnknownTenantError

if TYPE_CHECKING:
    from bulkhead.adapter import Options


class PsycopgCircuitOpenError(CircuitOpenError, e.OperationalError):
    """The circuit is open, or half-open with no probe free. Also a psycopg.OperationalError."""


class PsycopgResourceBusyError(ResourceBusyError, e.OperationalError):
    """No ticket was free. Also a psycopg.OperationalError."""


class PsycopgUnknownTenantError(UnknownTenantError, e.OperationalError):
    """No tenant in context while `unknown_tenant("reject")` is in force. Also a psycopg.OperationalError."""


class PsycopgCallTimeoutError(e.OperationalError):
    """A connect or statement lasted longer than call_timeout (a probe: half_open_resource_timeout) and was ended.

    The connection is closed then: its server may still be at work on the statement. Counts as a failure.
    """


# Failures: the server cannot (08, 53 out of resources, 58 system error), or says that it is going or gone.
_FAILURE_CLASSES = frozenset(("08", "53", "58"))
_FAILURES = frozenset(("57P01", "57P02", "57P03", "57014"))  # 57014: statement_timeout is how a slow server shows
# It says nothing about the server's health: the database was dropped, an idle session was ended, somebody holds the
# lock, a wrong password, an unknown database, an internal error of one statement.
_NEUTRAL_CLASSES = frozenset(("28", "XX"))
_NEUTRALS = frozenset(("57P04", "57P05", "55P03", "25P03", "25P04", "3D000"))

_NEUTRAL_TYPES = tuple(
    getattr(e, name) for name in ("PipelineAborted", "CancellationTimeout", "_WaitTimeout") if hasattr(e, name)
)
# Refusals of psycopg and libpq themselves: nothing was sent, or the loss was noticed and reported before.
_REFUSAL = re.compile(
    r"(?:the connection is (?:closed|lost)|another command is already in progress|failed to enter pipeline mode"
    r"|connection not in pipeline mode|failed to sync pipeline|(?:row|rows) mode failed|not allowed in pipeline mode"
    r"|cannot queue commands during COPY|no COPY in progress|cannot exit pipeline mode .*)\s*\Z"
)
_OWN_CANCEL = "error from Python: "  # in what the server says of a COPY that the caller's own error ended
_CALLERS_FAULT = re.compile(
    r"authentication failed|no pg_hba\.conf entry|pg_hba\.conf rejects|no password supplied"
    r"|(?:role|database|user) \"[^\"]*\" does not exist|is not permitted to log in|permission denied for database"
    r"|is not currently accepting connections"
)


def outcome(error: Exception, options: Options) -> Outcome:  # noqa: ARG001  the signature of outcome functions
    """Whether this error is a failure of the server, an answer of it, or says nothing about it."""
    if isinstance(error, PsycopgCallTimeoutError):
        return Outcome.FAILURE
    if not isinstance(error, e.Error) or type(error).__module__.startswith("psycopg_pool"):
        return Outcome.IGNORED
    state = error.sqlstate
    if state:
        return Outcome.IGNORED if state == "57014" and _OWN_CANCEL in str(error) else _of_state(state)
    if isinstance(error, _NEUTRAL_TYPES):
        return Outcome.IGNORED
    if isinstance(error, e.OperationalError):
        return _of_operational(error)
    # The server's last words arrive as a result without SQLSTATE when libpq itself wrote them.
    return Outcome.FAILURE if type(error) is e.DatabaseError else Outcome.IGNORED


def _of_state(state: str) -> Outcome:
    if state in _FAILURES or state[:2] in _FAILURE_CLASSES:
        return Outcome.FAILURE
    if state in _NEUTRALS or state[:2] in _NEUTRAL_CLASSES:
        return Outcome.IGNORED
    return Outcome.SUCCESS


def _of_operational(error: e.OperationalError) -> Outcome:
    text = str(error)
    return Outcome.IGNORED if _REFUSAL.search(text) or _callers_fault(error.pgconn, text) else Outcome.FAILURE


def _callers_fault(pgconn: Any, text: str) -> bool:
    """Did a connect fail because of a password, a role or a database name? With several hosts: at every one."""
    _, *attempts = text.split("\n- host: ")  # psycopg's own list of them; 3.2 says it without a pgconn
    if attempts:
        return all(_CALLERS_FAULT.search(one) for one in attempts)
    if pgconn is None:  # not of a connect
        return False
    return bool(pgconn.needs_password) or _CALLERS_FAULT.search(text) is not None


adapter = Adapter(
    "psycopg",
    "postgres",
    Errors(PsycopgResourceBusyError, PsycopgCircuitOpenError, PsycopgUnknownTenantError),
    outcome,
)

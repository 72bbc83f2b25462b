"""Which errors of a DBAPI say that the database is in trouble.

The drivers' tables are facts about servers: SQLSTATE classes of PostgreSQL, result codes of SQLite, error numbers of
MySQL. An error that a driver raises without asking its server tells nothing. Unknown drivers: OperationalError and
InterfaceError count, as PEP 249 means them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import exc

from adapters._sqlalchemy_limits import ended_by_limit
from bulkhead.adapter import Outcome, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.adapter import Options

FAILURE, SUCCESS, IGNORED = Outcome.FAILURE, Outcome.SUCCESS, Outcome.IGNORED

# As in _psycopg_errors.py, which cannot be imported without psycopg.
_SICK_CLASSES = ("08", "53", "58")  # connection exception, insufficient resources, system error
_SICK_STATES = {"57P01", "57P02", "57P03", "57014"}  # shut down, crashed, starting up, cancelled (statement_timeout)
_NEUTRAL_CLASSES = ("28", "XX")  # who may log in, internal errors of one statement
_NEUTRAL_STATES = {
    "57P04",
    "57P05",
    "55P03",
    "25P03",
    "25P04",
    "3D000",
}  # the caller was slow, a lock, no such database

_SICK_SQLITE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_CORRUPT")
_NEUTRAL_SQLITE = ("SQLITE_INTERRUPT", "SQLITE_MISUSE", "SQLITE_NOMEM", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")

_SICK_MYSQL = {1040, 1053, 1077, 1079, 1203, 2002, 2003, 2006, 2013, 2055, 3024, 4031}
_NEUTRAL_MYSQL = {1044, 1045, 1049, 1205, 1213}  # who may log in where, lock waits, deadlocks


def outcome(error: Exception, options: Options) -> Outcome:
    """F, O or N of an error as the DBAPI raised it, or as SQLAlchemy wrapped it."""
    plain: BaseException = error
    while isinstance(plain, exc.StatementError) and plain.orig is not None:
        plain = plain.orig
    if isinstance(plain, (Rejected, exc.TimeoutError)):  # an adapter below refused; the pool's own queue
        return IGNORED
    package = type(plain).__module__.partition(".")[0]
    if package == "psycopg" or ended_by_limit(plain):
        from adapters import _psycopg_errors  # noqa: PLC0415  needs psycopg, which is there then

        return _psycopg_errors.outcome(plain, options)  # type: ignore[arg-type]
    state = getattr(plain, "sqlstate", None) or getattr(plain, "pgcode", None)
    if isinstance(state, str):
        return of_sqlstate(state)
    return _BY_PACKAGE.get(package, _of_any)(plain)


def of_sqlstate(state: str) -> Outcome:
    """What an SQLSTATE says; an error with one came from the server."""
    if state in _NEUTRAL_STATES or state.startswith(_NEUTRAL_CLASSES):
        return IGNORED
    if state in _SICK_STATES or state.startswith(_SICK_CLASSES):
        return FAILURE
    return SUCCESS


def _of_sqlite(error: Any) -> Outcome:
    name = getattr(error, "sqlite_errorname", None)
    if name is None or name.startswith(_NEUTRAL_SQLITE):
        return IGNORED
    return FAILURE if name.startswith(_SICK_SQLITE) or name == "SQLITE_NOTADB" else SUCCESS


def _of_mysql(error: BaseException) -> Outcome:
    number = getattr(error, "errno", None) or (error.args[0] if error.args else None)
    if not isinstance(number, int):
        return _of_any(error)
    if number in _SICK_MYSQL:
        return FAILURE
    from_server = 1000 <= number < 2000 or 3000 <= number < 5000  # 2000s: the client's own
    return SUCCESS if from_server and number not in _NEUTRAL_MYSQL else IGNORED


def _of_any(error: BaseException) -> Outcome:
    names = _names(error)
    if names & {"OperationalError", "InterfaceError"} or isinstance(error, OSError):
        return FAILURE
    return SUCCESS if names & {"IntegrityError", "DataError"} else IGNORED


def _names(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


_MYSQL_PACKAGES = ("pymysql", "MySQLdb", "mysql", "aiomysql", "asyncmy", "mariadb")
_BY_PACKAGE: dict[str, Callable[[Any], Outcome]] = {
    "sqlite3": _of_sqlite,
    **dict.fromkeys(_MYSQL_PACKAGES, _of_mysql),
}

"""Which statements pass while everything else is refused.

They end or undo work, so refusing them would leave connections dirty; or they ask whether a connection still works,
so refusing them would make pools and Django drop healthy ones. Looked at only where a call is about to be refused. A
text passes only if it is one such statement as a whole: "ROLLBACK; SELECT pg_sleep(9)" does not.
"""

from __future__ import annotations

import re
from typing import Any

from psycopg.sql import Composable

from adapters._sql_text import bare

_NAME = r"(?:\"(?:[^\"]|\"\")+\"|[\w$]+)"
_TEXT = r"'(?:[^'\\]|'')*'"
_PASSES = re.compile(
    rf"""
        (?:ROLLBACK|ABORT|COMMIT|END) (?:\s+(?:WORK|TRANSACTION))? (?:\s+AND (?:\s+NO)? \s+CHAIN)?
      | ROLLBACK (?:\s+(?:WORK|TRANSACTION))? \s+TO (?:\s+SAVEPOINT)? (?:\s+|(?=\")) {_NAME}
      | RELEASE (?:\s+SAVEPOINT)? (?:\s+|(?=\")) {_NAME}
      | (?:PREPARE\s+TRANSACTION|(?:COMMIT|ROLLBACK)\s+PREPARED) \s* {_TEXT}
      | DEALLOCATE (?:\s+PREPARE)? (?:\s+|(?=\")) {_NAME}
      | DISCARD \s+(?:ALL|PLANS|SEQUENCES|TEMP|TEMPORARY)
      | RESET (?:\s+SESSION\s+AUTHORIZATION | (?:\s+|(?=\")) {_NAME}(?:\.{_NAME})?)
    """,
    re.IGNORECASE | re.VERBOSE,
)
IS_USABLE = "SELECT 1"  # exactly what Django's is_usable() sends, nothing like it


def passes(query: Any, connection: Any) -> bool:
    """Does this statement pass? Never raises: what cannot be read is refused."""
    text = _text(query, connection)
    if text is None:
        return False
    if text == IS_USABLE:
        return True
    statement = bare(text)  # without marginalia in front and sqlcommenter's comments behind
    return statement is not None and (not statement or _PASSES.fullmatch(statement) is not None)


def _text(query: Any, connection: Any) -> str | None:
    try:
        if isinstance(query, Composable):
            query = query.as_bytes(connection)
        if isinstance(query, (bytes, bytearray)):
            return query.decode("latin-1")  # every byte is something; keywords are ASCII
        return query if isinstance(query, str) else None
    except Exception:  # noqa: BLE001  the user's own composable: its error belongs to the call, not here
        return None

"""Log lines that people and machines read: one event, one line, `key=value`, and each value a field of the record.

`say("state_change", identifier="redis:cache", state="open")` writes on the logger `bulkhead`

    [BULKHEAD] state_change identifier=redis:cache state=open

and the record has the attributes `bulkhead_event`, `bulkhead_identifier`, `bulkhead_state`: formatters that write JSON
(python-json-logger, structlog's ProcessorFormatter with ExtraAdder) find them without any set-up. Values are text,
numbers or flags. No tenant id is ever among them. Whatever a driver wrote goes through `without_secrets` first.
"""

from __future__ import annotations

import json
import logging
import re

log = logging.getLogger("bulkhead")

Value = str | int | float | bool

LONGEST = 200  # characters of a driver's text
_LOOKED_AT = 2000  # the same, before anything is cut out
_PLAIN = re.compile(r'[^\s="\\]+')
_USER = re.compile(r"(\b[\w.+-]+://)[^/\s?#]*@")
_QUERY = re.compile(r"(\b[\w.+-]+://[^\s?#'\"]*)[?#][^\s'\"]*")
_SECRET = re.compile(
    r"""(?ix)
    \b ( [\w-]* (?: password | passwd | pwd | secret | token | api[_-]?key | authorization | cookie) ['"]? \s*[=:]\s* )
    (?: "[^"]*" | '[^']*' | (?: (?: basic | bearer ) \s+ )? [^\s,;)]+ )"""
)


def say(event: str, text: str = "", level: int = logging.WARNING, **fields: Value | None) -> None:
    """One line about `event`; fields that are None are left out. `text`: more words for people."""
    if not log.isEnabledFor(level):
        return
    told = {name: value for name, value in fields.items() if value is not None}
    pairs = "".join(f" {name}={_shown(value)}" for name, value in told.items())
    extra: dict[str, object] = {"bulkhead_event": event}
    extra.update((f"bulkhead_{name}", value) for name, value in told.items())
    log.log(level, "[BULKHEAD] %s%s%s", event, pairs, text and f": {text}", extra=extra, stacklevel=2)


def without_secrets(text: str) -> str:
    """The first line of a driver's text, at most 200 characters, without what looks like a credential or a query.

    Statements, parameters and rows stand on later lines of the texts of SQL drivers.
    """
    line = text[:_LOOKED_AT].partition("\n")[0].strip()
    line = _SECRET.sub(r"\1***", _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", line)))
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _shown(value: Value) -> str:
    """A value that cannot end its line, nor its field."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())

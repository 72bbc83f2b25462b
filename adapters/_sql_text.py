"""SQL text without its comments, for telling whether a whole statement is one of a few keywords. No driver.

Whatever is doubtful is told apart as None, and refused like any statement: a comment within a comment (PostgreSQL nests
them, others do not), one that does not end, and MySQL's `/*! … */`, which is no comment. A line comment ends at either
line end, so nothing that a server would execute is taken for a comment. One pass, and no possessive groups: those of
the first releases of Python 3.11 do not match what they should.
"""

from __future__ import annotations

import re

LONGEST = 4096  # characters; no such statement is longer, and reading megabytes to refuse them would be work
_PARTS = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|--[^\n\r]*|/\*.*?(?:\*/|\Z)""", re.DOTALL)


def bare(text: str) -> str | None:
    """`text` with a space for each comment, without white space and semicolons around it; None: doubtful, or long."""
    if len(text) > LONGEST:
        return None
    if "--" in text or "/*" in text:
        doubtful = False

        def part(found: re.Match[str]) -> str:
            nonlocal doubtful
            one = found.group()
            if one.startswith("/*"):
                doubtful = doubtful or len(one) < len("/**/") or not one.endswith("*/") or "/*" in one[2:]
                doubtful = doubtful or one.startswith("/*!")
            return " " if one.startswith(("--", "/*")) else one

        text = _PARTS.sub(part, text)
        if doubtful:
            return None
    return text.strip(" \t\n\r\f\v;")

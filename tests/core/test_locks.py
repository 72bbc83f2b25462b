"""What `with lock:` really protects, instruction by instruction, on this interpreter.

Since 3.12 the jump back of a loop that stands directly in a `with` block may lie outside of the range in which an
exception releases the lock, and that jump is where signal handlers run. So an exception raised by one keeps the lock
for ever. This reads the compiled code of every `with` of ours.
"""

from __future__ import annotations

import ast
import dis
import sys
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
EVERYWHERE = sorted(path for folder in ("bulkhead", "adapters") for path in (ROOT / folder).rglob("*.py"))
CORE = sorted(
    [
        *(ROOT / "bulkhead").glob("*.py"),
        *(ROOT / "bulkhead").glob("[ct]i*/*.py"),
        *(ROOT / "bulkhead" / "jobs").glob("*.py"),
    ]
)
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def unprotected(code: CodeType) -> Iterator[str]:
    """Jumps back inside a `with` block that its exit does not cover."""
    instructions = list(dis.get_instructions(code))
    index = {one.offset: number for number, one in enumerate(instructions)}
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    for target in {entry.target for entry in table}:
        handler = instructions[index[target] : index[target] + 3]
        if not any(one.opname == "WITH_EXCEPT_START" for one in handler):
            continue
        spans = sorted((entry.start, entry.end) for entry in table if entry.target == target)
        for end, begin in zip([end for _, end in spans], [*[start for start, _ in spans[1:]], target], strict=True):
            for one in instructions:
                if not end <= one.offset < begin or any(entry.start <= one.offset < entry.end for entry in table):
                    continue
                if one.opname == "CALL":  # that of the exit: what follows is outside of the block
                    break
                positions = one.positions
                if one.opname == "JUMP_BACKWARD" and positions is not None and positions.lineno is not None:
                    yield f"{code.co_qualname}, line {positions.lineno}"


def test_the_check_finds_what_it_is_made_for() -> None:
    source = """
def found(lock, items):
    with lock:
        for item in items:
            if item:
                item()
            if item is not None:
                return item
"""
    inner = next(one for one in codes(compile(source, "example", "exec")) if one.co_name == "found")
    assert bool(list(unprotected(inner))) == (sys.version_info >= (3, 12))


def of_locks(tree: ast.Module) -> Iterator[ast.With]:
    """The `with` statements that hold a lock."""
    for one in ast.walk(tree):
        if isinstance(one, ast.With) and any("lock" in ast.unparse(item.context_expr) for item in one.items):
            yield one


@pytest.mark.parametrize("path", EVERYWHERE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_loop_stands_directly_where_a_lock_is_held(path: Path) -> None:
    """Whatever the interpreter that this runs on: a function of its own is safe on all."""
    blocks = [statement for one in of_locks(ast.parse(path.read_text())) for statement in one.body]
    assert not [part.lineno for block in blocks for part in ast.walk(block) if isinstance(part, LOOPS)]


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_lock_can_be_kept_by_an_exception_between_two_instructions(path: Path) -> None:
    """Fault 2 of our own, one step further."""
    found = [where for code in codes(compile(path.read_text(), str(path), "exec")) for where in unprotected(code)]
    assert not found

"""docs/migrating.md: what stands before and after does the same, and what is said of the difference is so."""

from __future__ import annotations

import importlib.util
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from stories import together

import bulkhead
from bulkhead.option_rows import rows_of
from bulkhead.process_values import ProcessValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import RunPython

BREAKERS = ("pybreaker", "circuitbreaker")
SIDES = ("before", "after")


@pytest.fixture
def text(root: Path) -> str:
    return (root / "docs" / "migrating.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    bulkhead.unregister("call:payments")


def block(text: str, side: str, name: str) -> str:
    """The block below `<!-- side: name -->`."""
    (found,) = re.findall(rf"^<!-- {side}: {name} -->\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found)


def run(text: str, side: str, name: str) -> dict[str, Any]:
    """What the block defines; skipped where the library is not installed."""
    if side == "before":
        pytest.importorskip(name.partition("-")[0])
    names: dict[str, Any] = {}
    exec(compile(block(text, side, name), f"migrating.md: {side} {name}", "exec"), names)  # noqa: S102  our own page
    return names


def gone(amount: int) -> str:
    """A dependency that is down."""
    raise ConnectionError(amount)


def wrong(amount: int) -> str:
    """One that says that the caller is wrong."""
    raise ValueError(amount)


def well(amount: int) -> str:
    """One that answers."""
    return f"sent {amount}"


def raises(call: Callable[..., object], *arguments: object) -> type[BaseException]:
    """What a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  which one is what is asked
        call(*arguments)
    return caught.type


def test_every_block_is_marked_and_run(text: str) -> None:
    marked = re.findall(r"^<!-- (before|after): ([\w-]+) -->\n```python$", text, re.MULTILINE)
    assert text.count("```python") == len(marked)
    assert set(marked) == {
        *((side, name) for side in SIDES for name in (*BREAKERS, "pybreaker-listener")),
        ("after", "semian"),
    }


@pytest.mark.parametrize("side", SIDES)
def test_pybreaker(text: str, side: str) -> None:
    names = run(text, side, "pybreaker")
    charge, or_later = names["charge"], names["charge_or_later"]
    for _ in range(5):
        assert raises(charge, wrong, 1) is ValueError
    for _ in range(2):
        assert raises(charge, gone, 1) is ConnectionError
    assert charge(well, 1) == "sent 1"  # breaks the run of failures
    for _ in range(2):
        assert raises(charge, gone, 1) is ConnectionError
    opening = raises(charge, gone, 1)
    if side == "before":  # throw_new_error_on_trip
        assert opening.__name__ == "CircuitBreakerError"
    else:
        assert opening is ConnectionError
    assert or_later(well, 1) == "later"


@pytest.mark.parametrize("side", SIDES)
def test_pybreaker_listeners(text: str, side: str) -> None:
    names = run(text, side, "pybreaker-listener")
    try:
        raises(names["payments"](gone), 1)
        assert names["seen"] == [("closed", "open")]
    finally:
        if side == "after":
            for subscription in bulkhead.events._state.subscriptions:
                subscription.cancel()


@pytest.mark.parametrize(("name", "most"), [("pybreaker", 1), ("circuitbreaker", 4)])
@pytest.mark.parametrize("side", SIDES)
def test_how_many_calls_run_at_once(text: str, side: str, name: str, most: int) -> None:
    """There pybreaker holds a lock. Four callers: each waits until four are inside, or for the others to give up."""
    charge = run(text, side, name)["charge"]
    everybody, inside = threading.Barrier(4), list[int]()

    def meet(_: int) -> None:
        inside.append(1)
        try:
            everybody.wait(2 if most == 1 and side == "before" else 20)
        except threading.BrokenBarrierError:
            return

    together(*[lambda: charge(meet, 1)] * 4)
    assert everybody.broken == (most == 1 and side == "before")
    assert len(inside) == 4


@pytest.mark.parametrize("side", SIDES)
def test_circuitbreaker(text: str, side: str) -> None:
    charge = run(text, side, "circuitbreaker")["charge"]
    for _ in range(5):
        assert raises(charge, wrong, 1) is ValueError
    for _ in range(2):
        assert raises(charge, gone, 1) is ConnectionError
    assert charge(well, 1) == "sent 1"
    for _ in range(3):
        assert raises(charge, gone, 1) is ConnectionError
    assert charge(well, 1) == "later"


def test_semian(text: str, run_python: RunPython) -> None:
    pytest.importorskip("redis")
    source = "charge = print\n" + block(text, "after", "semian")
    shown = run_python(
        source + "\nprint(*bulkhead.resources(), cache.connection_pool.connection_kwargs['host'])"
    ).stdout
    assert shown == "5\nredis:inventory call:payments cache-1\n"


@pytest.mark.parametrize("name", BREAKERS)
def test_names_of_the_other_library_are_its_names(text: str, name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    library = importlib.import_module(name)
    section = text[text.index(f"## {name}") :]
    section = section[: section.index("\n## ", 1)]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")][2:]
    parameters = set(library.CircuitBreaker.__init__.__code__.co_varnames)
    known = {*parameters, *dir(library), *dir(library.CircuitBreaker), "f", "breaker"}
    if name == "circuitbreaker":
        known |= set(dir(library.CircuitBreakerMonitor))
    words = {
        word for cell in cells for code in re.findall(r"`([^`]+)`", cell) for word in re.findall(r"[A-Za-z_]{2,}", code)
    }
    assert words - known - {"with"} == set()


def test_names_of_ours_are_our_names(text: str) -> None:
    ours = {
        *rows_of(bulkhead.Options), *rows_of(ProcessValues), *bulkhead.__all__, *dir(bulkhead.Resource),
    }  # fmt: skip
    for line in text.splitlines():
        if not line.startswith("|") or line.startswith("|---"):
            continue
        for code in re.findall(r"`([^`]+)`", line.split("|")[2]):
            called = re.match(r"(?:bulkhead\.|resource\.)?(\w+)\(", code)
            option = re.match(r"(\w+)=", code)
            for found in (called, option):
                if found and found[1] != "open":
                    assert found[1] in ours or found[1] == "f" or found[1] == "defaults", code


def test_options_that_semian_shares_exist_here(text: str) -> None:
    (row,) = re.findall(r"^\| (.*) \| the same name; times in seconds \|$", text, re.MULTILINE)
    names = re.findall(r"`(\w+)`", row)
    assert len(names) > 10
    assert set(names) <= set(rows_of(bulkhead.Options))

"""Groups of rows: calls that are refused, and calls that fail. Raise and catch are part of what is measured."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import circuitbreaker
from guarded import BOTH, CIRCUIT, SITE, inlined, made
from peers import CIRCUITBREAKER, Client, broken_circuit, budget, py_broken
from table import Line, cost_line, ratio_line
from timing import Subject, calls, measure

import bulkhead
from bulkhead.adapter import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.adapter import Resource

OPEN = 1.1 if sys.version_info >= (3, 12) else 1.0  # 3.12, which no budget names, is held to that of 3.13
RAISE = "bare raise and catch"


def fails(self: Client, value: int) -> int:
    """A driver's function that raises."""
    raise ValueError("the server said no")


def _caught(function: Callable[..., Any], client: Client | None = None, error: type[Exception] = Exception) -> Subject:
    statement = "try: function(client, 1)\nexcept error: pass"
    return calls(statement, function=function, client=client or Client(), error=error)


def _opened(resource: Resource) -> Client:
    client = Client(resource)
    function = inlined(fails)
    while resource.state == "closed":
        with contextlib.suppress(ValueError):
            function(client, 1)
    return client


def _full(**options: Any) -> tuple[Client, Any]:
    resource = made(**options)
    return Client(resource), resource.begin(SITE)


def refused(rounds: int) -> list[Line]:
    """An open circuit, and no ticket."""
    opened = broken_circuit(fails, threshold=1)
    with contextlib.suppress(ValueError):
        opened(Client(), 1)
    tenant_full, one = _full(tenant_tickets=1)
    resource_full, two = _full(tickets=1, tenant_tickets=2)
    options = BOTH | CIRCUIT
    decorated = made(**options)
    _opened(decorated)
    pybroken = py_broken(fails, threshold=1)
    with contextlib.suppress(Exception):  # its own error
        pybroken(Client(), 1)
    subjects = {
        RAISE: _caught(fails, error=ValueError),
        CIRCUITBREAKER: _caught(opened, error=circuitbreaker.CircuitBreakerError),
        "pybreaker": _caught(pybroken),
        "open: inlined": _caught(inlined(fails), _opened(made(**options)), bulkhead.CircuitOpenError),
        "open: guard()": _caught(guard(fails, SITE), _opened(made(**options)), bulkhead.CircuitOpenError),
        "open: decorator": _caught(decorated(fails), None, bulkhead.CircuitOpenError),
        "no ticket of the tenant": _caught(inlined(fails), tenant_full, bulkhead.ResourceBusyError),
        "no ticket of the resource": _caught(inlined(fails), resource_full, bulkhead.ResourceBusyError),
    }
    results = measure(subjects, rounds)
    del one, two
    lines = [cost_line(row, results, bare=None) for row in (RAISE, CIRCUITBREAKER, "pybreaker")]
    for row in list(subjects)[3:]:
        most = OPEN if row.startswith("open") else 1.45
        lines.append(ratio_line(row, results, CIRCUITBREAKER, budget(most), bare=None))
    return lines


def failed(rounds: int) -> list[Line]:
    """A driver's error that counts; the window is too short to open the circuit."""
    options = BOTH | CIRCUIT | {"error_threshold": 1000, "error_threshold_timeout": 1e-6}
    in_a_row = BOTH | CIRCUIT | {"error_threshold": 10**6, "error_threshold_timeout_enabled": False}
    subjects = {
        RAISE: _caught(fails, error=ValueError),
        CIRCUITBREAKER: _caught(broken_circuit(fails), error=ValueError),
        "pybreaker": _caught(py_broken(fails), error=ValueError),
        "counted failure: inlined": _caught(inlined(fails), Client(made(**options)), ValueError),
        "counted failure: guard()": _caught(guard(fails, SITE), Client(made(**options)), ValueError),
        "counted failure: decorator": _caught(made(**options)(fails), None, ValueError),
        "counted failure: in a row": _caught(inlined(fails), Client(made(**in_a_row)), ValueError),
        "error that counts as success": _caught(inlined(_other), Client(made(**options)), KeyError),
    }
    results = measure(subjects, rounds)
    lines = [cost_line(row, results, bare=None) for row in (RAISE, CIRCUITBREAKER, "pybreaker")]
    for row in list(subjects)[3:]:
        most = 0.95 if row.startswith("counted failure: i") or row.endswith("guard()") else None
        lines.append(ratio_line(row, results, CIRCUITBREAKER, None if most is None else budget(most), bare=None))
    return lines


def _other(self: Client, value: int) -> int:
    raise KeyError(value)

"""Log lines for machines: fields on the record, one line each, rate-limited, without secrets and without tenants."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from stories import Boom, Clock, circuit, fail, hold, refused, resource, succeed

import bulkhead
from bulkhead import CircuitOpenError, ResourceBusyError
from bulkhead.log_lines import LONGEST, say, without_secrets
from bulkhead.option_set import Options
from bulkhead.process_values import defaults, process
from bulkhead.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """What python-json-logger and structlog's ExtraAdder do: the message, and every attribute that is not standard."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in STANDARD}
        return json.dumps({"level": record.levelname, "logger": record.name, "message": record.getMessage()} | extra)


class Lines:
    """The logger `bulkhead` as a stream of JSON."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def read(self) -> list[dict[str, Any]]:
        """What was written so far."""
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    written = Lines()
    handler = logging.StreamHandler(written.stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("bulkhead")
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


@pytest.fixture
def _defaults_restored() -> Iterator[None]:
    before = process.values
    yield
    process.values = before


def test_a_change_of_state_is_one_line_with_its_fields(lines: Lines) -> None:
    clock = Clock()
    one = resource(clock, **circuit(1, 10, 1))
    fail(one, "acme", error=ConnectionError("no route"))
    clock.advance(10)
    succeed(one, "acme")
    opened, tried, closed = lines.read()
    assert opened == {
        "level": "WARNING",
        "logger": "bulkhead",
        "message": "[BULKHEAD] state_change identifier=call:story circuit=shared old=closed state=open "
        'reason="failures reached the threshold" driver=call scope=query error="ConnectionError: no route"',
        "bulkhead_event": "state_change",
        "bulkhead_identifier": "call:story",
        "bulkhead_circuit": "shared",
        "bulkhead_old": "closed",
        "bulkhead_state": "open",
        "bulkhead_reason": "failures reached the threshold",
        "bulkhead_driver": "call",
        "bulkhead_scope": "query",
        "bulkhead_error": "ConnectionError: no route",
    }
    assert (tried["bulkhead_old"], tried["bulkhead_state"]) == ("open", "half_open")
    assert (closed["bulkhead_old"], closed["bulkhead_state"]) == ("half_open", "closed")
    assert "bulkhead_error" not in closed


def test_rejections_are_told_at_a_falling_rate_and_by_reason(lines: Lines) -> None:
    one = resource(**circuit(1, 600), tickets=2, tenant_tickets=1)
    held = [hold(one, "a"), hold(one, "b")]
    for _ in range(100):
        refused(ResourceBusyError, one, "a")
    refused(ResourceBusyError, one, "c")
    for session in held:
        session.end()
    fail(one)
    for _ in range(1000):
        refused(CircuitOpenError, one)
    told = [(line["bulkhead_reason"], line["bulkhead_count"]) for line in lines.read() if "bulkhead_count" in line]
    assert told == [
        *[("tenant", 2**power) for power in range(7)],
        ("resource", 1),
        *[("open", 2**power) for power in range(10)],
    ]


@pytest.mark.usefixtures("_defaults_restored")
def test_every_event_has_the_fields_that_the_reference_lists(lines: Lines, root: Path) -> None:
    one = resource(**circuit(1, 600), tickets=1, tenant_tickets=1, mode="shadow")
    held = hold(one, "a")
    succeed(one, "a")
    held.end()
    one.update(mode="enforce")
    fail(one)
    refused(CircuitOpenError, one)
    with bulkhead.bypass("call:story"):
        pass
    defaults(maximum_lru_size=1, maximum_resources=1)
    own = Registry()
    kept = hold(own.get("call:first", Options(name="first", tickets=1)))
    own.get("call:second", Options(name="second", tickets=1))
    kept.end()

    page = (root / "docs" / "metrics.md").read_text(encoding="utf-8")
    section = re.search(r"<!-- log:begin .*?-->\n(.*?)<!-- log:end -->", page, re.DOTALL)
    assert section
    rows = [line.split("|")[1:3] for line in section[1].strip().splitlines()[2:]]
    told = {event.strip(): set(re.findall(r"bulkhead_\w+", fields)) for event, fields in rows}
    found: dict[str, set[str]] = {}
    for line in lines.read():
        fields = {name for name in line if name.startswith("bulkhead_")} - {"bulkhead_event", "bulkhead_identifier"}
        found.setdefault(line["bulkhead_event"], set()).update(fields)
        assert line["bulkhead_identifier"]
        assert line["level"] == ("ERROR" if line["bulkhead_event"] == "overflow" else "WARNING")
    assert found == told


def test_no_tenant_and_no_secret_is_in_a_line(lines: Lines) -> None:
    one = resource(
        **circuit(1, 600, 1, error_tenants=3), tenant_circuit=True, tickets=9, tenant_tickets=1, maximum_tenants=50
    )
    succeed(one, "tenant-b")
    held = hold(one, "tenant-a")
    refused(ResourceBusyError, one, "tenant-a")
    held.fail(Boom("GET https://user:hunter2@api/v1?card=4111 failed: password=hunter2\nDETAIL: Key (email)=(a@b)"))
    refused(CircuitOpenError, one, "tenant-a")
    shown = lines.stream.getvalue()
    assert '"bulkhead_circuit": "tenant"' in shown
    for secret in ("tenant-a", "tenant-b", "hunter2", "4111", "email"):
        assert secret not in shown
    assert "Boom: GET https://***@api/v1?*** failed: password=***" in shown


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Error 111 connecting to cache-1:6379. Connection refused.", "Error 111 connecting to cache-1:6379. Connection refused."),
        ("redis://:s3cret@cache:6379/0 is gone", "redis://***@cache:6379/0 is gone"),
        ("postgresql://u:p%40ss@db/x", "postgresql://***@db/x"),
        ("for url 'https://api/v1/pay?token=abc&x=1'", "for url 'https://api/v1/pay?***'"),
        ("host=db password=s3cret dbname=x", "host=db password=*** dbname=x"),
        ("""{"api_key": "s3cret", "n": 1}""", """{"api_key": ***, "n": 1}"""),
        ("Authorization: Bearer s3cret", "Authorization: ***"),
        ("db_password='a b' refused", "db_password=*** refused"),
        ("(OperationalError) gone\n[SQL: SELECT 1]\n[parameters: ('s3cret',)]", "(OperationalError) gone"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_drivers_say_is_told_without_credentials(said: str, kept: str) -> None:
    assert without_secrets(said) == kept


def test_long_texts_are_cut() -> None:
    assert len(without_secrets("x" * 100_000)) == LONGEST
    assert len(without_secrets("secret" * 100_000)) == LONGEST


@pytest.mark.parametrize(
    "hostile", ["a\nb", "a\u2028b", 'a" state="open', "a state=open", "a=b", "", "\x1b[31m", "back\\slash"]
)
def test_a_value_ends_neither_its_line_nor_its_field(
    lines: Lines, hostile: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "bulkhead"):
        say("state_change", identifier=hostile, count=1)
    (message,) = caplog.messages
    assert message.isprintable()
    assert len(message.splitlines()) == 1
    quoted = re.fullmatch(r'\[BULKHEAD\] state_change identifier=("(?:[^"\\]|\\.)*") count=1', message)
    assert quoted
    assert json.loads(quoted[1]) == hostile
    assert lines.read()[0]["bulkhead_identifier"] == hostile


def test_nothing_is_put_together_where_nobody_listens(lines: Lines) -> None:
    logger = logging.getLogger("bulkhead")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        say("state_change", identifier="call:x")
    finally:
        logger.setLevel(before)
    assert lines.read() == []

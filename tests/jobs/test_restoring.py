"""What `restore` takes: records, or what JSON made of them. Anything else is said, and nothing is kept."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import bulkhead
from bulkhead.jobs import JobRecord, Runner, job

RECORD = JobRecord("id", "restored", "default", "acme", {"which": 7}, 1, 5, 0.0, None)


def test_records_that_were_written_down_as_json_are_taken_over_as_they_were_read() -> None:
    seen: list[tuple[int, str | None]] = []

    @job(name="restored")
    def restored(which: int) -> None:
        seen.append((which, bulkhead.current_tenant()))

    text = json.dumps([RECORD._asdict(), RECORD._replace(id="other", tenant=None)._asdict()])
    with Runner(workers=1) as runner:
        runner.restore(json.loads(text))
        assert runner.drain(timeout=20)
    assert sorted(seen, key=str) == [(7, "acme"), (7, None)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([["hunter2", "restored"]], "not list"),
        (["hunter2"], "not str"),
        ("hunter2", "not str"),
        (RECORD, "not JobRecord; give a list of them"),
        (RECORD._asdict(), "not dict; give a list of them"),
        (None, "not NoneType"),
        ([{"id": "hunter2"}], "this one has no 'name'"),
        ([{**RECORD._asdict(), "hunter2": 1}], "this one has a key that is no field"),
    ],
)
def test_what_is_no_record_is_refused_and_not_quoted(given: Any, says: str) -> None:
    with Runner(workers=1) as runner:
        with pytest.raises(bulkhead.ConfigurationError, match=f"JobRecord.*{says}") as caught:
            runner.restore(given)
        assert "hunter2" not in str(caught.value)
        assert runner.top_tenants() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 7},
        {"name": ""},
        {"queue": None},
        {"arguments": "hunter2"},
        {"attempt": "1"},
        {"attempt": -1},
        {"attempt": 1_000_001},
        {"max_attempts": 0},
        {"max_attempts": True},
        {"delay": math.nan},
        {"delay": math.inf},
        {"delay": -1},
        {"delay": 1_000_000_001},
        {"last_error": 7},
    ],
)
def test_a_field_that_cannot_be_is_named_and_nothing_is_kept(wrong: dict[str, Any]) -> None:
    (field,) = wrong
    for bad in (RECORD._replace(**wrong), {**RECORD._asdict(), **wrong}):
        with Runner(workers=1) as runner:
            runner.pause("acme")
            with pytest.raises(bulkhead.ConfigurationError, match=f"JobRecord: {field} must be ") as caught:
                runner.restore([RECORD, bad])
            assert "hunter2" not in str(caught.value)
            assert runner.top_tenants() == []

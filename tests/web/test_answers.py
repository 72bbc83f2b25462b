"""What a client is told that is not let in."""

from __future__ import annotations

import json

import pytest

from bulkhead import CircuitOpenError, QuotaExceeded, ResourceBusyError
from bulkhead.web.answers import answer, unavailable, wants_text, without_tenant


@pytest.mark.parametrize(
    ("accept", "text"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/problem+json", False),
        ("text/plain", True),
        ("text/*", True),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", True),
        ("application/json, text/plain, */*", False),  # axios
        ("text/plain;q=0.5, application/json", False),
        ("text/plain, application/json;q=0.5", True),
        ("TEXT/PLAIN", True),
        ("text/plain;q=0", False),
        ("application/json;q=0, text/plain", True),
        ("image/png", False),
        ("text/plain;q=high", False),
        (";;;,,,q=1", False),
        ("text/plain" * 1000, False),
    ],
)
def test_problem_details_unless_a_text_is_wanted_more(accept: str | None, text: object) -> None:
    assert wants_text(accept) is text


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(None, 4), (0.0, 1), (-1.0, 1), (0.001, 1), (1.0, 1), (1.001, 2), (59.5, 60), (float("inf"), 4), (1e12, 86_400)],
)
def test_retry_after_is_rounded_up(seconds: float | None, told: int) -> None:
    found = unavailable(CircuitOpenError("sql:x", "acme", seconds), None, 4)
    assert dict(found.headers)["retry-after"] == str(told)
    assert json.loads(found.body)["retry_after"] == told


def test_an_answer_is_complete_and_says_nothing_of_the_request_or_of_us() -> None:
    for error in (ResourceBusyError("sql:x", "acme", "tenant"), QuotaExceeded("acme has 5 GB")):
        found = unavailable(error, "text/plain")
        assert (found.status, found.phrase) == (503, "Service Unavailable")
        headers = dict(found.headers)
        assert headers["content-length"] == str(len(found.body))
        assert headers["cache-control"] == "no-store"
        assert found.raw_headers == tuple((name.encode(), value.encode()) for name, value in found.headers)
        assert b"acme" not in found.body
        assert b"sql" not in found.body


def test_without_a_tenant_there_is_nothing_to_retry_but_a_way_to_say_who_one_is() -> None:
    found = without_tenant("tenant_missing", 401, "Bearer", None)
    assert dict(found.headers)["www-authenticate"] == "Bearer"
    assert "retry-after" not in dict(found.headers)
    assert json.loads(found.body)["title"] == "Unauthorized"


def test_answers_are_made_once() -> None:
    assert answer(503, "busy", False, 1, None) is answer(503, "busy", False, 1, None)

"""Which ids a tenant can have. Ids come from clients: they are hostile input."""

from __future__ import annotations

import enum
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkhead.errors import ConfigurationError
from bulkhead.tenancy import MAXIMUM_BYTES, current_tenant, set_tenant, tenant, tenant_text


class Plan(enum.StrEnum):
    GOLD = "gold"


class Number(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("identifier", "text"),
    [
        ("acme", "acme"),
        ("a", "a"),
        ("a" * 256, "a" * 256),
        ("é" * 128, "é" * 128),
        (" a b ", " a b "),
        ("日本", "日本"),
        (42, "42"),
        (-1, "-1"),
        (0, "0"),
        (10**255, "1" + "0" * 255),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Plan.GOLD, "gold"),
        (Number.ONE, "1"),
    ],
)
def test_text_numbers_and_uuids_are_ids(identifier: Any, text: str) -> None:
    with tenant(identifier) as entered:
        assert entered == current_tenant() == text
        assert type(current_tenant()) is str


@pytest.mark.parametrize(
    "identifier",
    ["", "a" * 257, "é" * 129, "a\nb", "\x00", "\x1f", "\x7f", "\x85", "\ud800", "a\udfff", b"acme", 1.0, True, False]
    + [pytest.param(10**size, id=f"1e{size}") for size in (256, 5000)]
    + [["acme"], ("acme",), object(), str, {"id": 1}],
)
def test_anything_else_is_an_error_that_does_not_quote_the_id(identifier: Any) -> None:
    for function in (tenant, set_tenant):
        with pytest.raises(ConfigurationError) as caught:
            function(identifier)
        assert current_tenant() is None
        assert len(str(caught.value)) < 200
        assert str(caught.value).isprintable()


def test_a_str_subclass_is_its_text_whatever_it_says_of_itself() -> None:
    class Sly(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "other"

        def __hash__(self) -> int:
            return 1

    text = tenant_text(Sly("acme"))
    assert (text, type(text)) == ("acme", str)


@given(st.text(max_size=300))
def test_an_id_is_accepted_exactly_when_it_is_1_to_256_bytes_without_control_characters(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = -1
    good = 1 <= size <= MAXIMUM_BYTES and not any(ord(one) < 32 or 127 <= ord(one) < 160 for one in text)
    try:
        accepted = tenant_text(text) == text
    except ConfigurationError:
        accepted = False
    assert accepted is good

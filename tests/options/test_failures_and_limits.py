"""`is_failure` and `tenant_limits`, which are asked during calls: what they may be, and what wrong answers become."""

from __future__ import annotations

import asyncio

import pytest
from options.refusing import refused

from bulkhead.option_set import Options

# is_failure: known fault 25


@pytest.mark.parametrize(
    "rule",
    [
        OSError(),
        "OSError",
        [],
        (),
        ["OSError"],
        [OSError()],
        (OSError, int),
        int,
        5,
        KeyboardInterrupt,
        asyncio.CancelledError,
        lambda: True,
        lambda one, two: True,
        {"OSError": 1},
    ],
)
def test_what_cannot_tell_a_failure_is_refused_where_it_is_written(rule: object) -> None:
    """Known fault 25: found at construction, not as a TypeError while handling the real error."""
    assert "is_failure must be an exception class, a tuple of them, or a callable" in refused(is_failure=rule)


def test_a_coroutine_function_cannot_tell_a_failure() -> None:
    async def rule(error: Exception) -> bool:
        await asyncio.sleep(0)
        return True

    assert "a coroutine function cannot answer at once" in refused(is_failure=rule)


def test_classes_count_with_their_subclasses() -> None:
    """Known fault 25."""
    for rule in (OSError, [OSError], (OSError,), (KeyError, OSError)):
        one = Options(is_failure=rule)
        assert one.counts(ConnectionResetError()) is True
        assert one.counts(ValueError()) is False
    assert Options(is_failure=[OSError]).is_failure == (OSError,)
    assert Options(is_failure=BaseException).counts(ValueError()) is True
    assert Options().counts(OSError()) is None


def test_a_callable_answers_true_false_or_leaves_it_to_the_adapter() -> None:
    one = Options(is_failure=lambda error: {"a": True, "b": False, "c": None}[str(error.args[0])])
    assert [one.counts(ValueError(letter)) for letter in "abc"] == [True, False, None]


def test_a_callable_that_raises_leaves_it_to_the_adapter_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    one = Options(name="inventory", is_failure=lambda error: error.missing)  # type: ignore[attr-defined]
    assert [one.counts(ValueError("secret")) for _ in range(3)] == [None] * 3
    (line,) = caplog.messages
    assert "inventory: is_failure raised AttributeError" in line
    assert "secret" not in line


# tenant_limits


@pytest.mark.parametrize(
    "tiers",
    [
        {"acme": -1},
        {"acme": 1.0},
        {"acme": True},
        {"acme": "3"},
        {"": 3},
        {"a\n": 3},
        {None: 3},
        {1.5: 3},
        "acme",
        5,
        dict,
        ["acme"],
        lambda: 3,
        {"acme": 1_000_001},
    ],
)
def test_wrong_limits_are_refused(tiers: object) -> None:
    assert "tenant_limits must be " in refused(tenant_limits=tiers)


def test_tiers_come_first_and_none_means_tenant_tickets() -> None:
    for tiers in ({"gold": 20, "none": None, "blocked": 0, 42: 7}, {"gold": 20, "blocked": 0, "42": 7}.get):
        one = Options(tenant_tickets=4, tenant_limits=tiers)  # type: ignore[arg-type]
        told = [one.tenant_limit(whose) for whose in ("gold", "none", "blocked", "42", "else")]
        assert told == [20, 4, 0, 7, 4]
        assert one.tenant_limit(None) == 4
    assert Options(tenant_limits={"gold": 20}).tenant_limit("else") is None


def test_tiers_are_copied() -> None:
    tiers = {"gold": 20}
    one = Options(tenant_limits=tiers)
    tiers["gold"] = 1
    assert one.tenant_limit("gold") == 20


def test_no_tiers_at_all_are_none() -> None:
    one = Options(tenant_limits={})
    assert one.tenant_limits is None
    assert not one.counts_tenants


@pytest.mark.parametrize("answer", [-1, 1.5, True, "9", 10**9])
def test_a_callable_that_answers_no_limit_is_said_once(answer: object, caplog: pytest.LogCaptureFixture) -> None:
    one = Options(name="inventory", tenant_tickets=4, tenant_limits=lambda _: answer)  # type: ignore[arg-type,return-value]
    assert [one.tenant_limit("acme") for _ in range(3)] == [4, 4, 4]
    assert len(caplog.messages) == 1


def test_a_callable_that_raises_falls_back_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def tiers(tenant: str) -> int:
        raise LookupError(tenant)

    one = Options(name="inventory", tenant_tickets=4, tenant_limits=tiers)
    assert [one.tenant_limit("acme") for _ in range(3)] == [4, 4, 4]
    (line,) = caplog.messages
    assert "inventory: tenant_limits raised LookupError" in line
    assert "acme" not in line

"""What becomes of calls outside any tenant is one choice for the process; the core hears of changes."""

from __future__ import annotations

from typing import Any

import pytest

from bulkhead import tenancy
from bulkhead.errors import ConfigurationError
from bulkhead.tenancy import on_policy_change, policy, unknown_tenant


@pytest.fixture(autouse=True)
def as_in_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenancy, "_watchers", [])
    monkeypatch.setattr(tenancy, "_policy", "allow")


def test_unknown_tenants_are_allowed_unless_said_otherwise() -> None:
    """Known fault 61."""
    assert policy() == "allow"
    unknown_tenant("reject")
    assert policy() == "reject"
    unknown_tenant("share")
    assert policy() == "share"


@pytest.mark.parametrize("wrong", [None, "", "deny", True, ["allow"], {}])
def test_another_policy_is_an_error_and_changes_nothing(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match='takes "allow", "share" or "reject"'):
        unknown_tenant(wrong)
    assert policy() == "allow"


def test_each_change_is_told_once_after_it_happened() -> None:
    told: list[str] = []

    def watcher() -> None:
        told.append(policy())

    on_policy_change(watcher)
    on_policy_change(watcher)
    for one in ("allow", "reject", "reject", "share", "allow"):
        unknown_tenant(one)
    assert told == ["reject", "share", "allow"]

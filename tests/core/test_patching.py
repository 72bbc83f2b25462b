"""How a driver's attributes are replaced and restored (adapters/_patch.py), on a class of our own."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from adapters._patch import Driver, release


class Client:
    """A driver's class."""

    def call(self, value: int) -> int:
        """A hot method."""
        return value

    @classmethod
    def connect(cls) -> str:
        """A constructor that is a class method."""
        return cls.__name__


class Derived(Client):
    """Inherits what is patched."""


def plus_ten(original: Any) -> Any:
    def call(self: Any, value: int) -> int:
        return int(original(self, value + 10)) if not driver.off else int(original(self, value))

    return call


driver = Driver("pytest", "pytest", (1,))


@pytest.fixture(autouse=True)
def _unpatched() -> Any:
    yield
    driver.restore()
    driver.__init__("pytest", "pytest", (1,))  # type: ignore[misc]


def patch() -> None:
    driver.replace(Client, "call", plus_ten)
    driver.wrap(Client, "connect", lambda wrapped, instance, args, kwargs: "guarded " + wrapped(*args, **kwargs))


def test_restoring_puts_the_very_same_attributes_back() -> None:
    """Known fault 72."""
    before = vars(Client)["call"], vars(Client)["connect"]
    driver.apply(patch)
    assert Client().call(1) == 11
    assert Derived.connect() == "guarded Derived"
    assert driver.restore() == []
    assert (vars(Client)["call"], vars(Client)["connect"]) == before
    assert "connect" not in vars(Derived)


def test_applying_twice_patches_once() -> None:
    """Known fault 72."""
    driver.apply(patch)
    driver.apply(patch)
    assert Client().call(1) == 11


def test_a_second_copy_of_the_toolkit_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Known fault 72: two copies of a patcher in one process."""
    driver.apply(patch)
    copy = Driver("copy", "pytest", (1,))
    with caplog.at_level(logging.WARNING, "bulkhead"):
        copy.apply(lambda: copy.replace(Client, "call", plus_ten))
    assert Client().call(1) == 11
    assert "another copy of this toolkit" in caplog.text
    assert copy.restore() == []


def test_under_another_tools_wrapper_ours_passes_through_and_works_again_when_installed_again() -> None:
    """Known fault 72: the other tool does not say what it wraps."""
    original = vars(Client)["call"]
    driver.apply(patch)
    ours = vars(Client)["call"]
    Client.call = lambda self, value: ours(self, value) + 100  # type: ignore[method-assign]
    theirs = vars(Client)["call"]
    try:
        assert driver.restore() == ["Client.call"]
        assert Client().call(1) == 101
        driver.apply(patch)
        assert vars(Client)["call"] is theirs
        assert Client().call(1) == 111, "patched once, not twice"
        driver.restore()
        Client.call = original  # type: ignore[method-assign]
        driver.apply(patch)
        assert Client().call(1) == 11, "the other tool has gone, and ours with it: patched anew"
    finally:
        driver.restore()
        Client.call = original  # type: ignore[method-assign]


def test_an_unsupported_version_is_left_alone_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    old = Driver("pytest", "pytest", (9999,))
    with caplog.at_level(logging.WARNING, "bulkhead"):
        assert not old.apply(patch)
        assert not old.apply(patch)
    assert len(caplog.records) == 1
    assert "9999 or newer" in caplog.text
    assert Client().call(1) == 1


@pytest.mark.parametrize(("text", "numbers"), [("8.1.0rc1", (8, 1, 0)), ("3.1.20", (3, 1, 20)), ("dev", ())])
def test_a_version_is_the_numbers_that_it_begins_with(text: str, numbers: tuple[int, ...]) -> None:
    assert release(text) == numbers

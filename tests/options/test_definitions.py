"""All forms in which options reach a client come down to one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bulkhead.definitions import Dynamic, define, defined, interpret, known_names, resolver, set_resolver
from bulkhead.errors import ConfigurationError
from bulkhead.option_arguments import options
from bulkhead.option_set import Options


def asked(driver: str, host: str | None, port: int | None, extra: object) -> Any:
    """A callable as a user writes it."""
    return {"name": f"{driver}-{host}-{port}", "tickets": len(str(extra))}


@pytest.mark.parametrize("raw", [None, False])
def test_nothing_and_false_are_unprotected(raw: object) -> None:
    """NH-15, AR-04, MY-23."""
    assert interpret(raw, driver="redis") is None


def test_all_forms_are_equal() -> None:
    wanted = Options(name="inventory", tickets=16)
    define("inventory", tickets=16)
    for raw in (
        options(name="inventory", tickets=16)["bulkhead"],
        Options(name="inventory", tickets=16),
        {"name": "inventory", "tickets": 16},
        options(name="inventory", tickets=16),
        "inventory",
        lambda *_: "inventory",
        lambda *_: {"name": "inventory", "tickets": 16},
        lambda *_: wanted,
    ):
        assert interpret(raw, driver="redis") == wanted


def test_options_are_taken_as_they_are() -> None:
    one = Options(tickets=3)
    assert interpret(one, driver="redis") is one


def test_a_mapping_is_left_intact() -> None:
    """AR-03."""
    raw = {"name": "inventory", "tickets": 16}
    interpret(raw, driver="redis")
    assert raw == {"name": "inventory", "tickets": 16}


def test_a_name_may_be_used_before_it_is_defined() -> None:
    assert interpret("inventory", driver="redis") == "inventory"
    define("inventory", tickets=3)
    assert interpret("inventory", driver="redis") == Options(name="inventory", tickets=3)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'inventory'; define them with bulkhead\.define\(name, …\): none is known"
    ):
        defined("inventory")
    define("inventory", tickets=3)
    define("payments", tickets=3)
    assert known_names() == ["inventory", "payments"]
    with pytest.raises(ConfigurationError, match="did you mean 'inventory'"):
        defined("inventroy")
    with pytest.raises(ConfigurationError, match="known are inventory, payments"):
        defined("x")


def test_the_same_definition_twice_is_harmless_another_one_is_an_error() -> None:
    """Known fault 49, RG-24."""
    define("inventory", tickets=3)
    define("inventory", tickets=3)
    with pytest.raises(ConfigurationError, match=r"'inventory' is defined twice .*tickets: 3 and 5"):
        define("inventory", tickets=5)
    assert defined("inventory").tickets == 3


def test_lax_the_first_definition_holds_and_both_values_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    define("inventory", tickets=3)
    define("inventory", tickets=5, force_config_validation=False)
    assert defined("inventory").tickets == 3
    (line,) = caplog.messages
    assert line.startswith("[BULKHEAD_CONFIG_WARNING]: inventory: ")
    assert "tickets: 3 and 5" in line


def test_a_definition_without_a_name_of_its_own_has_that_name() -> None:
    define("inventory", **options(tickets=3))
    define("shared", identifier="redis:stock", tickets=3)
    define("plain")
    assert defined("inventory").name == "inventory"
    assert defined("shared").identifier == "redis:stock"
    assert defined("plain") == Options(name="plain")


@pytest.mark.parametrize("name", [1, None, "", "a\nb", "n" * 257])
def test_a_definition_needs_a_usable_name(name: Any) -> None:
    with pytest.raises(ConfigurationError):
        define(name, tickets=3)
    with pytest.raises(ConfigurationError):
        define(name)


def test_a_callable_is_asked_once_with_what_is_known_of_the_client() -> None:
    """NH-12, NH-18."""
    calls: list[object] = []

    def ask(*about: object) -> Options:
        calls.append(about)
        return Options(tickets=3)

    found = interpret(ask, driver="redis", host="cache-1", port=6379, extra={"db": 0})
    assert found == Options(tickets=3)
    assert calls == [("redis", "cache-1", 6379, {"db": 0})]
    assert interpret(asked, driver="redis", host="h", port=1) == Options(name="redis-h-1", tickets=2)


def test_a_callable_can_leave_a_client_unprotected() -> None:
    """NH-15, NH-16, NH-19."""
    assert interpret(lambda *_: None, driver="http") is None
    assert interpret(lambda *_: False, driver="http") is None
    assert interpret(lambda driver, host, port, extra: {"a": "inventory"}.get(host), driver="http", host="b") is None


def test_dynamic_options_are_asked_for_on_each_call() -> None:
    """AD-05, NH-28, RC-03."""
    tickets = iter(range(1, 100))
    found = interpret(lambda *_: Options(name="n", tickets=next(tickets), dynamic=True), driver="http")
    assert isinstance(found, Dynamic)
    first, second = found.now(), found.now()
    assert first is not None
    assert second is not None
    assert second.tickets == (first.tickets or 0) + 1


def test_dynamic_options_may_change_their_form() -> None:
    answers: list[Any] = [{"tickets": 1, "dynamic": True}, None, "inventory", "missing", "inventory"]
    found = interpret(lambda *_: answers.pop(0), driver="http")
    assert isinstance(found, Dynamic)
    define("inventory", tickets=3)
    assert found.now() is None
    assert found.now() == defined("inventory")
    with pytest.raises(ConfigurationError, match="missing"):
        found.now()


def test_dynamic_without_a_callable_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="answer of a callable"):
        interpret(Options(tickets=3, dynamic=True), driver="http")
    with pytest.raises(ConfigurationError, match="answer of a callable"):
        define("inventory", dynamic=True)


@pytest.mark.parametrize("raw", [True, 3, 2.5, Options, object(), [], ("tickets", 3), b"inventory", dict])
def test_another_type_is_an_error_that_says_what_would_do(raw: object) -> None:
    with pytest.raises(ConfigurationError, match=r"bulkhead= takes options \(use \*\*bulkhead.options"):
        interpret(raw, driver="redis")


@pytest.mark.parametrize("raw", ["", "a\nb", "\ud800"])
def test_a_name_that_cannot_be_defined_is_an_error_at_once(raw: str) -> None:
    with pytest.raises(ConfigurationError, match="no name of defined options"):
        interpret(raw, driver="redis")


@pytest.mark.parametrize("raw", [{"ticket": 3}, {"tickets": 0}, {3: 3}, {None: 1}])
def test_a_wrong_mapping_is_an_error(raw: dict[Any, Any]) -> None:
    with pytest.raises(ConfigurationError):
        interpret(raw, driver="redis")


def test_a_callable_that_raises_is_named_and_its_text_is_not_quoted() -> None:
    def ask(driver: str, host: str | None, port: int | None, extra: Any) -> Options:
        raise RuntimeError("password=hunter2")

    with pytest.raises(ConfigurationError, match=r"ask was asked .* redis client and raised RuntimeError") as caught:
        interpret(ask, driver="redis")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="raised TypeError; it takes"):
        interpret(lambda: None, driver="redis")


@pytest.mark.parametrize("answer", [True, 3, {"ticket": 3}, {"tickets": 0}, [], asked, Options])
def test_a_callable_that_answers_rubbish_is_named(answer: object) -> None:
    def ask(*_: object) -> object:
        return answer

    with pytest.raises(ConfigurationError, match=r"ask answered with"):
        interpret(ask, driver="redis")


def test_a_coroutine_function_is_no_callable_for_options() -> None:
    async def ask(*_: object) -> Options:
        await asyncio.sleep(0)
        return Options()

    with pytest.raises(ConfigurationError, match="ask answered with"):
        interpret(ask, driver="redis")


def test_the_resolver_is_asked_for_clients_that_were_given_nothing() -> None:
    """NH-12, NH-14, NH-15."""
    assert set_resolver(asked) is None
    assert resolver() is asked
    found = interpret(None, driver="redis", host="h", port=1)
    assert found == Options(name="redis-h-1", tickets=2)
    assert interpret(False, driver="redis") is None
    assert interpret(Options(tickets=9), driver="redis") == Options(tickets=9)
    assert set_resolver(None) is asked
    assert interpret(None, driver="redis") is None


def test_the_resolver_is_a_callable() -> None:
    for wrong in ("x", 3, Options):
        with pytest.raises(ConfigurationError, match="resolve takes a callable"):
            set_resolver(wrong)  # type: ignore[arg-type]

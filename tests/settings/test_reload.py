"""A reload: all of it or nothing, limits follow at once, and what needs a restart waits."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import bulkhead
from bulkhead import connections, definitions, settings, tenancy
from bulkhead.option_set import Options
from bulkhead.process_values import ProcessValues, process
from bulkhead.registry import registered

if TYPE_CHECKING:
    from settings.conftest import Write

    from bulkhead.settings import Settings

INVENTORY = "[resources.inventory]\ntickets = {}\n"


@pytest.fixture(autouse=True)
def _lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bulkhead")


def test_limits_of_a_resource_change_while_calls_are_in_flight(write: Write) -> None:
    write(INVENTORY.format(1))
    settings.load()
    inventory = bulkhead.resource("inventory")

    @inventory
    def call() -> str:
        return "done"

    with ThreadPoolExecutor(1) as others, inventory.permit():
        with pytest.raises(bulkhead.ResourceBusyError):
            others.submit(call).result()
        write(INVENTORY.format(2))
        settings.reload()
        assert (inventory.limit, inventory.in_use) == (2, 1)
        assert others.submit(call).result() == "done"
        write(INVENTORY.format(1))
        settings.reload()
        with pytest.raises(bulkhead.ResourceBusyError):
            others.submit(call).result()
    assert call() == "done"
    assert bulkhead.resource("inventory") is inventory


def test_what_was_said_of_a_reload(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    write(INVENTORY.format(1))
    settings.load()
    write(INVENTORY.format(2) + "[resources.new]\ntickets = 1\n")
    settings.reload()
    settings.reload()
    assert [one.getMessage() for one in caplog.records] == [
        "[BULKHEAD] settings_read file=bulkhead.toml",
        "[BULKHEAD] settings_reloaded file=bulkhead.toml: resources.inventory.tickets: 1 -> 2; resources.new is new",
        "[BULKHEAD] settings_reloaded file=bulkhead.toml: nothing changed",
    ]


def test_a_client_built_after_the_reload_shares_the_resource_of_one_built_before(write: Write) -> None:
    write(INVENTORY.format(1))
    settings.load()
    before = registered(settings.current().resources["inventory"], "redis", "inventory")
    write("[resources.inventory]\ntickets = 5\ntenant_tickets = 2\n")
    settings.reload()
    assert registered(settings.current().resources["inventory"], "redis", "inventory") is before
    with pytest.raises(bulkhead.ConfigurationError, match="registered with other options"):
        registered(Options(name="inventory", tickets=7), "redis", "inventory")


def test_options_that_only_make_sense_together_can_all_go_back(write: Write) -> None:
    """Each alone would be an option without use."""
    write(
        "[resources.inventory]\nexponential_backoff_error_timeout = true\nexponential_backoff_multiplier = 3\n"
        "tickets = 4\ntenant_quota = 0.5\n"
    )
    settings.load()
    inventory = bulkhead.resource("inventory")
    write("[resources.inventory]\ncircuit_breaker = false\ntenant_tickets = 2\n")
    settings.reload()
    assert inventory.options == Options(name="inventory", circuit_breaker=False, tenant_tickets=2)


def test_what_code_changed_stays_unless_the_reload_changes_the_same(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write(INVENTORY.format(4))
    settings.load()
    inventory = bulkhead.resource("inventory")
    inventory.update(mode="shadow", tickets=9)
    write(INVENTORY.format(4) + "timeout = 1\n")
    settings.reload()
    assert (inventory.options.mode, inventory.limit, inventory.options.timeout) == ("shadow", 9, 1.0)
    write(INVENTORY.format(5) + "timeout = 1\n")
    settings.reload()
    assert (inventory.options.mode, inventory.limit) == ("shadow", 5)
    inventory.update(tenant_tickets=2)
    write(INVENTORY.format(5) + "tenant_quota = 0.5\n")
    settings.reload()
    assert (inventory.options.mode, inventory.options.tenant_quota, inventory.options.tenant_tickets) == (
        "enforce",
        0.5,
        None,
    )
    assert "settings_override identifier=call:inventory" in caplog.text


def test_resources_with_options_of_their_own_are_left_alone(write: Write) -> None:
    write(INVENTORY.format(4))
    settings.load()
    own = bulkhead.resource("inventory", tickets=7)
    write(INVENTORY.format(5))
    settings.reload()
    assert own.limit == 7


def test_what_the_environment_switches_off_stays_off(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_TICKETS_DISABLED", "1")
    write(INVENTORY.format(4))
    settings.load()
    inventory = bulkhead.resource("inventory")
    write(INVENTORY.format(5) + "error_timeout = 7\nerror_threshold = 2\nsuccess_threshold = 1\n")
    settings.reload()
    assert (inventory.limit, inventory.options.error_timeout) == (None, 7.0)
    assert (
        bulkhead.resource("inventory", tickets=5, error_timeout=7, error_threshold=2, success_threshold=1) is inventory
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nmax_concurrent_requests = 9\n[resources.inventory]\ntickets = 0\n", "inventory.tickets must be"),
        ("[server]\nmax_concurrent_requests = 9\n[", "is no TOML"),
        (
            "[server]\nmax_concurrent_requests = 9\n[resources.inventory]\ntickets = 4\nopen_circuit_on_oom = true\n",
            "resources.inventory is used by call:inventory: inventory: open_circuit_on_oom is an option of redis",
        ),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing_and_the_log_says_why(
    write: Write, caplog: pytest.LogCaptureFixture, text: str, says: str
) -> None:
    write("[server]\nmax_concurrent_requests = 3\n" + INVENTORY.format(4))
    before = settings.load()
    inventory = bulkhead.resource("inventory")
    told: list[Settings] = []
    settings.on_change(told.append)
    write(text)
    with pytest.raises(bulkhead.ConfigurationError, match=r"bulkhead\.toml") as caught:
        settings.reload()
    assert says in str(caught.value)
    assert settings.current() is before
    assert (inventory.limit, told) == (4, [])
    assert caplog.records[-1].levelno == logging.ERROR
    assert 'settings_refused file=bulkhead.toml faults=1 in_force="the settings from before"' in caplog.text
    assert says in caplog.text


def test_a_file_that_is_gone_changes_nothing(write: Write) -> None:
    path = write("[server]\nmax_concurrent_requests = 3\n")
    before = settings.load(path)
    path.unlink()
    with pytest.raises(bulkhead.ConfigurationError, match="there is no such file"):
        settings.reload()
    assert settings.current() is before


def test_process_values_and_the_policy_follow_and_go_back(write: Write) -> None:
    bulkhead.defaults(minimum_lru_time=7)
    write('[bulkhead]\nmaximum_lru_size = 50\nunknown_tenant = "reject"\n')
    settings.load()
    assert (process.maximum_lru_size, process.minimum_lru_time, tenancy.policy()) == (50, 7, "reject")
    write("")
    settings.reload()
    assert (process.maximum_lru_size, process.minimum_lru_time, tenancy.policy()) == (500, 7, "allow")


def test_a_process_value_that_contradicts_code_is_a_fault(write: Write) -> None:
    bulkhead.defaults(maximum_lru_size=50, maximum_resources=100)
    write("[bulkhead]\nmaximum_lru_size = 200\n")
    with pytest.raises(bulkhead.ConfigurationError, match=r"maximum_resources 100 is below maximum_lru_size \(200\)"):
        settings.load()
    assert process.maximum_lru_size == 50


def test_the_cap_of_connections_follows_while_tenancy_is_enabled(write: Write) -> None:
    pytest.importorskip("sqlalchemy")
    text = "[tenancy]\nenabled = {}\nmax_db_connections = {{ acme = 3, default = {} }}\n"
    found = []
    for enabled, default in (("false", 2), ("true", 2), ("true", 4), ("false", 4)):
        write(text.format(enabled, default))
        settings.reload()
        found.append((connections.limit("acme"), connections.limit("other")))
    assert found == [(None, None), (3, 2), (3, 4), (None, None)]


# ---- what needs a restart


def test_what_needs_a_restart_keeps_its_value_and_the_log_says_so(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write('[tenancy]\nsource = "jwt"\njwt_key = "k-123"\njwt_algorithms = ["HS256"]\nretry_after = 2\n')
    settings.load()
    write('[tenancy]\nsource = "header"\nheader = "X-Other"\nretry_after = 3\n')
    now = settings.reload().tenancy
    assert (now.source, now.jwt_key, now.jwt_algorithms, now.header) == ("jwt", "k-123", ("HS256",), "X-Tenant-ID")
    assert now.retry_after == 3
    assert settings.current().origin("tenancy.header") == "default"
    assert settings.current().origin("tenancy.source") == "bulkhead.toml"
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(said) == 4
    assert (
        "[BULKHEAD] settings_need_restart setting=tenancy.source file=bulkhead.toml: "
        "'jwt' holds until then, 'header' is in the settings"
    ) in said
    assert "k-123" not in "".join(said)
    assert settings.load().tenancy.header == "X-Other"


def test_nothing_is_switched_on_with_a_source_that_is_not_in_the_settings(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write('[tenancy]\nsource = "header"\n')
    settings.load()
    text = '[tenancy]\nenabled = true\nsource = "jwt"\njwt_key = "k"\njwt_algorithms = ["HS256"]\nretry_after = 3\n'
    write(text)
    now = settings.reload().tenancy
    assert (now.enabled, now.source, now.retry_after) == (False, "header", 3)
    assert "setting=tenancy.enabled file=bulkhead.toml: False holds until then, True is in the settings" in caplog.text
    assert settings.load().tenancy.enabled
    write('[tenancy]\nenabled = false\nsource = "header"\n')
    now = settings.reload().tenancy
    assert (now.enabled, now.source) == (False, "jwt"), "it can be switched off at any time"


def test_a_key_of_the_source_can_be_rotated(write: Write) -> None:
    text = '[tenancy]\nenabled = true\nsource = "jwt"\njwt_key = "{}"\njwt_algorithms = ["HS256"]\n'
    write(text.format("one"))
    settings.load()
    write(text.format("two"))
    assert settings.reload().tenancy.jwt_key == "two"


def test_maximum_tenants_and_names_wait_for_a_restart(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    write(INVENTORY.format(4))
    settings.load()
    inventory = bulkhead.resource("inventory")
    write(INVENTORY.format(5) + 'maximum_tenants = 7\nidentifier = "call:other"\n')
    options = settings.reload().resources["inventory"]
    assert (options.maximum_tenants, options.identifier, options.tickets) == (10_000, None, 5)
    assert (inventory.limit, bulkhead.resource("inventory")) == (5, inventory)
    assert "settings_need_restart setting=resources.inventory.maximum_tenants" in caplog.text
    assert "settings_need_restart setting=resources.inventory.identifier" in caplog.text


def test_a_resource_that_is_taken_out_stays_until_a_restart(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    write(INVENTORY.format(4))
    settings.load()
    write("")
    assert settings.reload().resources["inventory"].tickets == 4
    assert settings.current().origin("resources.inventory.tickets") == "bulkhead.toml"
    assert bulkhead.resource("inventory").limit == 4
    assert "settings_need_restart setting=resources.inventory file=bulkhead.toml: it is gone" in caplog.text


def test_a_change_that_is_taken_back_before_it_was_made_is_not_made_later(write: Write) -> None:
    write(INVENTORY.format(1))
    settings.load()
    inventory = bulkhead.resource("inventory")

    told: list[int | None] = []

    def follow(now: Settings) -> None:  # while this runs, what it reloads has to wait
        told.append(now.resources["inventory"].tickets)
        if len(told) == 1:
            for number in (3, 2):
                write(INVENTORY.format(number))
                settings.reload()

    settings.on_change(follow)
    write(INVENTORY.format(2))
    settings.reload()
    assert told == [2, 3, 2]
    assert settings.current().resources["inventory"].tickets == inventory.limit == 2
    assert definitions.known("inventory") == settings.current().resources["inventory"]


def test_thousands_of_other_resources_make_no_reload_slow(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "values", ProcessValues(maximum_lru_size=10_000))
    text = "".join(f"[resources.a{number}]\ntickets = {{0}}\n" for number in range(40))

    def spent(tickets: int) -> float:
        write(text.format(tickets))
        began = time.thread_time()
        settings.reload()
        return time.thread_time() - began

    write(text.format(1))
    settings.load()
    mine = [bulkhead.resource(f"a{number}") for number in range(40)]
    alone = min(spent(2), spent(3))
    others = [bulkhead.resource(f"other {number}", tickets=9) for number in range(2_000)]
    assert min(spent(4), spent(5)) < 20 * alone
    assert {one.limit for one in mine} == {5}
    assert {one.limit for one in others} == {9}


def test_what_an_exception_cut_short_is_done_at_the_next_reload(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(INVENTORY.format(1))
    settings.load()
    inventory = bulkhead.resource("inventory")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    write("[tenancy]\nenabled = true\nmax_db_connections = 5\n" + INVENTORY.format(2))
    with monkeypatch.context() as patch:
        patch.setattr(connections, "set_limit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            settings.reload()
    settings.reload()
    try:
        assert (connections.limit("acme"), inventory.limit) == (5, 2)
    finally:
        connections.set_limit(None)

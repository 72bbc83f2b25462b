"""What type checkers think of the core's public names, in the forms that the docs show. Never run, only checked.

`make check` and tests/docs/test_types.py run mypy --strict and pyright over this folder. A line that must be an error
ends in an ignore comment; both checkers report an ignore that hides nothing.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Token
from typing import Any, assert_type
from uuid import UUID

import bulkhead
from bulkhead import events, metrics

# ---- options, defined names, process values

assert_type(bulkhead.options(name="inventory", tickets=16, tenant_tickets=4), dict[str, Any])
bulkhead.options(error_threshold=3, error_timeout=10, success_threshold=2)  # whole seconds are seconds
bulkhead.options(tickets=16, tenant_limits={"acme": 8, "globex": None})
bulkhead.options(tickets=16, tenant_limits=lambda tenant: 8 if tenant == "acme" else None)
bulkhead.options(tickets=16, is_failure=(TimeoutError, ConnectionError))
bulkhead.options(tickets=16, is_failure=lambda error: isinstance(error, OSError) or None)
bulkhead.options(tickets=16, mode="shadow", cancel_counts_after="auto", ticket_until="headers")
bulkhead.options(ticket=16)  # type: ignore[call-arg]
bulkhead.options(tickets="16")  # type: ignore[arg-type]
bulkhead.options(tickets=16, mode="on")  # type: ignore[arg-type]
bulkhead.options(tickets=16, cancel_counts_after="soon")  # type: ignore[arg-type]
bulkhead.options(tickets=16, tenant_limits={"acme": "8"})  # type: ignore[dict-item]
bulkhead.options(16)  # type: ignore[call-arg, arg-type]

options = bulkhead.Options(name="inventory", tickets=16)
assert_type(options.tickets, int | None)
assert_type(options.replace(tickets=32), bulkhead.Options)
options.tickets = 32  # type: ignore[misc]

bulkhead.define("inventory", tickets=16)
bulkhead.define("inventory", **bulkhead.options(tickets=16))
bulkhead.define("inventory", ticket=16)  # type: ignore[call-arg]
bulkhead.define(tickets=16)  # type: ignore[call-arg]

bulkhead.defaults(force_config_validation=True, maximum_lru_size=500, minimum_lru_time=300)
bulkhead.defaults(maximum_size=500)  # type: ignore[call-arg]

# ---- resources and permits

payments = bulkhead.resource("payments", tickets=8, error_threshold=3, error_timeout=10, success_threshold=2)
assert_type(payments, bulkhead.Resource)
assert_type(bulkhead.resource("payments"), bulkhead.Resource)
bulkhead.resource("payments", limit=8)  # type: ignore[call-arg]
assert_type(bulkhead.find("call:payments"), bulkhead.Resource | None)
assert_type(bulkhead.resources(), dict[str, bulkhead.Resource])
assert_type(bulkhead.unregister("call:payments"), bool)
print(bulkhead.find("call:payments").state)  # type: ignore[union-attr]

assert_type(payments.identifier, str)
assert_type(payments.state, str)
assert_type(payments.in_use, int)
assert_type(payments.limit, int | None)
assert_type(payments.explain(), str)
payments.open("a drill")
payments.close()
payments.reset()
payments.update(tickets=32)
payments.state = "open"  # type: ignore[misc]
for used in payments.top_tenants(3):
    assert_type(used.tenant, str | None)
    assert_type(used.in_use, int)

with payments.permit():
    ...


async def in_coroutines() -> None:
    async with payments.permit():
        ...
    async with bulkhead.tenant("acme"):
        ...
    async with bulkhead.bypass("call:payments"):
        assert_type(await coroutine(5), str)


# ---- the decorator keeps signatures


@payments
def plain(amount: int, *, currency: str = "EUR") -> str:
    return f"{amount} {currency}"


@payments
async def coroutine(amount: int) -> str:
    return str(amount)


@payments
def generator(count: int) -> Generator[int, str, bool]:
    answer = yield count
    return bool(answer)


@payments
async def async_generator(count: int) -> AsyncGenerator[int, None]:
    yield count


class Shop:
    @payments
    def buy(self, sku: str) -> int:
        return len(sku)

    @staticmethod
    @payments
    def open_at(hour: int) -> bool:
        return hour > 8


assert_type(plain(5, currency="USD"), str)
promised: Coroutine[Any, Any, str] = coroutine(5)
assert_type(generator(5), Generator[int, str, bool])
assert_type(async_generator(5), AsyncGenerator[int, None])
assert_type(Shop().buy("sku-1"), int)
assert_type(Shop.open_at(9), bool)
plain("5")  # type: ignore[arg-type]
plain(5, "USD")  # type: ignore[call-arg]
promised = coroutine(amounts=5)  # type: ignore[call-arg]
Shop().buy(1)  # type: ignore[arg-type]
payments(5)  # type: ignore[type-var]

# ---- tenants

with bulkhead.tenant("acme") as who:
    assert_type(who, str | None)
with bulkhead.tenant(17), bulkhead.tenant(UUID(int=1)), bulkhead.tenant(None):
    assert_type(bulkhead.current_tenant(), str | None)
bulkhead.tenant(1.5)  # type: ignore[arg-type]
bulkhead.tenant()  # type: ignore[call-arg]
token = bulkhead.set_tenant("acme")
assert_type(token, Token[str | None])
bulkhead.reset_tenant(token)
bulkhead.reset_tenant("acme")  # type: ignore[arg-type]
bulkhead.unknown_tenant("share")
bulkhead.unknown_tenant("refuse")  # type: ignore[arg-type]


def work(amount: int) -> str:
    return str(amount)


assert_type(bulkhead.carry(work)(5), str)
assert_type(bulkhead.detached(work)(5), str)
bulkhead.carry(work)("5")  # type: ignore[arg-type]
with bulkhead.CarryingExecutor(max_workers=8) as executor:
    assert_type(executor.submit(work, 5).result(), str)
with bulkhead.bypass("call:payments"):
    ...

# ---- errors

try:
    plain(5)
except bulkhead.ResourceBusyError as busy:
    assert_type(busy.identifier, str)
    assert_type(busy.tenant, str | None)
    assert_type(busy.limit, str)
    assert_type(busy.retry_after, float | None)
except bulkhead.CircuitOpenError as opened:
    assert_type(opened.retry_after, float | None)
    print(opened.limit)  # type: ignore[attr-defined]
except bulkhead.UnknownTenantError as unknown:
    assert_type(unknown.identifier, str)
except bulkhead.Rejected as rejected:
    assert_type(rejected.retry_after, float | None)
except bulkhead.ConfigurationError as wrong:
    also_a_value_error: ValueError = wrong
except bulkhead.BulkheadError as any_of_ours:
    assert_type(bulkhead.rejection(any_of_ours), bulkhead.Rejected | bulkhead.QuotaExceeded | None)

# ---- events and metrics


def changed(event: events.Event) -> None:
    if isinstance(event, events.StateChange):
        assert_type(event.identifier, str)


def no_argument() -> None: ...


subscription = bulkhead.subscribe(changed, events.StateChange, events.WouldReject)
assert_type(subscription, events.Subscription)
subscription.cancel()
with bulkhead.subscribe(changed):
    ...
bulkhead.subscribe(no_argument)  # type: ignore[arg-type]
bulkhead.subscribe(changed, ValueError)  # type: ignore[arg-type]
assert_type(metrics.register(), metrics.BulkheadCollector | metrics.BulkheadMirror)

# ---- set-up

bulkhead.install()
bulkhead.install("redis", "httpx")
bulkhead.install(1)  # type: ignore[arg-type]
kept: Callable[[int], str] = bulkhead.protect(work, tickets=4)  # the same type comes back

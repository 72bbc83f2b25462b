"""Eight threads, everything at once: caps are counted inside the calls, and at the end everything is back."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from counts import STRESS_SECONDS, STRESS_THREADS
from stories import NEVER_OPENS, Boom, at_rest, resource, together, work_for

from bulkhead import CircuitOpenError, ResourceBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


FLAPS = {"error_threshold": 3, "error_timeout": 0.003, "success_threshold": 2, "half_open_max_probes": 2}


@pytest.mark.parametrize(
    ("options", "fails", "resizes"),
    [
        pytest.param({**NEVER_OPENS, "tickets": 5, "tenant_tickets": 2}, 0.02, False, id="two levels"),
        pytest.param({**NEVER_OPENS, "tenant_tickets": 2, "maximum_tenants": 4}, 0.02, False, id="evicting"),
        pytest.param({**FLAPS, "tickets": 5, "tenant_tickets": 2, "maximum_tenants": 3}, 0.1, False, id="flapping"),
        pytest.param(
            {**NEVER_OPENS, "tickets": 6, "tenant_tickets": 3, "maximum_tenants": 4}, 0.02, True, id="resizing"
        ),
        pytest.param({**NEVER_OPENS, "tickets": 4, "tenant_tickets": 2, "timeout": 5.0}, 0.02, False, id="waiting"),
        pytest.param(
            {**FLAPS, "tickets": 5, "tenant_tickets": 2, "timeout": 1.0, "maximum_tenants": 3},
            0.05,
            True,
            id="waiting, evicting, flapping, resizing",
        ),
        pytest.param(
            {
                **FLAPS,
                "tickets": 5,
                "tenant_tickets": 2,
                "error_threshold_timeout_enabled": False,
                "tenant_circuit": True,
            },
            0.3,
            False,
            id="in a row, with circuits of tenants",
        ),
        pytest.param(
            {**FLAPS, "tickets": 5, "tenant_tickets": 2, "call_timeout": 0.0002, "error_tenants": 2},
            0.02,
            False,
            id="call_timeout, error_tenants",
        ),
    ],
)
def test_no_cap_is_exceeded_and_nothing_is_lost(options: dict[str, Any], fails: float, resizes: bool) -> None:  # noqa: FBT001
    """Known faults 16, 23 and 35."""
    one = resource(**options)
    one.clock = time.monotonic
    cap, whole = options["tenant_tickets"], options.get("tickets", 10**9)
    inside: dict[str, int] = {}
    total, over, done = [0], [], [0] * STRESS_THREADS
    guard = threading.Lock()

    @one
    def call(tenant: str, rng: random.Random) -> None:
        with guard:
            inside[tenant] = inside.get(tenant, 0) + 1
            total[0] += 1
            if inside[tenant] > cap or total[0] > whole:
                over.append((tenant, inside[tenant], total[0]))
        try:
            if rng.random() < 0.2:
                time.sleep(rng.choice((0, 0, 0.0003)))
            if rng.random() < fails:
                raise Boom
        finally:
            with guard:
                inside[tenant] -= 1
                total[0] -= 1

    end = time.monotonic() + STRESS_SECONDS

    def work(index: int) -> None:
        rng = random.Random(index)  # noqa: S311
        while time.monotonic() < end:
            tenant = f"t{min(int(rng.expovariate(0.4)), 11)}"
            with work_for(tenant):
                try:
                    call(tenant, rng)
                    done[index] += 1
                except (Boom, ResourceBusyError):
                    pass
                except CircuitOpenError:
                    time.sleep(0.0002)
            if resizes and rng.random() < 0.005:
                one.update(tickets=rng.randint(2, whole), tenant_tickets=rng.randint(1, cap))

    results = together(
        *[lambda index=index: work(index) for index in range(STRESS_THREADS)], seconds=STRESS_SECONDS + 40
    )
    assert results == [None] * STRESS_THREADS
    assert not over
    assert all(done), "somebody never got through"
    at_rest(one)

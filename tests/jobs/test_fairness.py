"""How evenly tenants with endless backlogs are served, in seeded simulations on the pure queue."""

from __future__ import annotations

import random

import pytest
from counts import often
from jobs.simulation import LANES, LENGTHS, PER_TENANT, fair_shares, fair_shares_of, serve

from bulkhead.hashing import shuffle_shard

SEEDS = range(20)


def numbered(count: int) -> list[str]:
    return [f"tenant-{number}" for number in range(count)]


def random_set(seed: int) -> list[str]:
    rnd = random.Random(seed)  # noqa: S311  no secret
    return [f"{rnd.getrandbits(64):016x}" for _ in range(20)]


def least(tenants: list[str], lengths: str, jobs: int) -> float:
    return serve(tenants, jobs, LENGTHS[lengths]).least_share(fair_shares_of(tenants))


@pytest.mark.parametrize("count", [20, 50, 1000])
@pytest.mark.parametrize("lengths", ["equal", "20 % apart"])
def test_each_tenant_gets_085_of_its_fair_share(count: int, lengths: str) -> None:
    assert least(numbered(count), lengths, often(40, 200) * 1000) >= 0.85


@pytest.mark.parametrize("lengths", ["equal", "20 % apart"])
def test_each_tenant_of_random_sets_gets_085_of_its_fair_share(lengths: str) -> None:
    assert min(least(random_set(seed), lengths, often(6, 30) * 1000) for seed in SEEDS) >= 0.85


@pytest.mark.no_cover
@pytest.mark.timeout(600)
def test_with_exponential_lengths_each_tenant_gets_075_of_its_fair_share() -> None:
    assert least(numbered(20), "exponential", often(40, 600) * 1000) >= 0.75
    assert least(numbered(50), "exponential", often(40, 600) * 1000) >= 0.75
    for seed in SEEDS[: often(6, len(SEEDS))]:
        assert least(random_set(seed), "exponential", often(8, 100) * 1000) >= 0.75


def test_20_tenants_with_equal_lengths_wait_for_3_jobs_at_most() -> None:
    """Moving those that a worker may not serve gave 0 and 5001 jobs where 2000 is fair."""
    served = serve(numbered(20), 40_000, LENGTHS["equal"])
    assert min(served.jobs.values()) >= 1750
    assert max(served.jobs.values()) <= 2250
    assert served.longest_wait <= 3.0


def test_fair_shares_are_those_worked_out_by_hand() -> None:
    one_each = {0: 1, 1: 1, 2: 1}
    assert fair_shares({"a": (0,), "b": (0,), "c": (1, 2)}, one_each) == {"a": 0.5, "b": 0.5, "c": 2.0}
    assert fair_shares({"a": (0, 1), "b": (0, 1), "c": (0, 1)}, one_each) == dict.fromkeys("abc", 2 / 3)
    assert fair_shares({"a": (0, 1), "b": (0,), "c": (0,)}, one_each) == {"a": 1.0, "b": 0.5, "c": 0.5}
    # b, c and d crowd lane 1 only if a were there too
    assert fair_shares({"a": (0, 1), "b": (1,), "c": (1,), "d": (2,)}, one_each) == {"a": 1, "b": 0.5, "c": 0.5, "d": 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_fair_shares_use_every_worker_that_somebody_may_use(seed: int) -> None:
    tenants = random_set(seed)
    used = {lane for tenant in tenants for lane in shuffle_shard(tenant, LANES, PER_TENANT)}
    assert sum(fair_shares_of(tenants).values()) == pytest.approx(len(used))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_noisy_tenant_takes_no_more_than_one_turn_in_each_round(lengths: str) -> None:
    """Backlogs make no difference: what counts is who waits, not how much."""

    def jobs(backlog: int) -> dict[str, int]:
        return dict(serve(["noisy"] * backlog + numbered(19), 8_000, LENGTHS[lengths]).jobs)

    assert jobs(1) == jobs(1000)

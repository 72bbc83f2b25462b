"""lane_queue: queue names for brokers of others; and the example that runs one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import bulkhead
from bulkhead.hashing import shuffle_shard
from bulkhead.jobs import lane_queue, lane_queues

if TYPE_CHECKING:
    from conftest import Eventually

    from bulkhead.testing import RedisServer

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_a_tenant_s_queues_are_those_of_its_lanes() -> None:
    mine = {lane_queue("acme", "mail", 8) for _ in range(200)}
    assert mine == {f"mail-{lane}" for lane in shuffle_shard("acme", 8, 2)}
    assert lane_queue("acme", "mail", 8, choose=lambda names: names[0]) == f"mail-{shuffle_shard('acme', 8, 2)[0]}"
    assert mine < set(lane_queues("mail", 8))


def test_the_choice_is_the_caller_s_and_must_be_one_of_the_names() -> None:
    depth = {name: -number for number, name in enumerate(lane_queues("mail", 4))}
    assert lane_queue(7, "mail", 4, 4, choose=lambda names: min(names, key=depth.__getitem__)) == "mail-3"
    with pytest.raises(bulkhead.ConfigurationError, match="must return one of"):
        lane_queue("acme", "mail", 4, choose=lambda names: "elsewhere")


def test_without_a_tenant_every_lane_will_do() -> None:
    assert {lane_queue(None, "mail", 4) for _ in range(400)} == set(lane_queues("mail", 4))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("acme", "mail", 0), "lanes must be a whole number from 1"),
        (("acme", "mail", True), "lanes must be"),
        (("acme", "mail", 4, 0), "lanes_per_tenant must be a whole number from 1"),
        (("acme", "", 4), "the prefix of queues must be a text"),
        (("", "mail", 4), "tenant id"),
    ],
)
def test_what_cannot_be_is_an_error(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(bulkhead.ConfigurationError, match=says):
        lane_queue(*arguments)


def test_the_example_runs_jobs_of_tenants_in_their_lanes_on_a_real_broker_with_real_workers(
    redis_server: RedisServer, eventually: Eventually
) -> None:
    """docs/examples/lanes_dramatiq.py under dramatiq's own command, on a Redis of its own."""
    pytest.importorskip("dramatiq")
    redis_server.command("FLUSHALL")
    env = {**os.environ, "REDIS_URL": redis_server.url, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path])}
    command = [sys.executable, "-m", "dramatiq", "lanes_dramatiq", "--processes", "1", "--threads", "4"]
    with subprocess.Popen(
        command, cwd=EXAMPLES, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as workers:
        try:
            source = """
import bulkhead, lanes_dramatiq as shop
for tenant in ("acme", "other"):
    with bulkhead.tenant(tenant):
        for number in range(5):
            shop.enqueue(shop.report, number)
shop.enqueue(shop.report, 99)
"""
            subprocess.run([sys.executable, "-c", source], cwd=EXAMPLES, env=env, check=True, timeout=60)
            eventually(lambda: redis_server.command("LLEN", "reports") == "33", 60)
        finally:
            workers.send_signal(signal.SIGTERM)
            workers.communicate(timeout=60)
    lines = [json.loads(redis_server.command("LINDEX", "reports", str(index))) for index in range(33)]
    done = [(one["tenant"], one["number"], one["step"]) for one in lines]
    expected = [(tenant, number) for tenant in ("acme", "other") for number in range(5)] + [(None, 99)]
    assert sorted(done, key=str) == sorted(
        [(tenant, number, step) for tenant, number in expected for step in ("report", "mail", "mail")], key=str
    )
    for one in lines:
        lanes = range(4) if one["tenant"] is None else shuffle_shard(one["tenant"], 4, 2)
        assert one["queue"] in [f"shop-{lane}" for lane in lanes]

"""Python on the pages runs as it stands. Only Redis' port is another: the private server's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import RunPython

    from bulkhead.testing import RedisServer

PORT = "6379"


def blocks(text: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def moves(readme: str, redis_server: RedisServer) -> str:
    """The four moves."""
    block = blocks(readme)[0]
    assert block.count(PORT) == 1
    return block.replace(PORT, str(redis_server.port))


def test_the_four_moves_run_as_pasted(moves: str, redis_server: RedisServer, run_python: RunPython) -> None:
    redis_server.command("SET", "sku-1", "17")
    before = redis_server.calls("get")
    tail = """
print(stock, bulkhead.find("redis:inventory").state)
"""
    assert run_python(moves + tail).stdout == "b'17' closed\n"
    assert redis_server.calls("get") == before + 1


def test_the_four_moves_do_what_the_readme_says_of_them(moves: str, run_python: RunPython) -> None:
    """Three failures open it, then every command fails at once with RedisCircuitOpenError, which RedisError catches."""
    tail = """
import time
from adapters.redis import RedisCircuitOpenError
inventory = bulkhead.find("redis:inventory")
assert (inventory.limit, inventory.options.tenant_tickets, inventory.options.window) == (16, 4, 10)
cache.close()
cache = redis.Redis(host="127.0.0.1", port=1, retry=None, socket_timeout=0.5, bulkhead=inventory.options)
for _ in range(3):
    try:
        cache.get("sku-1")
    except RedisCircuitOpenError:
        raise SystemExit("open too early")
    except redis.RedisError:
        pass
began = time.monotonic()
try:
    cache.get("sku-1")
except redis.RedisError as error:
    assert isinstance(error, RedisCircuitOpenError), error
    assert isinstance(error, bulkhead.CircuitOpenError), error
    assert 9 < error.retry_after <= 10, error.retry_after
    assert isinstance(error.__cause__, redis.ConnectionError), error.__cause__
assert time.monotonic() - began < 0.1
print(inventory.state)
"""
    assert run_python(moves + tail).stdout == "open\n"


def test_the_example_of_direct_use_runs_as_pasted(readme: str, run_python: RunPython) -> None:
    block = blocks(readme)[1]
    assert "charged 5" in run_python(block).stdout


def test_there_are_no_other_examples_in_the_readme(readme: str) -> None:
    """One that is added needs a test of its own."""
    assert len(blocks(readme)) == 2

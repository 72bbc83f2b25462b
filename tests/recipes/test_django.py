"""Django: DATABASES OPTIONS reach psycopg.connect, CACHES OPTIONS reach redis-py, and refusals are what Django catches.

Each case is a program of its own, as Django is configured once in a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("django")

if TYPE_CHECKING:
    from bulkhead.testing import PostgresServer, RedisServer

DATABASE = """
import sys
import time
import bulkhead
bulkhead.install()
import django
from django.conf import settings

host, port, pool = sys.argv[1:]
protected = bulkhead.options(name="django", tickets=10, tenant_tickets=2, call_timeout=5.0)
settings.configure(
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port, "USER": "postgres", "NAME": "postgres",
        "CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": 0 if pool == "pool" else None,
        "OPTIONS": {"pool": {"min_size": 1, "max_size": 2}, **protected} if pool == "pool" else protected,
    }},
)
django.setup()
from django.db import OperationalError, close_old_connections, connection, transaction

def ask():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 41 + 1")
        return cursor.fetchone()[0]

assert ask() == 42
resource = bulkhead.find("postgres:django")
assert resource is not None, bulkhead.resources()
before = connection.connection
with transaction.atomic():
    ask()
    resource.open()
    try:
        with transaction.atomic():
            raise LookupError
    except (LookupError, OperationalError):
        pass
    try:
        ask()
    except OperationalError as error:
        rejected = bulkhead.rejection(error)
        assert isinstance(rejected, bulkhead.CircuitOpenError), error
    else:
        raise SystemExit("not refused")
    transaction.set_rollback(True)
resource.close()
assert ask() == 42
resource.open()
close_old_connections()  # as at the end of a request: is_usable() passes, so the connection stays
resource.close()
assert ask() == 42
if pool != "pool":
    assert connection.connection is before, "the healthy connection was dropped"
with bulkhead.tenant("acme"):
    assert ask() == 42
until = time.monotonic() + 10
while resource.in_use and time.monotonic() < until:
    time.sleep(0.01)  # a worker of the pool may be configuring one more connection
assert resource.in_use == 0, resource.explain()
connection.close()
if pool == "pool":
    connection.close_pool()
print("guarded")
"""

CACHE = """
import sys
import bulkhead
bulkhead.install()
import django
from django.conf import settings

settings.configure(CACHES={"default": {
    "BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": sys.argv[1],
    "OPTIONS": bulkhead.options(name="django-cache", tickets=10, tenant_tickets=2),
}})
django.setup()
import redis
from django.core.cache import cache

cache.set("answer", 42)
assert cache.get("answer") == 42
resource = bulkhead.find("redis:django-cache")
assert resource is not None, bulkhead.resources()
resource.open()
try:
    cache.get("answer")
except redis.RedisError as error:
    assert isinstance(error, bulkhead.CircuitOpenError)
else:
    raise SystemExit("not refused")
resource.close()
assert cache.get("answer") == 42
cache.close()
print("guarded")
"""


@pytest.mark.parametrize("pool", ["plain", "pool"])
def test_database_options_reach_psycopg(pool: str, postgres_server: PostgresServer, run_python: Any) -> None:
    """Known fault 75: COMMIT and ROLLBACK pass while the circuit is open, also Django's own."""
    done = run_python(DATABASE, postgres_server.host, str(postgres_server.port), pool)
    assert done.stdout.strip() == "guarded"


def test_cache_options_reach_redis(redis_server: RedisServer, run_python: Any) -> None:
    done = run_python(CACHE, redis_server.url)
    assert done.stdout.strip() == "guarded"

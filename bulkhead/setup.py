"""Set-up: patch the drivers, and protect clients that exist already.

The core imports no driver: `install` imports the package `adapters`, which says through `protects` what it can
protect.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any, TypeVar

from bulkhead.adapter import connections, protectors
from bulkhead.errors import ConfigurationError
from bulkhead.option_arguments import gathered
from bulkhead.option_set import Options

log = logging.getLogger("bulkhead")
C = TypeVar("C")

OURS = "bulkhead-toolkit"


def install(*drivers: str) -> None:
    """Patch these drivers (none named: every supported one), each when it is imported or at once if it was.

    The same as `import adapters`, checked. Idempotent. ConfigurationError, with the path, if the `adapters` that
    Python finds is somebody else's package, and for a driver that is not supported.
    """
    ours = sys.modules.get("adapters")
    if ours is None:
        try:
            ours = importlib.import_module("adapters")
        except ImportError as error:
            raise ConfigurationError(
                f"the package `adapters` of {OURS} cannot be imported ({error}); is another one in its way?"
            ) from error
    if getattr(ours, "DISTRIBUTION", None) != OURS:
        where = getattr(ours, "__file__", None) or getattr(ours, "__path__", "nowhere")
        raise ConfigurationError(
            f"`adapters` is {where}, not the package of {OURS}; rename that package or run from another folder, "
            "so that Python finds ours first"
        )
    _warn_of_green_threads()
    ours.install(*drivers)


def _warn_of_green_threads() -> None:
    for name in ("gevent.monkey", "eventlet.patcher"):
        module = sys.modules.get(name)
        patched = getattr(module, "is_module_patched", None) or getattr(module, "is_monkey_patched", None)
        if patched is not None and patched("thread" if name.startswith("eventlet") else "threading"):
            log.warning("[BULKHEAD] %s has patched the threads; it is not supported", name.partition(".")[0])


def _count_connections() -> None:
    """A cap that nothing keeps would be silence: whoever sets one gets the drivers patched that keep it."""
    install("sqlalchemy", "psycopg")


connections.before_limiting(_count_connections)


def protect(client: C, **options: Any) -> C:
    """Protect a client that exists: a redis client or pool, an httpx client, a SQLAlchemy engine.

    Returns the same object. ConfigurationError for other objects, for wrong options, and for a client that is
    protected with other options already.
    """
    wanted = gathered(Options, options) or Options()
    for protect_client in list(protectors.values()):
        if protect_client(client, wanted):
            return client
    known = ", ".join(sorted(protectors)) or "none: call bulkhead.install() first"
    raise ConfigurationError(
        f"protect() cannot protect a {type(client).__module__}.{type(client).__qualname__}; drivers patched: {known}. "
        "psycopg connections take bulkhead= when they are made"
    )

"""What is special about single Redis commands, told by their names. No I/O."""

from __future__ import annotations

from typing import Any

# Never refused: they leave a transaction or a connection clean.
FREE = ("AUTH", "CLIENT SETINFO", "DISCARD", "HELLO", "QUIT", "RESET", "SELECT", "UNWATCH")
# They wait at the server by design: a ticket would be held for nothing, and a time-out says nothing.
BLOCKING = (
    *("BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN", "WAIT", "WAITAOF"),
    *("XREAD", "XREADGROUP"),  # with BLOCK
)
KINDS = dict.fromkeys(FREE, "free") | dict.fromkeys(BLOCKING, "blocks") | {"EXEC": "exec"}
SPECIAL = frozenset(form for name in KINDS for form in (name, name.lower(), name.encode(), name.lower().encode()))


def kind_of(command_name: Any, args: tuple[Any, ...]) -> str | None:
    """What is special about a command: "free", "blocks", "exec", or None."""
    name = command_name.decode() if isinstance(command_name, bytes) else str(command_name)
    kind = KINDS.get(name.upper())
    if kind == "blocks" and name.upper().startswith("XREAD"):
        for one in args[1:]:
            word = one.decode(errors="replace") if isinstance(one, bytes) else one
            if isinstance(word, str) and word.upper() in ("BLOCK", "STREAMS"):  # after STREAMS come the caller's keys
                return "blocks" if word.upper() == "BLOCK" else None
        return None
    return kind


def is_cached(proxy: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Would client-side caching answer this without the server?"""
    keys = options.get("keys")
    cache = getattr(proxy, "_cache", None)
    if not keys or cache is None:
        return False
    from redis.cache import CacheEntryStatus, CacheKey  # noqa: PLC0415  only where caching is in use

    about: dict[str, Any] = {"command": args[0], "redis_keys": tuple(keys), "redis_args": args}
    entry = cache.get(CacheKey(**{name: about[name] for name in CacheKey.__dataclass_fields__}))  # fewer before 7
    return entry is not None and entry.status is CacheEntryStatus.VALID

"""`bulkhead cells`: maps of cells as people plan, check and publish them. It decides nothing; planning.py does.

Maps go to standard output, what is told about them to standard error, so that a map can be redirected to a file.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bulkhead.cells.cell import Cell
from bulkhead.cells.http_source import HttpSource
from bulkhead.cells.map_files import json_text, load, tables_of, toml_text, write
from bulkhead.cells.planning import diff, promote, publish, raise_version, rebalance, slots_of
from bulkhead.cells.router import CellRouter
from bulkhead.cells.slots import merged, written
from bulkhead.cells.sources import FileSource
from bulkhead.console.tables import table
from bulkhead.errors import ConfigurationError
from bulkhead.hashing import SLOTS
from bulkhead.log_lines import without_secrets
from bulkhead.tenancy import tenant_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from bulkhead.cells.map_source import MapSource
    from bulkhead.cells.maps import CellMap
    from bulkhead.cells.planning import Difference

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

LISTED = 20  # tenants that a table lists; --json has them all
TOLD_EVERY = 0.2  # seconds between two words about progress


def source_of(text: str, keep: str | None = None) -> MapSource:
    """The source that a MAP argument names: an http(s) URL, or a file."""
    if _SCHEME.match(text):
        return HttpSource(text, keep)
    return FileSource(text, keep)


def run(given: argparse.Namespace) -> int:
    """Run one part; the exit status. ConfigurationError: a map cannot be used, or cannot be written."""
    parts = {"show": _show, "diff": _diff, "rebalance": _rebalance, "promote": _promote, "publish": _publish}
    try:
        return parts[given.part](given)
    except BrokenPipeError:
        raise
    except OSError as error:
        file = getattr(given, "to", None) or getattr(given, "out", None) or error.filename
        if file is None:  # standard output
            raise
        raise ConfigurationError(f"{file}: {error.strerror or type(error).__name__}") from error


def map_of(text: str) -> CellMap:
    """The map that a MAP argument names, read once."""
    return source_of(text).current if _SCHEME.match(text) else load(text)


# ---- show


def _show(given: argparse.Namespace) -> int:
    found = map_of(given.map)
    if given.tenant:
        return _find(found, given)
    if given.json:
        slots = {name: list(written(merged(own))) for name, own in slots_of(found.router).items()}
        _print(json.dumps({**tables_of(found), "slots": slots}, indent=2, ensure_ascii=False))
        return 0
    router = found.router
    rows: list[tuple[str, ...]] = []
    held, pins = slots_of(router), Counter(router.pins.values())
    for cell in router.cells:
        count = len(held[cell.name])
        share, ranges = f"{count / SLOTS:.1%}", _brief(written(merged(held[cell.name])))
        rows.append((cell.name, cell.state, f"{count}", share, ranges, f"{pins[cell.name]}", cell.url))
    kind = "an even split" if router.even else "explicit slots"
    _print(f"map {found.stamp} (epoch.version), {len(router.cells)} cells, {kind}, hash {router.hash}")
    _print(table(("cell", "state", "slots", "share", "ranges", "pins", "URL"), rows, right=(2, 3, 5)))
    without = [cell.name for cell in router.cells if cell.standby_url is None]
    if len(without) < len(router.cells):
        _print(f"standby URLs: {'all cells' if not without else 'missing for ' + ', '.join(without)}")
    if found.tenants:
        _print(f"not served: {', '.join(f'{tenant} ({state})' for tenant, state in sorted(found.tenants.items()))}")
    return 0


def _find(found: CellMap, given: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for tenant in map(tenant_text, given.tenant):
        cell, refused = found.route(tenant)
        rows.append(
            {
                "tenant": tenant,
                "cell": cell.name,
                "by": "pin" if tenant in found.router.pins else "hash",
                "url": cell.url,
                "served": "yes" if refused is None else f"503: {refused.reason}",
            }
        )
    if given.json:
        _print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print(table(("tenant", "cell", "by", "URL", "served"), [tuple(map(str, row.values())) for row in rows]))
    return 0


# ---- diff


def _diff(given: argparse.Namespace) -> int:
    old, new = map_of(given.old), map_of(given.new)
    found = diff(old, new, _tenants(given.tenants))
    if given.json:
        _print(json.dumps(_told(found, old, new), indent=2, ensure_ascii=False))
    else:
        _print("\n".join(_lines(found, old, new)))
    return 1 if found.slots or found.tenants else 0


def _tenants(path: str | None) -> Iterator[str]:
    """Ids out of a file, with words about progress where somebody watches."""
    if path is None:
        return
    with sys.stdin if path == "-" else Path(path).open(encoding="utf-8") as lines:
        watched, said = sys.stderr.isatty(), time.monotonic()
        for count, tenant in enumerate(_ids(lines, path), 1):
            yield tenant
            if watched and count % 1000 == 0 and time.monotonic() - said > TOLD_EVERY:
                said = time.monotonic()
                _progress(f"\r   {count:,} tenants ")
        if watched:
            _progress("\r\x1b[K")


def _ids(lines: Iterable[str], path: str) -> Iterator[str]:
    """The ids of the lines; empty lines are none. ConfigurationError names the line."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):  # noqa: B007  its text names it
            if tenant := line.strip():
                yield tenant_text(tenant)
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: line {number + 1} or one soon after it is not UTF-8") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}, line {number}: {error}") from None


def _told(found: Difference, old: CellMap, new: CellMap) -> dict[str, Any]:
    return {
        "old": str(old.stamp),
        "new": str(new.stamp),
        "even_split": found.even_split,
        "rehashed": found.rehashed,
        "slots_moved": found.slots_moved,
        "slot_share": found.slot_share,
        "slots": [{"slots": written([one.slots])[0], "from": one.source, "to": one.target} for one in found.slots],
        "tenants_looked_at": found.tenants_looked_at,
        "tenant_share": found.tenant_share,
        "tenants": [{"tenant": one.tenant, "from": one.source, "to": one.target} for one in found.tenants],
        "refused": len(found.refused),
    }


def _lines(found: Difference, old: CellMap, new: CellMap) -> Iterator[str]:
    yield f"map {old.stamp} -> {new.stamp}"
    if new.stamp <= old.stamp:
        yield "!! the new map's version is not higher: routers would refuse it (publish raises it)"
    if found.rehashed:
        yield "!! the hash is another one: tenants move although slots do not; name them with --tenants"
    if found.refused:
        yield f"!! {len(found.refused)} moves are from a cell that is down, or to one that takes nothing new"
    if found.even_split:
        before, after = len(old.router.cells), len(new.router.cells)
        yield (
            f"!! an even split over {after} cells instead of {before}: {_share(found)} move. An even split is for the "
            "first deployment;\n   `bulkhead cells rebalance OLD --add NAME=URL` moves about "
            f"1/{before + 1} of them"
        )
    if not found.slots:
        yield "   no slot moves"
    else:
        ways: dict[tuple[str, str], list[range]] = {}
        for one in found.slots:
            ways.setdefault((one.source, one.target), []).append(one.slots)
        rows = [(*way, str(sum(map(len, parts))), _brief(written(parts))) for way, parts in ways.items()]
        yield table(("from", "to", "slots", "ranges"), rows, right=(2,))
        yield f"   {found.slots_moved} of {SLOTS} slots move, {found.slot_share:.1%}"
    if found.tenants_looked_at:
        if found.tenants:
            yield table(("tenant", "from", "to"), [tuple(one) for one in found.tenants[:LISTED]])
        if len(found.tenants) > LISTED:
            yield f"   … and {len(found.tenants) - LISTED:,} more; --json lists all"
        yield (f"   {len(found.tenants):,} of {found.tenants_looked_at:,} tenants move, {found.tenant_share or 0:.1%}")


def _share(found: Difference) -> str:
    if found.tenant_share is not None:
        return f"{found.tenant_share:.1%} of the given tenants"
    return f"{found.slot_share:.1%} of all tenants"


# ---- maps that are written


def _rebalance(given: argparse.Namespace) -> int:
    old = map_of(given.map)
    new = rebalance(old, [_cell(text) for text in given.add])
    found = diff(old, new)
    _say(f"map {old.stamp} -> {new.stamp}: {found.slots_moved} of {SLOTS} slots move, {found.slot_share:.1%}")
    _say("copy and verify the data of the tenants that move (bulkhead cells diff) before this map is published")
    return _give(new, given)


def _cell(text: str) -> Cell:
    name, found, url = text.partition("=")
    if not found:
        raise ConfigurationError(f"--add takes NAME=URL, not {text!r}")
    cell = Cell(name, url)
    try:
        CellRouter([cell])
    except ConfigurationError as error:
        raise ConfigurationError(f"--add {without_secrets(text)}: {error}") from None
    return cell


def _promote(given: argparse.Namespace) -> int:
    old = map_of(given.map)
    new = promote(old)
    _say(f"map {old.stamp} -> {new.stamp}: {len(new.router.cells)} cells at their standby URLs")
    return _give(new, given)


def _publish(given: argparse.Namespace) -> int:
    found = map_of(given.map)
    if given.to is None:
        made = raise_version(found, None, new_epoch=given.new_epoch)
        _print(_text(made, given), end="")
        return 0
    made = publish(found, given.to, new_epoch=given.new_epoch)
    _say(f"{given.to}: map {made.stamp}")
    return 0


def _give(made: CellMap, given: argparse.Namespace) -> int:
    if given.out is None:
        _print(_text(made, given), end="")
    else:
        write(Path(given.out).resolve(), made)
        _say(f"{given.out}: map {made.stamp}")
    return 0


def _text(made: CellMap, given: argparse.Namespace) -> str:
    return json_text(made) if given.json else toml_text(made)


def _brief(parts: tuple[str, ...]) -> str:
    """Ranges for a table; --json has them all."""
    return ", ".join(parts[:4]) + (f" … {len(parts)} ranges" if len(parts) > 4 else "")


def _print(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)  # noqa: T201


def _say(text: str) -> None:
    print(f"   {text}", file=sys.stderr, flush=True)  # noqa: T201


def _progress(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)  # noqa: T201

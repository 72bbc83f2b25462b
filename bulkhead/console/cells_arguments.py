"""What `bulkhead cells` takes. Only argparse is imported here: every command of `bulkhead` reads this file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bulkhead.console import cells_serving
from bulkhead.console.cells_serving import file, named

if TYPE_CHECKING:
    from collections.abc import Callable

CELLS = """\
Cells are full deployments of one application; a map says which cell each
tenant belongs to. A map is a TOML or JSON file:

  version = 7                    # rises with every change
  [[cells]]
  name = "eu-1"
  url = "https://eu-1.example.com"
  slots = ["0-8191"]             # of 16384; in no cell = an even split
  [[cells]]
  name = "eu-2"
  url = "https://eu-2.example.com"
  slots = ["8192-16383"]
  [pins]
  acme = "eu-2"                  # ahead of the hash
  [tenants]
  globex = "moving"              # or "frozen": 503 with Retry-After

docs/cells.md has the whole format, and the steps of moving a tenant, of adding
a cell and of a fail-over."""

SHOW = """\
Checks a map and prints its cells: how many of the 16384 slots each has, its
state, pins and tenants that are not served. With --tenant: which cell that
tenant belongs to. All that is wrong is listed; exit status 2."""

DIFF = """\
Prints which slots another cell gets, and which of the given tenants. Data of
these tenants has to be in the new cell before NEW is published.

Exit status: 0 nothing moves; 1 something does; 2 a map cannot be used."""

REBALANCE = """\
Prints the map with one more cell, or several, and an explicit slot map, under
the next version. Each new cell takes 16384/(n+1) slots evenly from the others;
none moves between old cells. Cells that are draining get none; cells that are
down give none. What moves is told on stderr. Nothing is published."""

PROMOTE = """\
Prints the map with every cell at its standby URL, under the next version. It
is step 3 of a fail-over to the passive region:

  1  promote the replicas there          (yours)
  2  start the cells there               (yours)
  3  bulkhead cells promote MAP --out NEW && bulkhead cells publish NEW --to MAP

Never let two regions be active on one data set. Nothing is published."""

PUBLISH = """\
Checks a map and puts it where it is read. The file is replaced at once, and
only with a higher version: a map whose version is not above that of FILE gets
the next one. So an old map is put back by publishing it. --new-epoch: FILE was
restored from a backup, and clients may have seen higher versions.

Without --to the map is printed as it would be published."""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `cells` and its parts to the command."""
    cells = commands.add_parser(
        "cells",
        help="check, change and publish the map of cells, and route by it",
        description=CELLS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = cells.add_subparsers(dest="part", required=True, metavar="WHAT")

    def part(name: str, says: str, description: str) -> Callable[..., argparse.Action]:
        made: argparse.ArgumentParser = parts.add_parser(
            name, help=says, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        return made.add_argument

    add = part("show", "check a map and print it, or find a tenant's cell", SHOW)
    add("map", metavar="MAP", type=named, help="the map file, or an http(s) URL")
    add("--tenant", action="append", default=[], metavar="ID", help="which cell is this tenant's? may be repeated")
    add("--json", action="store_true", help="for programs")

    add = part("diff", "print which slots and tenants move between two maps", DIFF)
    add("old", metavar="OLD", type=named, help="the map that is in force")
    add("new", metavar="NEW", type=named, help="the map to come")
    add("--tenants", metavar="FILE", type=named, help="tenant ids, one a line; - = standard input")
    add("--json", action="store_true", help="for programs")

    add = part("rebalance", "print the map with a new cell and an explicit slot map", REBALANCE)
    add("map", metavar="MAP", type=named, help="the map that is in force")
    add("--add", action="append", required=True, metavar="NAME=URL", help="the new cell; may be repeated")
    _output(add)

    add = part("promote", "print the map with every cell at its standby URL", PROMOTE)
    add("map", metavar="MAP", type=named, help="the map that is in force")
    _output(add)

    add = part("publish", "check a map and put it where it is read, under a higher version", PUBLISH)
    add("map", metavar="MAP", type=named, help="the map to publish")
    add("--to", type=file, metavar="FILE", help="the file that is read by routers")
    add("--new-epoch", action="store_true", help="under a higher epoch")
    add("--json", action="store_true", help="print JSON, not TOML")
    cells_serving.add_parsers(parts)


def _output(add: Callable[..., argparse.Action]) -> None:
    add("--out", type=file, metavar="FILE", help="write the map there, not to standard output")
    add("--json", action="store_true", help="print JSON, not TOML")

r"""Moves a tenant of the shop from its cell to another one while it is used: copy, verify, change the map, delete.

    python move_tenant.py cells.toml acme eu-2 --router http://127.0.0.1:8080 \\
        --from-dsn "dbname=shop_1" --to-dsn "dbname=shop_2"

What was there is copied while the tenant works. Then the map says "moving", and the tenant gets 503 with Retry-After
until the rest is copied and compared: nothing is lost, clients ask again. `docs/cells.md` says what this needs of a
database: ids that differ between cells, and rows that say whose they are.

Rows are deleted only after the same rows were seen in the new cell; so a request that was late finds its order there.
"""

import argparse
import time
import urllib.error
import urllib.request

import psycopg

import bulkhead
from bulkhead.cells import CellMap, MapVersion, load, publish

COLUMNS = "id, tenant, item, quantity, created"
IDS = "SELECT id FROM orders WHERE tenant = %s"
MINE = f"SELECT {COLUMNS} FROM orders WHERE tenant = %s"  # noqa: S608  our own text
DIGEST = f"SELECT count(*), md5(string_agg(mine::text, ',' ORDER BY id)) FROM ({MINE}) AS mine"  # noqa: S608


def copy(tenant: str, old: psycopg.Connection, new: psycopg.Connection) -> int:
    """Copy the tenant's rows that are not there yet; how many."""
    there = [row[0] for row in new.execute(IDS, [tenant])]
    rows = f"COPY ({MINE} AND id <> ALL(%s)) TO STDOUT"
    with old.cursor() as reading, new.cursor() as writing:
        with reading.copy(rows, [tenant, there]) as out, writing.copy(f"COPY orders ({COLUMNS}) FROM STDIN") as into:
            for block in out:
                into.write(block)
        return writing.rowcount


def same(tenant: str, old: psycopg.Connection, new: psycopg.Connection) -> bool:
    """Whether both cells have the same rows of the tenant."""
    return old.execute(DIGEST, [tenant]).fetchone() == new.execute(DIGEST, [tenant]).fetchone()


def delete(tenant: str, old: psycopg.Connection, new: psycopg.Connection) -> int:
    """Delete the old cell's rows of the tenant that the new one has; how many are left: a request was late."""
    copy(tenant, old, new)
    there = [row[0] for row in new.execute(IDS, [tenant])]
    old.execute("DELETE FROM orders WHERE tenant = %s AND id = ANY(%s)", [tenant, there])
    return old.execute(IDS, [tenant]).rowcount


def wait(routers: list[str], tenant: str, version: MapVersion, seconds: float = 60) -> None:
    """Until every router has this version of the map, or a newer one: each answer says which one it was routed by."""
    until = time.monotonic() + seconds
    for router in routers:
        while (seen := routed_by(router, tenant)) is None or seen < version:
            if time.monotonic() > until:
                raise SystemExit(f"{router} still routes by version {seen}")
            time.sleep(0.05)


def routed_by(router: str, tenant: str) -> MapVersion | None:
    """The version of the map that this router has."""
    request = urllib.request.Request(f"{router}/health", headers={"X-Tenant-ID": tenant})  # noqa: S310  the operator's
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            headers = answer.headers
    except urllib.error.HTTPError as error:  # 503, while it is moving
        with error:
            headers = error.headers
    return MapVersion.parse(headers["X-Cell-Map-Version"])


def change(file: str, tenant: str, *, moving: bool = False, cell: str | None = None) -> CellMap:
    """Publish the map as it is now but for this tenant: others may have published meanwhile, another move perhaps."""
    now = load(file)
    tenants = {one: kept for one, kept in now.tenants.items() if one != tenant}
    if moving:
        tenants[tenant] = "moving"
    pins = now.router.pins if cell is None else {**now.router.pins, tenant: cell}
    return publish(now.replace(router=now.router.replace(pins=pins), tenants=tenants), file)


def say(what: str) -> None:
    """One line with the time."""
    print(time.strftime("%H:%M:%S"), what, flush=True)  # noqa: T201


def move(file: str, tenant: str, to: str, dsns: tuple[str, str], routers: list[str], longest: float = 5.0) -> CellMap:
    """All steps. `longest`: seconds that a request of the tenant may take; those under way are waited for."""
    names = [cell.name for cell in load(file).router.cells]
    if to not in names:
        raise SystemExit(f"there is no cell {to!r} in {file}, which has {', '.join(names)}")
    with psycopg.connect(dsns[0], autocommit=True) as old, psycopg.connect(dsns[1], autocommit=True) as new:
        say(f"copied {copy(tenant, old, new)} orders while {tenant} works")

        moving = change(file, tenant, moving=True)
        try:
            wait(routers, tenant, moving.stamp)
            time.sleep(longest)
            say(f"copied {copy(tenant, old, new)} more while {tenant} is told to come back")
            if not same(tenant, old, new):
                raise SystemExit(f"the cells differ; {tenant} stays where it is")  # noqa: TRY301  undone below
        except BaseException:
            change(file, tenant)  # as it was, under a higher version
            raise
        done = change(file, tenant, cell=to)  # from here on there is no way back: the new cell has what the old has not
        say(f"version {done.stamp}: {tenant} belongs to {to}")

        wait(routers, tenant, done.stamp)
        time.sleep(longest)
        left = delete(tenant, old, new)
        say("the old cell has none of its orders" if not left else f"{left} orders are left in the old cell: run again")
    return done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Move a tenant of the shop to another cell.")
    parser.add_argument("map", help="the map's file, which the routers read")
    parser.add_argument("tenant")
    parser.add_argument("cell", help="the new cell")
    parser.add_argument("--from-dsn", required=True, help="database of the old cell")
    parser.add_argument("--to-dsn", required=True, help="database of the new cell")
    parser.add_argument("--router", action="append", default=[], help="URL of a router; may be repeated")
    parser.add_argument("--longest", type=float, default=5.0, help="seconds that a request may take (default 5)")
    given = parser.parse_args()
    try:
        move(given.map, given.tenant, given.cell, (given.from_dsn, given.to_dsn), given.router, given.longest)
    except bulkhead.ConfigurationError as error:
        raise SystemExit(str(error)) from None

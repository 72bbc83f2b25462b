"""Every way in which options reach a SQLAlchemy engine, and the engines that have none."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy import create_engine
from sqlalchemy.engine import URL, Engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import QueuePool, StaticPool

import adapters
import adapters.sqlalchemy
import bulkhead
from bulkhead.adapter import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

numbers = itertools.count()
HOOKS = ("do_execute", "do_executemany", "do_execute_no_params", "bulkhead")


@pytest.fixture
def name() -> Iterator[str]:
    fresh = f"options-{next(numbers)}"
    yield fresh
    bulkhead.unregister(f"sql:{fresh}")


def resource_of(engine: Engine) -> Any:
    return engine.dialect.bulkhead  # type: ignore[attr-defined]


def answers(engine: Engine) -> bool:
    with engine.connect() as connection:
        return connection.execute(sa.text("SELECT 1")).scalar() == 1


@pytest.mark.parametrize(
    "form",
    [
        lambda name: bulkhead.options(name=name, tickets=3),
        lambda name: {"bulkhead": {"name": name, "tickets": 3}},
        lambda name: {"bulkhead": bulkhead.Options(name=name, tickets=3)},
        lambda name: {"bulkhead": lambda driver, host, port, extra: bulkhead.Options(name=name, tickets=3)},
    ],
    ids=["options", "mapping", "Options", "callable"],
)
def test_all_forms_of_options_reach_the_engine(form: Callable[[str], dict[str, Any]], name: str) -> None:
    engine = create_engine("sqlite://", **form(name))
    assert resource_of(engine) is bulkhead.find(f"sql:{name}")
    assert resource_of(engine).limit == 3
    assert answers(engine)


def test_a_callable_is_told_the_driver_and_where_it_connects_to_but_no_password(name: str) -> None:
    told: list[Any] = []

    def ask(driver: str, host: str | None, port: int | None, extra: Any) -> bulkhead.Options:
        told.append((driver, host, port, dict(extra)))
        return bulkhead.Options(name=name, tickets=3)

    create_engine("postgresql+psycopg://joe:secret@db.example:6000/shop", bulkhead=ask)
    assert told == [
        (
            "sqlalchemy",
            "db.example",
            6000,
            {"drivername": "postgresql+psycopg", "database": "shop", "username": "joe"},
        )
    ]


def test_a_dynamic_callable_is_asked_on_each_call(name: str) -> None:
    def ask(driver: str, host: str | None, port: int | None, extra: Any) -> bulkhead.Options:
        return bulkhead.Options(name=f"{name}-{bulkhead.current_tenant()}", tickets=3, dynamic=True)

    engine = create_engine("sqlite://", bulkhead=ask)
    for tenant in ("a", "b"):
        with bulkhead.tenant(tenant):
            assert answers(engine)
        assert bulkhead.find(f"sql:{name}-{tenant}") is not None
        bulkhead.unregister(f"sql:{name}-{tenant}")


def test_false_and_nothing_leave_the_engine_as_it_is() -> None:
    """MY-02, AR-02, MY-23, AR-04: no configuration, no protection, and it works."""
    plain, switched_off = create_engine("sqlite://"), create_engine("sqlite://", bulkhead=False)
    for engine in (plain, switched_off):
        assert not any(hook in vars(engine.dialect) for hook in HOOKS)
        assert "connect" not in vars(engine.pool)
        assert not engine.dialect._has_events
        assert answers(engine)


def test_the_configuration_is_left_intact(name: str) -> None:
    """AR-03."""
    given: dict[str, Any] = {"bulkhead": {"name": name, "tickets": 3}, "connect_args": {"timeout": 3}, "plugins": []}
    before = {key: value.copy() for key, value in given.items()}
    create_engine("sqlite://", **given)
    assert given == before


def test_a_name_may_be_defined_after_the_engine(name: str) -> None:
    engine = create_engine("sqlite://", bulkhead=name)
    with pytest.raises(bulkhead.ConfigurationError, match=name):
        engine.connect()
    bulkhead.define(name, tickets=2)
    assert answers(engine)
    found = bulkhead.find(f"sql:{name}")
    assert found is not None
    assert found.limit == 2


@pytest.mark.parametrize(
    "url",
    ["sqlite://?plugin=bulkhead&bulkhead={}", "sqlite://?bulkhead={}", "sqlite:////{}?bulkhead={}&timeout=3"],
    ids=["plugin and name", "name alone", "beside the driver's own arguments"],
)
def test_a_url_carries_the_name(url: str, name: str, tmp_path: Path) -> None:
    bulkhead.define(name, tickets=2)
    filled = url.format(*([tmp_path / "a.db"] if "////" in url else []), name)
    engine = create_engine(filled)
    assert resource_of(engine) is bulkhead.find(f"sql:{name}")
    assert "bulkhead" not in str(engine.url)
    assert answers(engine)


def test_the_plugin_may_be_named_as_an_argument_and_twice(name: str) -> None:
    engine = create_engine("sqlite://?plugin=bulkhead", plugins=["bulkhead"], **bulkhead.options(name=name, tickets=1))
    assert answers(engine)
    assert resource_of(engine) is bulkhead.find(f"sql:{name}")


def test_the_plugin_without_options_is_an_error_that_says_what_to_add() -> None:
    with pytest.raises(bulkhead.ConfigurationError, match="bulkhead=<name>"):
        create_engine("sqlite://?plugin=bulkhead")
    assert answers(create_engine("sqlite://?plugin=bulkhead", bulkhead=False))


def test_options_in_the_url_and_beside_it_contradict_each_other(name: str) -> None:
    with pytest.raises(bulkhead.ConfigurationError, match="twice"):
        create_engine("sqlite://?bulkhead=x", **bulkhead.options(name=name, tickets=1))
    with pytest.raises(bulkhead.ConfigurationError, match="twice"):
        create_engine("sqlite://?bulkhead=x&bulkhead=y")


@pytest.mark.parametrize("wrong", [{"tikets": 1}, {"tickets": 0}, {"open_circuit_on_oom": True}, True, 7])
def test_wrong_options_raise_where_the_engine_is_built(wrong: object) -> None:
    with pytest.raises(bulkhead.ConfigurationError):
        create_engine("sqlite://", bulkhead=wrong)


def test_options_reach_an_asyncio_engine(name: str) -> None:
    engine = create_async_engine("sqlite+aiosqlite://", **bulkhead.options(name=name, tickets=1))
    assert resource_of(engine.sync_engine) is bulkhead.find(f"sql:{name}")


def test_engine_from_config_takes_the_name_of_defined_options(name: str) -> None:
    bulkhead.define(name, tickets=2)
    engine = sa.engine_from_config({"sqlalchemy.url": "sqlite://", "sqlalchemy.bulkhead": name})
    assert resource_of(engine) is bulkhead.find(f"sql:{name}")


def test_options_in_connect_args_are_the_drivers() -> None:
    """The engine is not guarded by them; the driver below gets them."""
    seen: list[dict[str, Any]] = []
    engine = create_engine("sqlite://", connect_args={"bulkhead": {"tickets": 1}}, poolclass=StaticPool)
    sa.event.listen(engine, "do_connect", lambda dialect, record, args, kwargs: seen.append(kwargs.pop("bulkhead")))
    assert not hasattr(engine.dialect, "bulkhead")
    assert answers(engine)
    assert seen == [{"tickets": 1}]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql+psycopg://joe:secret@db:6000/shop", "db:6000/shop"),
        ("postgresql+psycopg://joe:secret@/shop", "localhost:5432/shop"),
        ("postgresql+psycopg://joe:secret@/shop?host=a&host=b", "a,b:5432/shop"),
        ("postgresql+psycopg://?service=shop-eu", "service=shop-eu"),
        ("postgresql+psycopg://db/shop?service=shop-eu", "db:5432/shop"),
        ("sqlite:////var/lib/app.db", "/var/lib/app.db"),
        ("sqlite://", ":memory:"),
    ],
)
def test_the_default_name_says_where_and_never_a_password(url: str, expected: str) -> None:
    """MY-01 and AR-01 where they fit: host, default port, and the database."""
    engine = create_engine(url, **bulkhead.options(tickets=1))
    identifier = resource_of(engine).identifier
    bulkhead.unregister(identifier)
    assert identifier == f"sql:{expected}"
    assert "secret" not in identifier


def test_protect_takes_engines_of_both_kinds_and_copies(name: str) -> None:
    engine = create_engine("sqlite://")
    assert answers(engine)  # a pool that is in use already
    assert bulkhead.protect(engine, name=name, tickets=2) is engine
    assert resource_of(engine) is bulkhead.find(f"sql:{name}")
    bulkhead.protect(engine.execution_options(), name=name, tickets=2)
    third = create_engine("sqlite://")
    bulkhead.protect(third.execution_options(logging_token="copy"), name=name, tickets=2)
    assert resource_of(third) is resource_of(engine)
    assert answers(third)
    other = create_async_engine("sqlite+aiosqlite://")
    assert bulkhead.protect(other, name=name, tickets=2) is other
    assert resource_of(other.sync_engine) is resource_of(engine)
    with pytest.raises(bulkhead.ConfigurationError, match="protected"):
        bulkhead.protect(engine, name=f"{name}-other", tickets=2)
    with pytest.raises(bulkhead.ConfigurationError, match="other options"):
        bulkhead.protect(create_engine("sqlite://"), name=name, tickets=3)


def test_a_creator_and_do_connect_listeners_of_the_users_run_inside_the_guarded_connect(name: str) -> None:
    def refuse() -> Any:
        raise ConnectionRefusedError

    options = bulkhead.options(name=name, error_threshold=2, error_timeout=9, success_threshold=1)
    engine = create_engine("postgresql+psycopg://", creator=refuse, **options)
    other = create_engine("postgresql+psycopg://", **options)
    sa.event.listen(other, "do_connect", lambda *arguments: refuse())
    for one in (engine, other):
        with pytest.raises(ConnectionRefusedError):
            one.connect()
    assert resource_of(engine).state == "open"
    for one in (engine, other):
        with pytest.raises(bulkhead.CircuitOpenError):
            one.connect()


def test_resolve_reaches_engines_that_were_given_nothing(name: str) -> None:
    def ask(driver: str, host: str | None, port: int | None, extra: Any) -> bulkhead.Options | None:
        return bulkhead.Options(name=name, tickets=3) if extra["database"] == "/x.db" else None

    adapters.resolve(ask)
    try:
        reached, other = create_engine("sqlite:////x.db"), create_engine("sqlite://")
    finally:
        adapters.resolve(None)
    assert isinstance(resource_of(reached), Resource)
    assert not hasattr(other.dialect, "bulkhead")


def test_copies_share_the_guard_and_dispose_keeps_it(name: str, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/a.db", **bulkhead.options(name=name, tickets=1))
    resource = resource_of(engine)
    copy = engine.execution_options(stream_results=True)
    engine.dispose()
    with resource.permit(), pytest.raises(bulkhead.ResourceBusyError):
        _in_another_thread(copy.connect)  # both the new pool's creator and the copy are guarded
    assert isinstance(engine.pool, QueuePool)
    assert answers(copy)


def _in_another_thread(function: Callable[[], object]) -> None:
    import concurrent.futures  # noqa: PLC0415

    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        executor.submit(function).result(10)


def test_uninstall_restores_the_very_same_attribute(run_python: Any) -> None:
    """Known fault 72."""
    run_python("""
from sqlalchemy.engine import URL
before = vars(URL)["_instantiate_plugins"]
import adapters, adapters.sqlalchemy, bulkhead, sqlalchemy as sa
assert adapters.installed() == ["sqlalchemy"], adapters.installed()
ours = vars(URL)["_instantiate_plugins"]
assert ours is not before
adapters.sqlalchemy.apply(); bulkhead.install("sqlalchemy")
assert vars(URL)["_instantiate_plugins"] is ours
engine = sa.create_engine("sqlite://", **bulkhead.options(name="x", tickets=1))
with bulkhead.find("sql:x").permit(): pass
adapters.uninstall()
assert vars(URL)["_instantiate_plugins"] is before
try:
    sa.create_engine("sqlite://", **bulkhead.options(name="x", tickets=1))
except TypeError as error:
    assert "bulkhead" in str(error)
else:
    raise SystemExit("still understood")
bulkhead.find("sql:x").open()
with engine.connect() as connection:  # passes through
    assert connection.scalar(sa.text("SELECT 1")) == 1
bulkhead.install("sqlalchemy")
assert vars(URL)["_instantiate_plugins"] is not before
try:
    engine.connect().execute(sa.text("SELECT 1"))
except sa.exc.OperationalError:
    pass
else:
    raise SystemExit("not guarded again")
""")


@pytest.mark.parametrize(
    "order",
    [
        "import adapters; from sqlalchemy import create_engine",
        "from sqlalchemy import create_engine; import adapters",
        "from sqlalchemy import create_engine; import adapters.sqlalchemy, bulkhead; bulkhead.install()",
        "import bulkhead; bulkhead.install(); bulkhead.install('sqlalchemy'); from sqlalchemy import create_engine",
    ],
)
def test_the_order_of_imports_does_not_matter(order: str, run_python: Any) -> None:
    """Known fault 72."""
    run_python(f"""
{order}
import bulkhead
engine = create_engine("sqlite://", **bulkhead.options(name="x", tickets=1))
engine.connect().close()
assert engine.dialect.bulkhead is bulkhead.find("sql:x")
""")


def test_the_plugin_is_found_by_its_entry_point_with_nothing_imported(run_python: Any, tmp_path: Path) -> None:
    folder = tmp_path / "bulkhead_toolkit_entry-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: bulkhead-toolkit-entry\nVersion: 0\n")
    (folder / "entry_points.txt").write_text("[sqlalchemy.plugins]\nbulkhead = adapters.sqlalchemy:BulkheadPlugin\n")
    run_python(
        """
import sys
from sqlalchemy import create_engine
sys.path.append(sys.argv[1])
engine = create_engine("sqlite://?plugin=bulkhead&bulkhead=x")
import bulkhead
bulkhead.define("x", tickets=1)
engine.connect().close()
assert bulkhead.find("sql:x") is not None
""",
        str(tmp_path),
    )


def test_an_unsupported_version_is_left_alone(run_python: Any) -> None:
    done = run_python("""
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "1.4.54" if name == "SQLAlchemy" else real(name)
from sqlalchemy.engine import URL
before = URL._instantiate_plugins
import adapters._patch
adapters._patch.version = metadata.version
import adapters.sqlalchemy
assert URL._instantiate_plugins is before
""")
    assert "1.4.54 is not supported" in done.stderr


def test_url_objects_are_not_changed() -> None:
    """The class that carries the patch is a named tuple: it stays one, and equal values stay equal."""
    assert sa.make_url("sqlite://") == URL.create("sqlite")


def test_a_ready_pool_stays_unguarded_for_the_engines_that_share_it() -> None:
    """Options beside it are an error, `protect` is how to say that it is meant, False passes."""
    pool = sa.create_engine("sqlite://").pool
    other = sa.create_engine("sqlite://", pool=pool)
    with pytest.raises(bulkhead.ConfigurationError, match=r"ready pool=.*bulkhead\.protect"):
        sa.create_engine("sqlite://", pool=pool, **bulkhead.options(name="ready-pool", tickets=1))
    with pytest.raises(bulkhead.ConfigurationError, match="ready pool="):
        sa.create_engine("sqlite://?bulkhead=ready-pool", pool=pool)
    assert bulkhead.find("sql:ready-pool") is None
    assert answers(sa.create_engine("sqlite://", pool=pool, bulkhead=False))
    assert answers(other)
    other.dispose()

"""[jobs]: from a file and the environment, under what code gives; limits follow a reload; wrong options say so."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

import bulkhead
from bulkhead import settings
from bulkhead.jobs import AsyncRunner, Runner, job
from bulkhead.jobs.options import Caps, RunnerOptions
from bulkhead.settings import Jobs

if TYPE_CHECKING:
    from pathlib import Path


def test_the_defaults_are_those_of_the_design() -> None:
    assert Jobs() == Jobs(
        workers=8, max_concurrent=0, tenants=None, lanes=0, lanes_per_tenant=2, max_backlog_per_tenant=10_000,
        max_backlog=100_000, grace_secs=25.0, unknown_after_secs=86_400.0,
    )  # fmt: skip


def test_what_a_runner_can_be_given_are_the_keys_of_the_settings() -> None:
    assert set(RunnerOptions.__annotations__) == {field.name for field in dataclasses.fields(Jobs)}


@pytest.mark.parametrize("kind", [Runner, AsyncRunner])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"worker": 2}, "unknown option 'worker': did you mean 'workers'?"),
        ({"workers": 0}, "workers must be a whole number from 1 to 1,000,000, not 0"),
        ({"workers": True}, "workers must be a whole number"),
        ({"max_concurrent": -1}, "max_concurrent must be a whole number from 0"),
        ({"max_concurrent": {"": 1}}, "max_concurrent must be"),
        ({"tenants": 3}, "tenants must be a table of tenant ids"),
        ({"tenants": {"acme": -1}}, "tenants must be a table of tenant ids"),
        ({"lanes": -1}, "lanes must be a whole number from 0"),
        ({"lanes_per_tenant": 0}, "lanes_per_tenant must be a whole number from 1"),
        ({"max_backlog": 0}, "max_backlog must be a whole number from 1"),
        ({"grace_secs": -1}, "grace_secs must be a number of seconds of at least 0"),
        ({"unknown_after_secs": "1h"}, "unknown_after_secs must be a number of seconds"),
    ],
)
def test_a_wrong_option_is_an_error_with_a_hint(kind: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(bulkhead.ConfigurationError) as caught:
        kind(**options)
    assert f"{kind.__name__}: {says}" in str(caught.value)


@pytest.mark.parametrize("kind", [Runner, AsyncRunner])
def test_more_lanes_than_workers_are_lowered_with_one_warning(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    runner = kind(workers=2, lanes=8)
    runner._follow(settings.current())
    assert runner.options.lanes == 2
    told = [record for record in caplog.records if "settings_warning" in record.getMessage()]
    assert [record.bulkhead_setting for record in told] == ["jobs.lanes"]  # type: ignore[attr-defined]
    assert "8 lanes need as many workers" in told[0].getMessage()


def test_file_environment_and_code_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic_settings")
    (tmp_path / "bulkhead.toml").write_text(
        "[jobs]\nworkers = 3\nlanes = 2\nmax_concurrent = { default = 2, acme = 5 }\n[jobs.tenants]\ngold = 7\n"
    )
    monkeypatch.setenv("BULKHEAD_JOBS__LANES", "3")
    monkeypatch.setenv("BULKHEAD_JOBS__TENANTS", '{"silver": 4}')
    monkeypatch.setenv("BULKHEAD_JOBS__GRACE_SECS", "1.5")
    options = Runner(workers=4).options
    assert (options.workers, options.lanes, options.grace_secs) == (4, 3, 1.5)
    caps = Caps(options)
    assert [caps.of(one) for one in ("acme", "gold", "silver", "other", None)] == [5, 7, 4, 2, 0]


def test_limits_of_a_running_runner_follow_a_reload(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_settings")
    file = tmp_path / "bulkhead.toml"
    file.write_text("[jobs]\nworkers = 3\nmax_backlog_per_tenant = 1\nmax_backlog = 50\n")

    @job()
    def work() -> None: ...

    runner = Runner(max_backlog=60)
    work.options(tenant="acme", runner=runner).enqueue()
    with pytest.raises(bulkhead.Rejected):
        work.options(tenant="acme", runner=runner).enqueue()
    file.write_text("[jobs]\nworkers = 5\nmax_backlog_per_tenant = 2\nmax_backlog = 70\n")
    settings.reload()
    work.options(tenant="acme", runner=runner).enqueue()
    assert runner.options == dataclasses.replace(Jobs(), workers=3, max_backlog_per_tenant=2, max_backlog=60)
    assert settings.current().of(Jobs).workers == 3  # at a restart only


def test_a_wrong_key_of_the_section_is_found_without_anybody_who_uses_jobs(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_settings")
    (tmp_path / "bulkhead.toml").write_text("[jobs]\nworker = 3\nlanes = -1\n")
    with pytest.raises(bulkhead.ConfigurationError) as caught:
        settings.load()
    assert "jobs has no key 'worker': did you mean 'workers'?" in str(caught.value)
    assert "jobs.lanes must be a whole number from 0" in str(caught.value)

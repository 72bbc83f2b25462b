"""docs/operations: dashboard, alert rules and runbook name what a real scrape has, and each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import RunPython
    from scrapes import Scrape

OF_PROMETHEUS = {"job", "instance", "le"}  # labels that a scrape gets from whoever scrapes it, or that buckets have
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool"}
FUNCTIONS = {"sum", "max", "min", "avg", "count", "group", "rate", "increase", "max_over_time", "histogram_quantile"}


class Selector(NamedTuple):
    """A metric with its matchers: label, operator, value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


class Query:
    """A PromQL expression, taken apart as far as names go."""

    MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*,?')

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.selectors: list[Selector] = []
        rest = re.sub(r"\b(\w+)\s*\{([^{}]*)\}", self._selector, expression)
        assert '"' not in rest, expression
        self.labels = {
            label.strip()
            for group in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", rest)
            for label in group.split(",")
        }
        rest = re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)", "", rest)
        rest = re.sub(r"\[[^\]]*\]|\boffset \w+|[\d.]+", "", rest)
        self.functions = set(re.findall(r"\b([a-z_]+)\s*\(", rest))
        for name in set(re.findall(r"\b[a-z]\w*", rest)) - self.functions - WORDS:
            self.selectors.append(Selector(name, ()))

    def _selector(self, found: re.Match[str]) -> str:
        matchers = tuple(self.MATCHER.findall(found[2]))
        assert not self.MATCHER.sub("", found[2]).strip(), found[0]
        self.selectors.append(Selector(found[1], matchers))
        return ""

    def faults(self, scrape: Scrape) -> list[str]:
        """What this asks for and the scrape does not have."""
        found = [f"function {name}" for name in self.functions - FUNCTIONS]
        known = OF_PROMETHEUS | {label for metric, _ in self.selectors for label in scrape.labels(metric)}
        found += [f"by ({label})" for label in self.labels - known]
        for metric, matchers in self.selectors:
            if metric not in scrape.types:
                found.append(metric)
                continue
            for label, operator, value in matchers:
                if label in OF_PROMETHEUS and not value.startswith("$"):
                    found.append(f"{metric}: a {label} of our own")
                elif label not in OF_PROMETHEUS | scrape.labels(metric):
                    found.append(f"{metric}{{{label}}}")
                elif not value.startswith("$") and not self._matches(scrape, metric, label, operator, value):
                    found.append(f"{metric}{{{label}{operator}{value!r}}}")
        return found

    @staticmethod
    def _matches(scrape: Scrape, metric: str, label: str, operator: str, value: str) -> bool:
        """Is there a sample with (or, where that is excluded, without) this value?"""
        pattern = re.compile(json.loads(f'"{value}"') if "~" in operator else re.escape(value))
        return any(pattern.fullmatch(one) for one in scrape.values_of(metric, label))


@pytest.fixture
def dashboard(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "docs/operations/grafana-dashboard.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def rules(root: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((root / "docs/operations/alerts.yml").read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.fixture
def runbook(root: Path) -> str:
    return (root / "docs/operations/runbook.md").read_text(encoding="utf-8")


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    return {
        re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    }


def test_every_panel_asks_for_what_a_scrape_has(dashboard: dict[str, Any], scrape: Scrape) -> None:
    queries = [Query(target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 10
    assert {query.expression: faults for query in queries if (faults := query.faults(scrape))} == {}


def test_variables_and_legends_of_the_dashboard_name_labels_that_exist(
    dashboard: dict[str, Any], scrape: Scrape
) -> None:
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"]))) - {"__rate_interval"}
    assert used == set(variables)
    for one in variables.values():
        if one["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+)(?:\{(.*)\})?, (\w+)\)", one["query"]["query"])
            assert asked
            assert asked[1] in scrape.types
            assert asked[3] in OF_PROMETHEUS | scrape.labels(asked[1])
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = Query(target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= query.labels, panel["title"]


def test_panels_do_not_overlap_and_each_is_one_of_its_own(dashboard: dict[str, Any]) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert cells.isdisjoint(own), panel["title"]
        cells |= own
    for key in ("id", "title", "description"):
        assert len({panel[key] for panel in dashboard["panels"]}) == len(dashboard["panels"]), key


def test_every_metric_is_on_the_dashboard(dashboard: dict[str, Any], scrape: Scrape) -> None:
    shown = {
        one.metric
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for one in Query(target["expr"]).selectors
    }
    ours = {name for name in scrape.types if name.startswith("bulkhead_") and not name.endswith("_created")}
    assert ours - shown <= {"bulkhead_call_seconds_count", "bulkhead_call_seconds_sum"}


def test_every_alert_asks_for_what_a_scrape_has(rules: list[dict[str, Any]], scrape: Scrape) -> None:
    assert {rule["alert"]: faults for rule in rules if (faults := Query(rule["expr"]).faults(scrape))} == {}


def test_alerts_are_complete_and_lead_to_a_section_of_the_runbook(rules: list[dict[str, Any]], runbook: str) -> None:
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        text = rule["annotations"]["summary"] + rule["annotations"]["description"]
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= Query(rule["expr"]).labels
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/operations/runbook.md"
        assert anchor in anchors(runbook)
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert set(re.findall(r"\bBulkhead[A-Z]\w+", runbook)) == {rule["alert"] for rule in rules}


def test_prometheus_own_tool_accepts_the_rules(root: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH")
    done = subprocess.run(
        [promtool, "check", "rules", str(root / "docs/operations/alerts.yml")],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_and_words_that_the_runbook_quotes_exist(runbook: str, dashboard: dict[str, Any], root: Path) -> None:
    titles = {panel["title"] for panel in dashboard["panels"]}
    assert set(re.findall(r'[Pp]anel "([^"]+)"', runbook)) <= titles
    words = (root / "bulkhead" / "explaining.py").read_text(encoding="utf-8")
    for quoted in ("probes ended without saying anything", "the longest for"):
        assert quoted in " ".join(runbook.split())
        assert quoted in words


def blocks(page: str) -> Iterator[str]:
    """The Python blocks, without their indentation."""
    for indent, block in re.findall(r"^( *)```python\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL):
        yield re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def test_the_commands_of_the_runbook_run_in_a_process_that_serves(runbook: str, run_python: RunPython) -> None:
    commands = list(blocks(runbook))
    assert len(commands) > 6
    source = f"""
import sys
sys.path.insert(0, "tests")
import bulkhead
from bulkhead.adapter import Options
from bulkhead.jobs import Runner, job
from bulkhead.registry import registered
from stories import circuit, fail, hold

inventory = registered(Options(name="inventory", tickets=16, tenant_tickets=4, **circuit(3)), "redis", "x")
requests = registered(Options(identifier="server:requests", tickets=9, tenant_tickets=2), "call", "x")
held = [hold(inventory, "acme"), hold(inventory, "acme"), hold(requests, "acme")]
for _ in range(3):
    fail(inventory, error=ConnectionError("no route"))
@job("mail", max_attempts=1)
def fails():
    raise ValueError

with Runner(workers=1) as runner:
    fails.options(tenant="acme").enqueue()
    assert runner.drain(timeout=20)
    for command in {commands!r}:
        exec(command)
print(state_of_bulkhead())
print(inventory.mode, inventory.limit, bulkhead.tenancy.policy())
"""
    shown = run_python(source).stdout
    assert "redis:inventory: rejections are enforced\nthe circuit is open since" in shown
    assert "because failures reached the threshold, the last one ConnectionError: no route" in shown
    assert "TenantUse(tenant='acme', in_use=2, limit=4, connections=0)" in shown
    assert "\nacme 1 2\n" in shown
    assert "  acme holds 2 tickets of 4, 0 connections" in shown
    assert "fails" in shown, "a dead job"
    assert shown.endswith("off 32 share\n")

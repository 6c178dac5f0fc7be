"""The alert rules and the dashboard ask only for metrics that there are, by labels and values that they have."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_outbox.cli import main
from airflow_outbox.values.metrics import METRICS, QUANTILES, Metric, MetricKind, Stage
from airflow_outbox.values.positions import GroupState
from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.verdict import State

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
PAGE = FOLDER.parent / "how-to" / "alerts.md"
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
PROMETHEUS_OWN = {"instance", "job"}
VALUES = {
    "state": set(State),
    "stage": set(Stage),
    "cause": set(Cause),
    "positions": set(GroupState),
    "quantile": {str(quantile) for quantile in QUANTILES},
    "outbox": {"$outbox"},
}
_SELECTED = re.compile(r"\b(airflow_outbox_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=|!=|=~|!~)"([^"]*)"')
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring) \(([^)]*)\)")
_PRINTED = re.compile(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}")


def metric_of(name: str) -> Metric:
    """The metric whose series has this name. A summary has two more."""
    for metric in METRICS:
        parts = ["", "_sum", "_count"] if metric.kind is MetricKind.SUMMARY else [""]
        if metric.name and name in {metric.name + part for part in parts}:
            return metric
    raise AssertionError(f"there is no metric {name}")


def labels_of(metric: Metric) -> set[str]:
    return {"outbox", *metric.labels, *(["quantile"] if metric.kind is MetricKind.SUMMARY else [])}


def require_known(query: str, *, printed: str = "") -> None:
    """Fail unless every metric, label and value of a query is known, and every label that is printed of its result."""
    selected = _SELECTED.findall(query)
    assert selected, query
    for name, matchers in selected:
        for label, _, value in _MATCHER.findall(matchers):
            assert label in labels_of(metric_of(name)), f"{name} has no label {label}"
            if value != ".+":
                assert set(value.split("|")) <= VALUES[label], f"{label} is never {value}"
    known = set.union(*(labels_of(metric_of(name)) for name, _ in selected))
    grouped = {label.strip() for labels in _GROUPED.findall(query) for label in labels.split(",")}
    assert grouped <= known, query
    left = grouped if grouped else known | PROMETHEUS_OWN
    assert set(_PRINTED.findall(printed)) <= left, f"{printed}: {query}"


def targets() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(panel, target) for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize(
    "query",
    [
        "max(airflow_outbox_backlog)",
        'airflow_outbox_verdict{state="fine"}',
        'airflow_outbox_backlog_records{cause="refused"}',
        "sum by (topic) (airflow_outbox_rate_records_per_second)",
        "airflow_outbox_backlog_records_sum",
        "vector(1)",
    ],
)
def test_a_query_for_what_there_is_not_is_found(query: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        require_known(query)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_asks_for_metrics_that_there_are(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    require_known(rule["expr"], printed="".join(annotations.values()))
    assert annotations.keys() == {"summary", "description"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    for command in re.findall(r"`airflow-outbox (\w+)", annotations["description"]):
        assert command in main.commands


def test_the_rules_are_in_the_docs() -> None:
    times = {None: "at once", "30s": "30 s", "1m": "1 min", "5m": "5 min", "30m": "30 min"}
    rows = re.findall(r"^\| `(AirflowOutbox\w+)` \|.*\| (.+) \| (\w+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows == [(rule["alert"], times[rule.get("for")], rule["labels"]["severity"]) for rule in RULES]


def test_every_state_but_healthy_has_a_rule() -> None:
    asked = {state for rule in RULES for state in re.findall(r'state="(\w+)"', rule["expr"])}
    assert asked == set(State) - {State.HEALTHY}


@pytest.mark.parametrize(("panel", "target"), targets(), ids=lambda part: str(part.get("title", part.get("refId"))))
def test_a_panel_asks_for_metrics_that_there_are(panel: dict[str, Any], target: dict[str, Any]) -> None:
    require_known(target["expr"], printed=target["legendFormat"])
    assert all('outbox="$outbox"' in matchers for _, matchers in _SELECTED.findall(target["expr"]))
    units = {metric_of(name).unit for name, _ in _SELECTED.findall(target["expr"])}
    is_time = panel["fieldConfig"]["defaults"].get("unit") == "s"
    assert is_time == (units == {"seconds"}), f"{panel['title']}: {units}"


def test_all_metrics_of_prometheus_are_on_the_dashboard() -> None:
    shown = {metric_of(name) for _, target in targets() for name, _ in _SELECTED.findall(target["expr"])}
    assert {metric for metric in METRICS if metric.name} - shown == set()


def test_panels_have_their_own_place_and_the_chosen_data_source() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    for one, other in combinations((panel["gridPos"] for panel in PANELS), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)


def test_every_state_has_its_colour_wherever_states_are_shown() -> None:
    panels = [
        panel for panel in PANELS if any("airflow_outbox_verdict" in target["expr"] for target in panel["targets"])
    ]
    assert len(panels) == 2
    for panel in panels:
        coloured = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
        assert coloured == set(State)


def test_the_variables_are_those_that_are_used() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS))) - {"__rate_interval"}
    assert used == variables.keys() == {"datasource", "outbox"}
    query = variables["outbox"]["query"]["query"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
    assert label in labels_of(metric_of(metric))

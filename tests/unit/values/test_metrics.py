"""The metrics are named by Prometheus' and OpenTelemetry's conventions, and each name is used once."""

from __future__ import annotations

import json
import re

import pytest

from airflow_outbox.values import metrics
from airflow_outbox.values.metrics import METRICS, PREFIX, Metric, MetricKind, Sample, flattened, nested

_BASE_UNITS = {"seconds": "_seconds", "records": "_records", "records per second": "_records_per_second"}

for_prometheus = pytest.mark.parametrize(
    "metric", [metric for metric in METRICS if metric.name], ids=lambda metric: metric.name
)


def test_no_name_is_used_twice() -> None:
    for names in ([metric.name for metric in METRICS], [metric.stats_name for metric in METRICS]):
        used = [name for name in names if name]
        assert len(set(used)) == len(used)
    assert all(metric.name or metric.stats_name for metric in METRICS)


@for_prometheus
def test_prometheus_conventions(metric: Metric) -> None:
    assert re.fullmatch(rf"{PREFIX}[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    unit = _BASE_UNITS.get(metric.unit, "")
    assert metric.name.removesuffix("_total").endswith(unit)
    assert metric.name.endswith(("_sum", "_count", "_bucket")) is False


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.stats_name or metric.name)
def test_opentelemetry_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"(outbox\.[a-z]+(_[a-z]+)*)?", metric.stats_name)
    assert not metric.stats_name.endswith(("_total", "_seconds", "_records"))
    assert "outbox" not in metric.labels


def test_samples_are_the_same_after_a_journey_as_json() -> None:
    samples = [
        Sample(metrics.BACKLOG, 7.0),
        Sample(metrics.PARKED, 2.0, {"cause": "headers"}),
        Sample(metrics.PARKED, 0.0, {"cause": "spread"}),
        Sample(metrics.LATENCY, 0.5, {"quantile": "0.5"}),
        Sample(metrics.BATCH, 0.1, {"stage": "read", "quantile": "0.99"}),
        Sample(metrics.ELECTIONS, 3.0),
    ]
    left_out = [Sample(metrics.LEADING, 1), Sample(metrics.BATCH, 4.0, {"stage": "read"}, "sum")]
    told = json.loads(json.dumps(nested([*samples, *left_out])))
    assert told == {
        "backlog": 7,
        "parked": {"headers": 2, "spread": 0},
        "publish_latency": {"0.5": 0.5},
        "batch_time": {"read": {"0.99": 0.1}},
        "elections": 3,
    }
    assert list(flattened({**told, "of_a_later_release": 1})) == samples

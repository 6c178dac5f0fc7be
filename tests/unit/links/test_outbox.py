"""The link from a task to its outbox, as the task stores it and as Airflow serialises it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk import DAG
from airflow.sdk.types import TaskInstanceKey
from airflow.serialization.serialized_objects import DagSerialization

from airflow_outbox import version_compat
from airflow_outbox.links.outbox import OutboxLink
from airflow_outbox.operators.spark import OutboxSparkSubmitOperator
from airflow_outbox.operators.stash import OutboxStashOperator
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.sensors.positions import OutboxPositionsSensor
from airflow_outbox.sensors.published import OutboxPublishedSensor

OURS: dict[type[Any], dict[str, Any]] = {
    OutboxHarvestSensor: {},
    OutboxPublishedSensor: {"ticket": "t"},
    OutboxPositionsSensor: {"group": "g", "to": "west", "kafka_conn_ids": {"primary": "east", "west": "west"}},
    OutboxStashOperator: {"records": []},
    OutboxSparkSubmitOperator: {"application": "job.py"},
}


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("operator", OURS)
@pytest.mark.parametrize("base", ["", "http://localhost:8080", "https://example.org/a/base/"])
def test_a_task_links_to_its_outbox(
    operator: type[Any], base: str, framed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"apache-airflow-core": "3.3.2" if framed else "3.3.1"}
    monkeypatch.setattr(version_compat, "version", installed.__getitem__)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
    task = operator(task_id="t", postgres_conn_id="a conn", outbox='shop."Out&box"', **OURS[operator])
    [link] = [link for link in task.operator_extra_links if isinstance(link, OutboxLink)]
    address = urlsplit(link.get_link(task, ti_key=None))
    assert (address.scheme, address.netloc) == ("", "")
    path = "/a/base" if "/a/" in base else ""
    assert address.path == (f"{path}/plugin/outbox{path}/outbox/one" if framed else f"{path}/outbox/one")
    assert parse_qs(address.query) == {"outbox": ['a conn:shop."Out&box"']}


def test_a_task_that_harvests_a_list_links_to_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/a/base/")
    task = OutboxHarvestSensor(task_id="t", outbox=["a", "tenant_*.outbox"])
    address = urlsplit(OutboxLink().get_link(task, ti_key=TaskInstanceKey("d &", "t", "run", 1, -1)))
    assert address.path == "/a/base/plugin/outbox/a/base/outbox/task"
    assert parse_qs(address.query) == {"dag_id": ["d &"], "task_id": ["t"]}


def test_no_address_is_stored_where_the_outbox_is_not_known() -> None:
    task = OutboxHarvestSensor(task_id="t")
    task.outbox = None  # type: ignore[assignment]  # an argument that was not resolved
    assert OutboxLink().get_link(task, ti_key=None) == ""  # type: ignore[arg-type]


def test_airflow_knows_of_the_link() -> None:
    with DAG("d", schedule=None) as dag:
        for number, (operator, given) in enumerate(OURS.items()):
            operator(task_id=f"t{number}", **given)
    stored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    for task in stored.tasks:
        assert task.operator_extra_link_dict["Outbox"].xcom_key == "_link_OutboxLink"

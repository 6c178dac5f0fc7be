"""OutboxHarvestSensor: defers, and says in the Dag what can't be right."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from airflow_outbox.errors import ConfigurationError, HarvestProcessError
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger


@pytest.mark.parametrize(
    ("until", "passed_on"),
    [
        ("forever", "forever"),
        ("drained", "drained"),
        (datetime(2030, 1, 1, tzinfo=UTC), "2030-01-01T00:00:00+00:00"),
        ("2030-01-01", "2030-01-01"),
    ],
)
def test_it_defers_to_the_trigger_without_a_timeout(until: Any, passed_on: str) -> None:
    sensor = OutboxHarvestSensor(
        task_id="harvest",
        postgres_conn_id="p",
        kafka_conn_id="k",
        outbox="s.o",
        until=until,
        settings={"limits": {"mark_records": 10}},
        timeout=60,
    )
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    assert deferred.value.timeout is None
    assert isinstance(deferred.value.trigger, OutboxHarvestTrigger)
    assert deferred.value.method_name == "execute_complete"
    assert deferred.value.trigger.serialize()[1] == {
        "postgres_conn_id": "p",
        "kafka_conn_id": "k",
        "outbox": "s.o",
        "until": passed_on,
        "settings": {"limits": {"mark_records": 10}},
        "emit": "end",
        "alert_callback": None,
    }


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"until": "tomorrow"}, "until: 'tomorrow'"),
        ({"until": 5}, "until: 5"),
        ({"outbox": "a.b.c"}, r"a\.b\.c"),
        ({"settings": {"limit": {}}}, "limit; the nearest known one is limits"),
        ({"settings": {"kafka": {}}}, "kafka comes from the connections"),
        ({"settings": {"clusters": {}}}, "clusters comes from the connections"),
        ({"kafka_conn_ids": {"west": "kafka_west"}}, "clusters.primary is missing"),
        ({"deferrable": False}, "in the triggerer, never in a worker"),
    ],
)
def test_what_can_not_be_right_fails_as_the_dag_is_read(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        OutboxHarvestSensor(task_id="harvest", **arguments)


def test_the_trigger_gets_the_connections_of_several_clusters() -> None:
    clusters = {"primary": "kafka_east", "west": "kafka_west"}
    with pytest.raises(TaskDeferred) as deferred:
        OutboxHarvestSensor(task_id="harvest", kafka_conn_ids=clusters).execute({})
    _, arguments = deferred.value.trigger.serialize()
    assert arguments["kafka_conn_ids"] == clusters
    assert OutboxHarvestTrigger(**arguments).serialize()[1] == arguments


def test_templates_are_examined_when_they_are_rendered() -> None:
    with DAG("d"):
        sensor = OutboxHarvestSensor(task_id="harvest", until="{{ params.until }}", outbox="{{ params.outbox }}")
    sensor.render_template_fields({"params": {"until": "soon", "outbox": "o"}})
    assert sensor.outbox == "o"
    with pytest.raises(ConfigurationError, match="soon"):
        sensor.execute({})


def test_the_result_is_a_summary() -> None:
    event = {"status": "ended", "reason": "drained", "published": 7}
    assert OutboxHarvestSensor(task_id="harvest").execute_complete({}, event) == {"reason": "drained", "published": 7}


def test_a_failure_says_why() -> None:
    event = {"status": "failed", "error": "no outbox. Run init"}
    with pytest.raises(HarvestProcessError, match=r"no outbox\. Run init"):
        OutboxHarvestSensor(task_id="harvest").execute_complete({}, event)


def test_a_soft_failure_skips() -> None:
    sensor = OutboxHarvestSensor(task_id="harvest", soft_fail=True)
    with pytest.raises(AirflowSkipException):
        sensor.resume_execution("execute_complete", {"event": {"status": "failed", "error": "gone"}}, {})


def test_many_outboxes_are_a_list_of_names_and_patterns() -> None:
    sensor = OutboxHarvestSensor(task_id="harvest", outbox=["tenant_*.outbox", "shop.outbox"])
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    assert isinstance(deferred.value.trigger, OutboxHarvestTrigger)
    assert deferred.value.trigger.serialize()[1]["outbox"] == ["tenant_*.outbox", "shop.outbox"]
    with pytest.raises(ConfigurationError, match="is no outbox, and no pattern"):
        OutboxHarvestSensor(task_id="harvest", outbox=["tenant-1.outbox"])

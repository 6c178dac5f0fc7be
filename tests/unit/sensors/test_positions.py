"""The sensor that waits until a consumer group may move: what it refuses, and what it hands over."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.sensors.positions import OutboxPositionsSensor, PositionsError
from airflow_outbox.triggers.positions import OutboxPositionsTrigger

CLUSTERS = {"primary": "kafka_east", "west": "kafka_west"}


def sensor(**options: Any) -> OutboxPositionsSensor:
    return OutboxPositionsSensor(**{"task_id": "t", "group": "g", "to": "west", "kafka_conn_ids": CLUSTERS, **options})


def test_it_hands_over_to_its_trigger() -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor(timeout=60).execute({})
    path, options = deferred.value.trigger.serialize()
    assert path == "airflow_outbox.triggers.positions.OutboxPositionsTrigger"
    assert (options["group"], options["to"], options["kafka_conn_ids"]) == ("g", "west", CLUSTERS)
    assert options["settings"] == {"positions": {"enabled": True}}
    assert options.keys() == {"group", "to", "kafka_conn_ids", "postgres_conn_id", "outbox", "settings"}
    assert OutboxPositionsTrigger(**options).serialize() == (path, options)  # as the triggerer makes it


def test_its_result_is_the_group() -> None:
    assert sensor().execute_complete({}, {"status": "ready", "group": "g"}) == "g"
    with pytest.raises(PositionsError, match="no cluster"):
        sensor().execute_complete({}, {"status": "failed", "error": "the outbox has no cluster north"})


def test_what_can_not_be_is_refused_when_the_dag_is_read() -> None:
    with pytest.raises(ConfigurationError, match="waits in the triggerer"):
        sensor(deferrable=False)
    with pytest.raises(ConfigurationError, match=r"positions\.interval"):
        sensor(settings={"positions": {"interval": -1}})

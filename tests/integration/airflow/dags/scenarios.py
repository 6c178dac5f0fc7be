"""The Dags that the tests run in a real Airflow."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_outbox.operators.stash import OutboxStashOperator
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

with DAG("drain"):
    OutboxHarvestSensor(task_id="harvest", outbox="drained", until="drained")

with DAG("forever"):
    OutboxHarvestSensor(task_id="harvest", outbox="forever", until="forever")

with DAG("misconfigured"):
    OutboxHarvestSensor(task_id="harvest", outbox="missing")

with DAG("stash"):
    OutboxStashOperator(
        task_id="stash",
        outbox="stashed",
        records=[
            {
                "topic": "{{ params.topic }}",
                "key": "a",
                "value": "{{ run_id }}",
                "headers": {"source": "{{ dag.dag_id }}"},
            },
            {"topic": "{{ params.topic }}", "key": "b"},
        ],
        sql="INSERT INTO business (run) VALUES (%(run)s)",
        parameters={"run": "{{ run_id }}"},
        version="{{ params.version }}",
        retries=1,
        retry_delay=timedelta(seconds=1),
    )

published = Asset("published", watchers=[AssetWatcher(name="outbox", trigger=OutboxHarvestTrigger(outbox="watched"))])

with DAG("watching", schedule=[published]):

    @task
    def seen(triggering_asset_events=None):
        """When and what: every publication that started this run."""
        events = triggering_asset_events[published]
        return [{"at": event.timestamp.timestamp(), **event.extra} for event in events]

    seen()

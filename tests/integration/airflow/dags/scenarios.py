"""The Dags that the tests run in a real Airflow."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_outbox.assets import outbox_asset, topic_asset
from airflow_outbox.operators.stash import OutboxStashOperator
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.sensors.positions import OutboxPositionsSensor
from airflow_outbox.sensors.published import OutboxPublishedSensor
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

with DAG("drain"):
    OutboxHarvestSensor(task_id="harvest", outbox="drained", until="drained")

with DAG("forever"):
    OutboxHarvestSensor(task_id="harvest", outbox="forever", until="forever")

with DAG("faults"):
    OutboxHarvestSensor(task_id="harvest", outbox="faulty", kafka_conn_id="kafka_backup")

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

topic = os.environ.get("OUTBOX_TESTS_TOPIC", "t")

with DAG("publish"):
    stashed = OutboxStashOperator(
        task_id="stash", outbox="published", records=[{"topic": topic, "key": "a", "value": "{{ run_id }}"}]
    )
    OutboxPublishedSensor(task_id="published", outbox="published", ticket=stashed.output)

with DAG("wait"):
    OutboxPublishedSensor(task_id="published", outbox="published", ticket="{{ params.ticket }}", params={"ticket": ""})

with DAG("move"):
    OutboxPositionsSensor(
        task_id="wait",
        group="{{ params.group }}",
        to="backup",
        kafka_conn_ids={"primary": "kafka_default", "backup": "kafka_backup"},
        outbox="moving",
        params={"group": ""},
    )

of_topic = topic_asset(f"kafka://kafka.example:9092/{topic}", outbox="published")
of_outbox = outbox_asset("outbox://db.example/shop/published", outbox="published")

with DAG("on_topic", schedule=(of_topic | of_outbox)):

    @task
    def told(triggering_asset_events=None):
        """Every publication that started this run, by asset."""
        return {
            name: [
                {"at": event.timestamp.timestamp(), **event.extra["payload"]}
                for event in triggering_asset_events[asset]
            ]
            for name, asset in (("topic", of_topic), ("outbox", of_outbox))
        }

    told()

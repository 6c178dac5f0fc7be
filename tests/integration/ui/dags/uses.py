"""Dags that use outboxes in every way."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_outbox.operators.stash import OutboxStashOperator
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

with DAG("harvesting", schedule=None):
    OutboxHarvestSensor(task_id="harvest", outbox="harvested")

with DAG("clustering", schedule=None):
    kafka = {"primary": "kafka_lost", "west": "kafka_west"}
    OutboxHarvestSensor(task_id="harvest", outbox="clustered", kafka_conn_ids=kafka)

with DAG("writing", schedule=None):
    OutboxStashOperator(task_id="stash", records=[], outbox="harvested")
    OutboxStashOperator(task_id="later", records=[], outbox="{{ params.outbox }}")
    OutboxStashOperator(task_id="lost", records=[], postgres_conn_id="unknown_connection", outbox="lost")

watched = OutboxHarvestTrigger(outbox="watched")
with DAG("watching", schedule=Asset("x://watched", watchers=[AssetWatcher(name="harvest", trigger=watched)])):
    OutboxHarvestSensor(task_id="other", outbox="harvested", postgres_conn_id="silent")

with DAG("matching", schedule=None):
    OutboxHarvestSensor(task_id="harvest", outbox=["tenant_?", "shop_?.out*"])

with DAG("lost", schedule=None):
    OutboxHarvestSensor(task_id="harvest", outbox=["lost_*"], postgres_conn_id="unknown_connection")

with DAG("without", schedule=None):
    pass

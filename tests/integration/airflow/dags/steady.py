"""Two harvests that go on for ever while triggerers come and go: one of a deferred task, one of an asset."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

# By marks in the rows, by which a witness in the database sees who does what.
SETTINGS = {"delivery": "at_least_once"}

with DAG("steady_task"):
    OutboxHarvestSensor(task_id="harvest", outbox="steady_task", until="forever", settings=SETTINGS)

trigger = OutboxHarvestTrigger(outbox="steady_asset", settings=SETTINGS)
watched = Asset("steady", watchers=[AssetWatcher(name="outbox", trigger=trigger)])

# Watched while the Dag is unpaused, and never run: the runs would take the processors that the triggerers need.
with DAG("steady_asset", schedule=watched & Asset("never")):
    EmptyOperator(task_id="nothing")

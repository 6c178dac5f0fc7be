"""The Dags whose lineage is tested; as a script it runs the one that is named, in one process and without a server."""

from __future__ import annotations

import os
import sys

from airflow.sdk import DAG, Asset

from airflow_outbox.operators.spark import OutboxSparkSubmitOperator
from airflow_outbox.operators.stash import OutboxStashOperator
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.sensors.published import OutboxPublishedSensor

TOPIC = os.environ.get("OUTBOX_TESTS_TOPIC", "t")

with DAG("ends") as ends:
    stashed = OutboxStashOperator(
        task_id="stash",
        records=[{"topic": TOPIC, "key": "a", "value": "{{ run_id }}"}],
        sql="INSERT INTO business (run) SELECT %(run)s FROM prices",
        parameters={"run": "{{ run_id }}"},
        kafka_conn_id="kafka_default",
    )
    first = OutboxHarvestSensor(task_id="first", until="drained")
    second = OutboxHarvestSensor(task_id="second", until="drained")
    stashed >> first >> second >> OutboxPublishedSensor(task_id="published", ticket=stashed.output)

with DAG("fails") as fails:
    OutboxSparkSubmitOperator(task_id="spark", application="no-such-job.py", inlets=[Asset("file:///data/flights.csv")])

if __name__ == "__main__":
    {"ends": ends, "fails": fails}[sys.argv[1]].test()

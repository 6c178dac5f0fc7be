"""A Dag of tasks whose lineage is tested; as a script it runs the Dag in this process, without a server."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG, Asset

from airflow_outbox.operators.spark import OutboxSparkSubmitOperator
from airflow_outbox.operators.stash import OutboxStashOperator
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.sensors.published import OutboxPublishedSensor

with DAG("tasks") as dag:
    stashed = OutboxStashOperator(
        task_id="stash",
        records=[{"topic": os.environ.get("OUTBOX_TESTS_TOPIC", "t"), "key": "a", "value": "{{ run_id }}"}],
        sql="INSERT INTO business (run) SELECT %(run)s FROM prices",
        parameters={"run": "{{ run_id }}"},
        kafka_conn_id="kafka_default",
    )
    first = OutboxHarvestSensor(task_id="first", until="drained")
    published = OutboxPublishedSensor(task_id="published", ticket=stashed.output)
    second = OutboxHarvestSensor(task_id="second", until="drained")
    stashed >> first >> published >> second

    flights = [Asset("file:///data/flights.csv")]
    job = str(Path(__file__).with_name("job.py"))
    second >> OutboxSparkSubmitOperator(task_id="submits", application=job, inlets=flights)
    OutboxSparkSubmitOperator(task_id="fails", application="no-such-job.py", inlets=flights)

if __name__ == "__main__":
    dag.test()

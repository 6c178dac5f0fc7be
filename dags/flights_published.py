"""The Dag `flights_published`: writes flights like the Dag `flights`, and waits until their events are in Kafka."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_outbox.operators.spark import OutboxSparkSubmitOperator
from airflow_outbox.sensors.published import OutboxPublishedSensor

HERE = Path(__file__).parent

with DAG(
    "flights_published",
    schedule=None,
    max_active_runs=1,
    params={
        "month": Param(1, type=["integer", "null"], minimum=1, maximum=12, description="of 2013; all when empty"),
        "rows": Param(None, type=["integer", "null"], minimum=1, description="only so many, the first in the file"),
    },
    doc_md=__doc__,
):
    write_flights = OutboxSparkSubmitOperator(
        task_id="write_flights",
        conn_id="spark_default",
        postgres_conn_id="flights_db",
        application=str(HERE / "flights_job.py"),
        application_args=["--month={{ params.month or '' }}", "--rows={{ params.rows or '' }}"],
        retries=1,
    )
    OutboxPublishedSensor(task_id="published", postgres_conn_id="flights_db", ticket=write_flights.output)

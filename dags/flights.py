"""The Dag `flights`: a Spark job writes a month of flights and their events, in one Postgres transaction."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_outbox.operators.spark import OutboxSparkSubmitOperator

with DAG(
    "flights",
    schedule=None,
    max_active_runs=1,  # two runs at once could interleave the events of one aircraft
    params={
        "month": Param(
            1, type=["integer", "null"], minimum=1, maximum=12, description="of 2013; all of the year when empty"
        ),
        "rows": Param(
            None, type=["integer", "null"], minimum=1, description="only so many, the first in the source file"
        ),
    },
    doc_md=__doc__,
):
    OutboxSparkSubmitOperator(
        task_id="write_flights",
        conn_id="spark_default",
        postgres_conn_id="flights_db",
        application=str(Path(__file__).with_name("flights_job.py")),
        application_args=["--month={{ params.month or '' }}", "--rows={{ params.rows or '' }}"],
        retries=1,  # safe: a run that has committed is found again and commits nothing more
    )

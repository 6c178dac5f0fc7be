"""The Dag `flights_stream`: the flights of a month as a stream of files, written batch by batch, each once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_outbox.operators.spark import OutboxSparkSubmitOperator

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("AIRFLOW_HOME", tempfile.gettempdir())) / "flights-stream"

with DAG(
    "flights_stream",
    schedule=None,
    max_active_runs=1,  # a checkpoint is for one query at a time
    params={
        "month": Param(2, type=["integer", "null"], minimum=1, maximum=12, description="of 2013; all when empty"),
        "rows": Param(None, type=["integer", "null"], minimum=1, description="only so many, the first in the file"),
    },
    doc_md=__doc__,
):
    OutboxSparkSubmitOperator(
        task_id="write_flights",
        conn_id="spark_default",
        postgres_conn_id="flights_db",
        application=str(HERE / "flights_stream_job.py"),
        py_files=str(HERE / "flights_job.py"),
        application_args=[
            "--month={{ params.month or '' }}",
            "--rows={{ params.rows or '' }}",
            f"--folder={FOLDER}",
        ],
        is_stream=True,  # its batches commit under the ids of its checkpoint, not of the task
        retries=1,
    )

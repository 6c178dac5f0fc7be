"""The Spark data source `outbox`, which writes business rows and events in one Postgres transaction.

A write is correct when one of its tasks, or the whole job, is tried again:

1. *Stage.* Each task attempt COPYs its rows into a table of its own or, where they are few, sends them with its commit
   message. A failed attempt leaves nothing. Nobody reads an attempt that Spark does not accept.
2. *Commit.* One transaction in the driver runs the job's statements for the business tables over the accepted rows, and
   fills the outbox in the job's order. It compares the counts, and enters the write's id into `<outbox>_commits`. A
   write whose id is already entered writes nothing; of two at once the second waits for the first.
3. *Sweep.* The staging tables are dropped. A later run drops what a dead run has left.

Drivers and executors need psycopg, pyarrow, numpy and this package; none needs Airflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_outbox.spark.data_source import OutboxDataSource
    from airflow_outbox.spark.registration import register
    from airflow_outbox.spark.schema_registry import schema_id_header, with_schema_id
    from airflow_outbox.values.trace_context import trace_headers

__all__ = ["OutboxDataSource", "register", "schema_id_header", "trace_headers", "with_schema_id"]


def __getattr__(name: str) -> Any:
    # Late, so that a Dag which only submits a job is read without loading Spark.
    if name == "register":
        from airflow_outbox.spark.registration import register

        return register
    if name == "OutboxDataSource":
        from airflow_outbox.spark.data_source import OutboxDataSource

        return OutboxDataSource
    if name in ("schema_id_header", "with_schema_id"):
        from airflow_outbox.spark import schema_registry

        return getattr(schema_registry, name)
    if name == "trace_headers":
        from airflow_outbox.values.trace_context import trace_headers

        return trace_headers
    raise AttributeError(f"module {__name__} has no attribute {name}")

"""Spark's room: jobs that write their business rows and their events in one Postgres transaction.

A job is correct when a task of it, or the whole job, is tried again:

1. *Stage.* Each task attempt COPYs its rows into an unlogged table of this run, tagged with the attempt's id, and the
   driver learns from Spark which attempt of each partition counts. An attempt that fails after its COPY leaves rows
   that nobody reads.
2. *Commit.* One transaction in the driver runs the job's statements for the business tables over the accepted rows,
   fills the outbox in the job's order, compares the counts, and enters the job's id and version into
   `<outbox>_commits`. A job whose id is entered already writes nothing and returns the earlier ticket; of two at once
   the second waits for the first.
3. *Sweep.* The staging table is dropped; what a dead run has left is dropped by the next run of any job.

Drivers and executors need psycopg, pyarrow and this package; neither needs Airflow.
"""

from __future__ import annotations

from airflow_outbox.spark.commit import JobCommit
from airflow_outbox.spark.job import OutboxJob

__all__ = ["JobCommit", "OutboxJob"]

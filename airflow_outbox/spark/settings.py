"""The Spark properties that `OutboxSparkSubmitOperator` passes to a job. None is secret: one names a file that is."""

from __future__ import annotations

OUTBOX_TABLE = "spark.airflowOutbox.table"
"""The outbox, `table` or `schema.table`."""

APP_ID = "spark.airflowOutbox.appId"
"""The id of the job that commits; a job that is tried again has the same."""

VERSION = "spark.airflowOutbox.version"
"""The number of that job's commit: another number repeats it on purpose."""

DATA_SOURCE_FILE = "spark.airflowOutbox.dataSourceFile"
"""A file or pipe that the driver can read, with a libpq connection string or URI in it."""

TRACEPARENT = "spark.airflowOutbox.traceparent"
"""The trace context of the task that submits the job, for all records that have none of their own."""

TRACESTATE = "spark.airflowOutbox.tracestate"
"""The second part of that context, if it has one."""

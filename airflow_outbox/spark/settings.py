"""What `OutboxSparkSubmitOperator` passes to a job as Spark properties. None is secret: one names a file that is."""

from __future__ import annotations

OUTBOX_TABLE = "spark.airflowOutbox.table"
"""The outbox, `table` or `schema.table`."""

APP_ID = "spark.airflowOutbox.appId"
"""Who commits: a job that is tried again has the same id."""

VERSION = "spark.airflowOutbox.version"
"""Which commit of that job: another number repeats it on purpose."""

DATA_SOURCE_FILE = "spark.airflowOutbox.dataSourceFile"
"""A file or pipe that the driver can read, with a libpq connection string or URI in it."""

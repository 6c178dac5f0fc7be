"""The top-level module `pyspark_outbox`, which Spark finds itself where it is installed. `format("outbox")` then works
without `register()`, for a write that names its `url`.
"""

from __future__ import annotations

from airflow_outbox.spark.data_source import OutboxDataSource as DefaultSource

__all__ = ["DefaultSource"]

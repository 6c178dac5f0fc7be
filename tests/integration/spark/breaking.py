"""A data source that breaks where a test wants it to: the real one, with a fault before or behind one of its calls.

The classes are made inside functions, so that Spark sends them to its workers whole.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from airflow_outbox.spark.batch import BatchWriter
from airflow_outbox.spark.data_source import OutboxDataSource

Fault = Callable[[], None]


def nothing() -> None:
    pass


def register_breaking(
    session: SparkSession,
    name: str,
    *,
    before_rows: Fault = nothing,
    amid_rows: Fault = nothing,
    after_rows: Fault = nothing,
    staged: Fault = nothing,
    before_commit: Fault = nothing,
    after_commit: Fault = nothing,
) -> None:
    """Make `format(name)` known.

    Faults in a task: before its first row, behind its first batch, behind its last, and when all is staged for good;
    in the driver: before and behind the commit.
    """

    for fault in (before_rows, amid_rows, after_rows, staged, before_commit, after_commit):
        cloudpickle.register_pickle_by_value(sys.modules[fault.__module__])  # workers don't have the tests

    class Writer(BatchWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            def batches() -> Iterator[Any]:
                before_rows()
                for batch in iterator:
                    yield batch.slice(0, 1)
                    amid_rows()
                    yield batch.slice(1)
                after_rows()

            message = super().write(batches())
            staged()
            return message

        def commit(self, messages: Any) -> None:
            before_commit()
            super().commit(messages)
            after_commit()

    class Breaking(OutboxDataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
            plain = super().writer(schema, overwrite)
            return Writer(plain.run, plain.layout, plain.options, plain.is_done, plain.wrote)

    session.dataSource.register(Breaking)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def first_attempt(fault: Fault, *, partition: int | None = None) -> Fault:
    """The fault, in the first attempt of each task, or only of that of a partition."""

    def fail_at_first() -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and partition in (None, context.partitionId()):
            fault()

    return fail_at_first


def fail() -> None:
    raise RuntimeError("this attempt fails")


def end_sessions(url: str) -> Fault:
    """Ends the sessions of all tasks, as a network that fails would."""

    def end() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'airflow-outbox spark task'"
            )

    return end

"""register(): makes the data source known to a Spark session."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_outbox.spark import settings
from airflow_outbox.spark.credentials import taken
from airflow_outbox.spark.data_source import OutboxDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_given: dict[str, str] = {}


def register(session: SparkSession, *, options: Mapping[str, str] | None = None) -> None:
    """Let `format("outbox")` be written to in this session, from the calling thread, too.

    Call it once, and again in every thread that writes: Spark looks for data sources in the session that is active in
    the thread. In `foreachBatch` that is `register(frame.sparkSession)`.

    `options` are defaults for all writes, also after later calls without any. They travel to drivers and executors with
    the code, never as Spark's own options, which its UI would show: give a url with a password here.

    The values that `OutboxSparkSubmitOperator` has passed to the job become defaults in the same way, except those that
    `options` name. They are `url`, `dbtable`, `txnAppId`, `txnVersion`, `traceparent` and `tracestate`. A version
    belongs to its id, a tracestate to its traceparent.

    Raises ConfigurationError when the data source was passed to the job and can't be read.
    """
    if options is not None:
        _given.clear()
        _given.update({name.lower(): value for name, value in options.items()})
    defaults = _passed(session) | _given
    session.dataSource.register(_with_defaults(defaults) if defaults else OutboxDataSource)
    _activate(session)


def _passed(session: SparkSession) -> dict[str, str]:
    """The operator's values, except those that `_given` replaces."""
    asked = {
        "dbtable": settings.OUTBOX_TABLE,
        "txnappid": settings.APP_ID,
        "txnversion": settings.VERSION,
        "traceparent": settings.TRACEPARENT,
        "tracestate": settings.TRACESTATE,
    }
    if "txnappid" in _given:
        del asked["txnversion"]
    if "traceparent" in _given:
        del asked["tracestate"]
    passed = {option: value for option, name in asked.items() if (value := session.conf.get(name, None))}
    file = session.conf.get(settings.DATA_SOURCE_FILE, None)
    if file and "url" not in _given:
        passed["url"] = _data_source(file)
    return passed


def _with_defaults(defaults: dict[str, str]) -> type[OutboxDataSource]:
    class Configured(OutboxDataSource):
        """A class that can't be imported by name, so it is sent to other processes whole."""

    Configured.defaults = defaults
    Configured.written = _notes()
    return Configured


def _activate(session: Any) -> None:
    """Make the session the active one in this thread. A Connect session always is."""
    if hasattr(session, "_jsparkSession"):
        session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@cache
def _data_source(file: str) -> str:
    """The content of the pipe, which can be read only once."""
    return taken(file)


@cache
def _notes() -> Path:
    folder = tempfile.mkdtemp(prefix="airflow-outbox-written-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)

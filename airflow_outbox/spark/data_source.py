"""The data source `outbox`: `df.write.format("outbox")` and `df.writeStream.format("outbox")`.

A write goes through these states:

- *Planned*: Spark asks for the writer, in a process beside the driver. It looks at the outbox and, for a batch write,
  for an earlier commit of the same id.
- *Staged*: task attempts stage, as often as Spark likes.
- *Committed*: Spark hands one message a partition to `commit()`, in another process, which commits them in one
  transaction. Or Spark calls `abort()`, also after a `commit()` that failed or whose end it has not seen.

In every state, rows become visible in the outbox by that one transaction only. It also enters the id, and under an
entered id nothing is committed again. So neither `abort()` nor a second try need to know how far the first one got.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.spark.batch import BatchWriter, batch_writer
from airflow_outbox.spark.options import WriteOptions, read_options
from airflow_outbox.spark.stream import StreamWriter, stream_writer

_SPARKS_OWN = ("checkpointlocation", "queryname")  # options of a stream that Spark passes on to the sink


class OutboxDataSource(DataSource):
    """Writes a DataFrame's rows as records of an outbox, once. `register()` makes it known to a session."""

    defaults: ClassVar[Mapping[str, str]] = {}
    """Options that `register()` took from the session's settings; options of the write itself win."""

    written: ClassVar[Path | None] = None
    """A folder of the driver's for notes of which session ids have been committed under."""

    @classmethod
    def name(cls) -> str:
        return "outbox"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        _require_append(overwrite)
        given = {name.lower() for name in self.options}
        options = self._options()
        wrote = None
        if options.commit_id is not None and self.written is not None and "txnappid" not in given:
            name = hashlib.sha256(repr(options.commit_id).encode()).hexdigest()
            wrote = self.written / name
        return batch_writer(schema, options, wrote=wrote)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        _require_append(overwrite)
        return stream_writer(schema, self._options(with_commit_id=False))

    def _options(self, *, with_commit_id: bool = True) -> WriteOptions:
        defaults = {name.lower(): value for name, value in self.defaults.items()}
        given = {name.lower(): value for name, value in self.options.items() if name.lower() not in _SPARKS_OWN}
        if not with_commit_id or "txnappid" in given:  # a version belongs to its id
            for name in ("txnappid", "txnversion"):
                defaults.pop(name, None)
        if "traceparent" in given:
            defaults.pop("tracestate", None)
        return read_options(defaults | given)


def _require_append(overwrite: bool) -> None:
    if overwrite:
        raise ConfigurationError(
            'an outbox only takes appends. Write with mode("append"); write a stream with outputMode("append")'
        )

"""CloudEvents from columns: `ce_id`, `ce_source`, `ce_type` and others become headers, by whole columns.

The binary mode of the Kafka protocol binding. The value stays as it is. The other columns go their usual way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.spark.options import WriteOptions
from airflow_outbox.spark.validation import Problem
from airflow_outbox.stash.cloud_events import ATTRIBUTE, CONTENT_TYPE, JSON, PREFIX, REQUIRED, SPECVERSION

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_CONTENT_TYPE_COLUMN = f"{PREFIX}datacontenttype"
_TYPES = frozenset({"string", "boolean", "tinyint", "smallint", "int", "timestamp"})


def with_headers(schema: StructType, options: WriteOptions) -> tuple[StructType, WriteOptions]:
    """Return the schema of a frame's events, which ends with `headers`, and the options for it.

    Raises ConfigurationError, which names the column.
    """
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    for name in REQUIRED:
        if f"{PREFIX}{name}" not in schema.fieldNames():
            raise ConfigurationError(f"column {PREFIX}{name} is missing, which a CloudEvent needs. Add it")
    for column in _columns(schema.fieldNames()):
        kind = schema[column].dataType.simpleString()
        if not ATTRIBUTE.fullmatch(column.removeprefix(PREFIX)) or column == f"{PREFIX}specversion":
            raise ConfigurationError(
                f"column {column} can't be an attribute of a CloudEvent: behind {PREFIX} give lower-case letters and "
                "digits; specversion is written without a column"
            )
        if kind not in _TYPES:
            raise ConfigurationError(f"column {column} is {kind}. Cast it to {', '.join(sorted(_TYPES))}")
    others = [field for field in schema.fields if field.name != "headers"]
    pair = StructType([StructField("key", StringType()), StructField("value", StringType())])
    headers = StructField("headers", ArrayType(pair))
    if "headers" in schema.fieldNames() and options.headers is None:
        headers = schema["headers"]
    return StructType([*others, headers]), replace(options, headers=None)


def with_events(batch: pyarrow.RecordBatch, options: WriteOptions) -> pyarrow.RecordBatch:
    """Return a batch with the attributes in its last column, `headers`, behind those that a row has."""
    own, kind = None, pyarrow.string()
    if "headers" in batch.schema.names:
        own = batch.column("headers") if options.headers is None else None
        batch = batch.drop_columns("headers")
    if own is not None:
        kind = own.type.value_type.field("value").type
    constant = dict(options.headers or ())
    texts = {name: pyarrow.scalar(value) for name, value in constant.items()}
    texts |= {PREFIX + "specversion": pyarrow.scalar(SPECVERSION)}
    texts |= {name: _text(batch.column(name)) for name in _columns(batch.schema.names) if name != _CONTENT_TYPE_COLUMN}
    texts[CONTENT_TYPE] = _content_type(batch)
    headers = _pairs(texts, rows=batch.num_rows, kind=kind)
    return batch.append_column("headers", headers if own is None else _joined(own, headers))


def event_problem(batch: pyarrow.RecordBatch) -> Problem | None:
    """The first row that lacks an attribute which every event needs."""

    def problems() -> Iterator[Problem]:
        for column in (f"{PREFIX}{name}" for name in REQUIRED):
            texts = batch.column(column).cast(pyarrow.string())
            row = pc.index(pc.equal(pc.fill_null(texts, ""), ""), True).as_py()
            if row >= 0:
                yield Problem(row, column, "null or empty, but a CloudEvent needs it")

    return min(problems(), key=lambda problem: problem.row, default=None)


def _columns(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(PREFIX)]


def _text(array: Any) -> Any:
    if pyarrow.types.is_timestamp(array.type):  # an instant: going by the number needs no table of time zones
        instants = array.cast(pyarrow.int64()).cast(pyarrow.timestamp(array.type.unit))
        return pc.strftime(instants, format="%Y-%m-%dT%H:%M:%SZ")
    return array.cast(pyarrow.string())


def _content_type(batch: pyarrow.RecordBatch) -> Any:
    """The type of each row's data, if it has any: its own, or else JSON."""
    has_data = pc.is_valid(batch.column("value"))
    if _CONTENT_TYPE_COLUMN in batch.schema.names:
        return pc.if_else(has_data, pc.fill_null(_text(batch.column(_CONTENT_TYPE_COLUMN)), JSON), None)
    return pc.if_else(has_data, pyarrow.scalar(JSON), pyarrow.scalar(None, pyarrow.string()))


def _pairs(texts: dict[str, Any], *, rows: int, kind: pyarrow.DataType) -> Any:
    """A list of pairs for each row, without those whose value is null."""
    columns = [pyarrow.repeat(text, rows) if isinstance(text, pyarrow.Scalar) else text for text in texts.values()]
    # One column after the other, taken row by row.
    by_row = pyarrow.array(numpy.arange(rows * len(columns)).reshape(len(columns), rows).T.ravel())
    values = pyarrow.concat_arrays(columns).take(by_row)
    names = pyarrow.array(list(texts)).take(pyarrow.array(numpy.tile(numpy.arange(len(columns)), rows)))
    there = pc.is_valid(values)
    counts = there.to_numpy(zero_copy_only=False).reshape(rows, len(columns)).sum(axis=1)
    flat = [names.filter(there), values.filter(there).cast(kind)]
    return _lists(counts, pyarrow.StructArray.from_arrays(flat, names=["key", "value"]))


def _joined(first: Any, second: Any) -> Any:
    """For each row the elements of both lists; a null list has none."""
    flat = [pc.list_flatten(first), pc.list_flatten(second)]
    rows = numpy.concatenate([pc.list_parent_indices(lists).to_numpy() for lists in (first, second)])
    together = pyarrow.concat_arrays([flat[0], flat[1].cast(flat[0].type)])
    counts = numpy.bincount(rows, minlength=len(first))
    return _lists(counts, together.take(pyarrow.array(numpy.argsort(rows, kind="stable"))))


def _lists(counts: Any, elements: Any) -> Any:
    ends = numpy.concatenate([[0], numpy.cumsum(counts)]).astype(numpy.int32)
    return pyarrow.ListArray.from_arrays(pyarrow.array(ends), elements)

"""The rules of Kafka and the outbox for records, checked by whole columns before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.compute as pc

from airflow_outbox.spark.copy_text import moment
from airflow_outbox.spark.options import TOPIC_RULE, is_legal_topic
from airflow_outbox.spark.staged_columns import StagedColumn, StagedColumns

_SHOWN = 40
_FIRST, _LAST = "-4713-11-24", "5874897-12-31"  # of Postgres' dates


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that can't be written: its row (counted from 0 in the batch), the column, and the rule it breaks."""

    row: int
    column: str
    rule: str


def first_problem(batch: pyarrow.RecordBatch, layout: StagedColumns) -> Problem | None:
    """The first row of a batch that breaks a rule, if any."""
    found = [
        problem for column in layout.sent for problem in _problems(batch.column(column.place), column) if batch.num_rows
    ]
    return min(found, key=lambda problem: problem.row, default=None)


def _problems(array: Any, column: StagedColumn) -> Iterator[Problem]:
    if column.part != "whole":
        yield from _header_problems(array, column)
        return
    if problem := _not_text(array, column):
        yield problem
        return
    if (row := _first(_out_of_range(array))) >= 0:
        yield Problem(row, column.name, "Postgres' dates and times go from 4714-11-24 BC to 5874897-12-31")
    if column.name in ("topic", "key") and array.null_count:
        yield Problem(_first(pc.is_null(array)), column.name, "null, but the outbox needs a value")
    if column.name == "topic":
        names = pc.unique(array.drop_null())
        illegal = [name for name in names.to_pylist() if not is_legal_topic(name)]
        if illegal:
            row = _first(pc.is_in(array, value_set=pyarrow.array(illegal, array.type)))
            yield Problem(row, "topic", f"{_shown(array[row].as_py())} {TOPIC_RULE}")
    if column.name == "partition":
        row = _first(pc.less(array, 0))
        if row >= 0:
            yield Problem(row, "partition", f"{array[row].as_py()}, but a partition is 0 or more")
    if column.max_length is not None:
        lengths = pc.utf8_length(_as_text(array))
        row = _first(pc.greater(lengths, column.max_length))
        if row >= 0:
            yield Problem(
                row,
                column.name,
                f"{lengths[row].as_py()} characters; the outbox's column takes at most {column.max_length}",
            )


def _header_problems(array: Any, column: StagedColumn) -> Iterator[Problem]:
    parents, flat = pc.list_parent_indices(array), pc.list_flatten(array)
    if len(flat) == 0:
        return
    part, element = ("name", "key") if column.part == "header names" else ("value", "value")
    values = flat.field(element)
    missing = pc.or_kleene(pc.is_null(values), pc.is_null(flat))
    if part == "name":
        missing = pc.or_kleene(missing, pc.fill_null(pc.equal(values, pyarrow.scalar("", values.type)), False))
    if (place := _first(missing)) >= 0:
        yield Problem(parents[place].as_py(), "headers", f"a header has no {part}")
    elif problem := _not_text(values, column):
        yield Problem(parents[problem.row].as_py(), "headers", problem.rule)


def _not_text(array: Any, column: StagedColumn) -> Problem | None:
    """The first value of a text column that Postgres can't hold as text: not UTF-8, or with a zero character."""
    kind = array.type
    if column.type.startswith("bytea") or not (_is_string(kind) or _is_binary(kind)):
        return None
    raw = array.cast(
        pyarrow.large_binary() if kind in (pyarrow.large_string(), pyarrow.large_binary()) else pyarrow.binary()
    )
    try:
        raw.cast(pyarrow.string() if raw.type == pyarrow.binary() else pyarrow.large_string())
    except pyarrow.ArrowInvalid:
        row = next(row for row, value in enumerate(raw.to_pylist()) if value is not None and not _is_utf8(value))
        return Problem(row, column.name, "not UTF-8, but the outbox's column holds text")
    content = raw.buffers()[2]
    if content is not None and b"\0" in content.to_pybytes():
        row = next((row for row, value in enumerate(raw.to_pylist()) if value is not None and b"\0" in value), -1)
        if row >= 0:
            return Problem(row, column.name, "has a NUL character, which Postgres' text can't hold")
    return None


def _out_of_range(array: Any) -> Any:
    """Which dates and times Postgres can't hold. A time of Spark's can't be too late for it."""
    kind = array.type
    if pyarrow.types.is_date32(kind):
        days = array.cast(pyarrow.int32())
        return pc.or_(pc.less(days, moment(_FIRST, "D")), pc.greater(days, moment(_LAST, "D")))
    if pyarrow.types.is_timestamp(kind):
        return pc.less(array.cast(pyarrow.int64()), moment(_FIRST, kind.unit))
    return pyarrow.array([], pyarrow.bool_())


def _as_text(array: Any) -> Any:
    return array.cast(pyarrow.string()) if _is_binary(array.type) else array


def _is_string(kind: Any) -> bool:
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def _is_binary(kind: Any) -> bool:
    return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _first(mask: Any) -> int:
    """The place of the first true value; -1 when there is none."""
    return int(pc.index(mask, True).as_py())


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")

"""Arrow batches as the text that COPY reads, made by whole columns, with no Python code for each row.

Text beats COPY's binary format here: one call joins columns of text. A binary row has lengths between its fields, and
no such call makes them.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_outbox.spark.staged_columns import StagedColumn, StagedColumns
from airflow_outbox.values.trace_context import TRACEPARENT, TRACESTATE

_ESCAPED = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_QUOTED = (("\\", "\\\\"), ('"', '\\"'))
PIECE_BYTES = 1_048_576
Unit = Literal["D", "s", "ms", "us", "ns"]
"""Units in which Arrow counts dates and times, as numpy calls them."""
_END = 2**31 - 1  # of any text
_MOST_BYTES = 268_435_456  # of a batch at once: an Arrow string holds 2 GiB, and bytes become twice as long


def copy_lines(batch: pyarrow.RecordBatch, layout: StagedColumns) -> list[bytes]:
    """The lines of a batch's rows with all columns that the layout sends; several texts where the batch is large."""
    if batch.num_rows == 0:
        return []
    if batch.nbytes > _MOST_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        return copy_lines(batch.slice(0, half), layout) + copy_lines(batch.slice(half), layout)
    columns = [_replaced(column_text(batch.column(column.place), column), _ESCAPED) for column in layout.sent]
    if layout.is_text:
        columns = [*_constants(layout), *columns]
    rows = pc.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement="\\N")
    return [_content(pc.binary_join_element_wise(rows, "", "\n"))]


def pieces(text: bytes) -> Iterator[bytes]:
    """A text in pieces of whole lines, each at most a MiB where its lines allow that."""
    start = 0
    while len(text) - start > PIECE_BYTES:
        end = text.rfind(b"\n", start, start + PIECE_BYTES) + 1 or text.index(b"\n", start) + 1
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _constants(layout: StagedColumns) -> list[str]:
    dates = ["now"] if layout.dates else []
    texts = (
        _replaced(_text(pyarrow.array([value]), as_bytes=kind.startswith("bytea")), _ESCAPED)
        for kind, value in layout.constant.values()
    )
    return [*dates, *(text[0].as_py() for text in texts)]


def column_text(array: Any, column: StagedColumn) -> Any:
    """A column in the text form of its Postgres type, not yet escaped; null is null."""
    if column.part != "whole":
        name = "key" if column.part == "header names" else "value"
        lists, flat = split_lists(array)
        of_part = flat.field(name) if len(flat) else pyarrow.array([], pyarrow.string())
        literals = _array_literals(lists, _text(of_part, as_bytes=column.type.startswith("bytea")))
        literals = pc.fill_null(literals, "{}")
        return _with_added(literals, array, column) if column.added else literals
    return _text(array, as_bytes=column.type.startswith("bytea"))


def _with_added(literals: Any, array: Any, column: StagedColumn) -> Any:
    """The literals of `array`'s lists with the column's `added` elements, except for rows with a trace context."""
    elements = _text(pyarrow.array(column.added, pyarrow.string()), as_bytes=column.type.startswith("bytea"))
    added = _array_literals(pyarrow.array([len(column.added)]), elements)[0].as_py()
    behind = pc.binary_replace_slice(literals, -1, _END, "," + added[1:])
    _, flat = split_lists(array)
    names = flat.field("key") if len(flat) else pyarrow.array([], pyarrow.string())
    is_own = pc.is_in(names, value_set=pyarrow.array([TRACEPARENT, TRACESTATE], names.type))
    owners = pc.list_parent_indices(array).filter(is_own)
    has_own = pc.is_in(pyarrow.array(numpy.arange(len(array)), owners.type), value_set=owners)
    return pc.if_else(has_own, literals, pc.if_else(pc.equal(literals, "{}"), added, behind))


def split_lists(array: Any) -> tuple[Any, Any]:
    """The lengths of an array's lists (null for a null list), and all their elements."""
    return pc.list_value_length(array), pc.list_flatten(array)


def _text(array: Any, *, as_bytes: bool = False) -> Any:
    kind = array.type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        lengths, flat = split_lists(array)
        return _array_literals(lengths, _text(flat, as_bytes=as_bytes))
    if as_bytes:
        return _hex(array.cast(pyarrow.binary()))
    if pyarrow.types.is_date32(kind):
        return _moments(array.cast(pyarrow.int32()).cast(pyarrow.int64()), kind, unit="D")
    if pyarrow.types.is_timestamp(kind):
        # Spark sends instants. Going by the number needs no table of time zones.
        zone = "" if kind.tz is None else "+00"
        return _moments(array.cast(pyarrow.int64()), pyarrow.timestamp(kind.unit), unit=kind.unit, zone=zone)
    return array.cast(pyarrow.string())


def _moments(numbers: Any, kind: pyarrow.DataType, *, unit: Unit, zone: str = "") -> Any:
    """Dates, or times, as Postgres reads them. Arrow writes those of our calendar's four-digit years."""
    within = pc.and_(*(pc.greater_equal(numbers, moment("0001", unit)), pc.less(numbers, moment("10000", unit))))
    plain = pc.if_else(within, numbers, None)
    plain = plain.cast(pyarrow.int32()) if unit == "D" else plain
    texts = pc.binary_join_element_wise(plain.cast(kind).cast(pyarrow.string()), zone, "")
    if pc.all(within).as_py() is not False:
        return texts
    odd = pc.if_else(within, None, numbers).to_pylist()
    return pc.coalesce(texts, pyarrow.array([_odd_moment(number, unit, zone) for number in odd], pyarrow.string()))


def moment(text: str, unit: Unit) -> int:
    """A date as a number of days, or of other units, since 1970. A year 0 comes before the year 1."""
    return int(numpy.datetime64(text, unit).astype(numpy.int64))


def _odd_moment(number: int | None, unit: Unit, zone: str) -> str | None:
    """A moment before the year 1, which Postgres counts as BC, without a year 0; or after the year 9999."""
    if number is None:
        return None
    year, month, rest = str(numpy.datetime64(number, unit)).rsplit("-", 2)
    after = f"-{month}-{rest.replace('T', ' ')}{zone}"
    return f"{int(year):04}{after}" if int(year) > 0 else f"{1 - int(year):04}{after} BC"


def _array_literals(lengths: Any, elements: Any) -> Any:
    """`{"a","b",NULL}` for each list."""
    quoted = pc.binary_join_element_wise('"', _replaced(elements, _QUOTED), '"', "")
    ends = numpy.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), dtype=numpy.int32)
    offsets = pyarrow.array(numpy.concatenate([numpy.zeros(1, numpy.int32), ends]))
    joined = pc.binary_join(pyarrow.ListArray.from_arrays(offsets, pc.fill_null(quoted, "NULL")), ",")
    return pc.if_else(pc.is_valid(lengths), pc.binary_join_element_wise("{", joined, "}", ""), None)


def _hex(array: Any) -> Any:
    r"""`\x00ff` for each value, by one call for all: the digits of the whole buffer, cut at twice the offsets."""
    compact = pyarrow.concat_arrays([array])
    _, offsets, content = compact.buffers()
    places = numpy.frombuffer(offsets, numpy.int32)[compact.offset : compact.offset + len(compact) + 1]
    digits = b"" if content is None else binascii.hexlify(content)
    twice = pyarrow.py_buffer((places * 2).astype(numpy.int32))
    text = pyarrow.StringArray.from_buffers(len(compact), twice, pyarrow.py_buffer(digits))
    return pc.if_else(pc.is_valid(array), pc.binary_join_element_wise("\\x", text, ""), None)


def _replaced(array: Any, replacements: Sequence[tuple[str, str]]) -> Any:
    """Each text with some characters replaced. Most of them occur nowhere, which a look through the buffer tells."""
    content = array.buffers()[2]
    seen = b"" if content is None else content.to_pybytes()
    for found, written in replacements:
        if found.encode() in seen:
            array = pc.replace_substring(array, found, written)
    return array


def _content(array: Any) -> bytes:
    """All texts of an array, one after the other."""
    _, offsets, content = array.buffers()
    places = numpy.frombuffer(offsets, numpy.int32)
    first, last = int(places[array.offset]), int(places[array.offset + len(array)])
    return bytes(memoryview(content)[first:last])

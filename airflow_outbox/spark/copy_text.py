"""Arrow batches as the text that COPY reads: made by whole columns, with no Python code for each row.

Text beats COPY's binary format here: joining columns of text is one call, and a binary row has lengths between its
fields that no such call makes.
"""

from __future__ import annotations

import binascii
from typing import Any

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_outbox.spark.layout import Layout, StagedColumn

_SPECIAL = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_MOST_BYTES = 268_435_456  # of a batch at once: an Arrow string holds 2 GiB, and bytes become twice as long


def copy_lines(batch: pyarrow.RecordBatch, layout: Layout) -> list[bytes]:
    """The lines of a batch's rows, all columns that the layout sends; several texts where the batch is large."""
    if batch.num_rows == 0:
        return []
    if batch.nbytes > _MOST_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        return copy_lines(batch.slice(0, half), layout) + copy_lines(batch.slice(half), layout)
    columns = [_escaped(column_text(batch.column(column.place), column)) for column in layout.sent]
    rows = pc.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement="\\N")
    return [_content(pc.binary_join_element_wise(rows, "", "\n"))]


def column_text(array: Any, column: StagedColumn) -> Any:
    """A column as Postgres reads its type, not yet escaped; null is null."""
    if column.part != "whole":
        name = "key" if column.part == "header names" else "value"
        lists, flat = split_lists(array)
        of_part = flat.field(name) if len(flat) else pyarrow.array([], pyarrow.string())
        literals = _array_literals(lists, _text(of_part, as_bytes=column.type.startswith("bytea")))
        return pc.fill_null(literals, "{}")
    return _text(array, as_bytes=column.type.startswith("bytea"))


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
    if pyarrow.types.is_timestamp(kind) and kind.tz is not None:
        # Spark sends instants; by way of the number, as no time zone's table is needed then.
        instants = array.cast(pyarrow.int64()).cast(pyarrow.timestamp(kind.unit))
        return pc.binary_join_element_wise(instants.cast(pyarrow.string()), "Z", "")
    return array.cast(pyarrow.string())


def _array_literals(lengths: Any, elements: Any) -> Any:
    """`{"a","b",NULL}` for each list."""
    for found, written in (("\\", "\\\\"), ('"', '\\"')):
        if _has(elements, found):
            elements = pc.replace_substring(elements, found, written)
    quoted = pc.fill_null(pc.binary_join_element_wise('"', elements, '"', ""), "NULL")
    ends = numpy.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), dtype=numpy.int32)
    offsets = pyarrow.array(numpy.concatenate([numpy.zeros(1, numpy.int32), ends]))
    joined = pc.binary_join(pyarrow.ListArray.from_arrays(offsets, quoted), ",")
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


def _escaped(array: Any) -> Any:
    for found, written in _SPECIAL:
        if _has(array, found):
            array = pc.replace_substring(array, found, written)
    return array


def _has(array: Any, character: str) -> bool:
    """Whether a character may be in a text: one look through the whole buffer, most often in vain."""
    content = array.buffers()[2]
    return content is not None and character.encode() in content.to_pybytes()


def _content(array: Any) -> bytes:
    """All texts of an array, one behind the other."""
    _, offsets, content = array.buffers()
    places = numpy.frombuffer(offsets, numpy.int32)
    first, last = int(places[array.offset]), int(places[array.offset + len(array)])
    return bytes(memoryview(content)[first:last])

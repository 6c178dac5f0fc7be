"""Arrow batches as COPY reads them, and the rules that come before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_outbox.spark.copy_text import PIECE_BYTES, copy_lines, pieces
from airflow_outbox.spark.staged_columns import StagedColumn, StagedColumns
from airflow_outbox.spark.validation import first_problem

HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
ADDED = {"traceparent": b"00-ab-cd-01", "tracestate": b'{a,"b"}=\\'}
LAYOUT = StagedColumns(
    (
        StagedColumn("key", "varchar(100)", 0, max_length=100),
        StagedColumn("value", "bytea", 1),
        StagedColumn("header_keys", "text[]", 2, "header names"),
        StagedColumn("header_values", "bytea[]", 2, "header values"),
    )
)
TRACED = replace(
    LAYOUT,
    sent=(
        *LAYOUT.sent[:2],
        replace(LAYOUT.sent[2], added=tuple(ADDED)),
        replace(LAYOUT.sent[3], added=tuple(value.decode() for value in ADDED.values())),
    ),
)
_ESCAPES = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
ZERO = "has a NUL character, which Postgres' text can't hold"
keys = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=100)
names = st.just("traceparent") | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=5
)
headers = st.none() | st.lists(st.fixed_dictionaries({"key": names, "value": st.binary(max_size=5)}), max_size=3)
rows = st.lists(st.tuples(keys, st.none() | st.binary(max_size=20), headers), max_size=20)


def batch_of(given: list[tuple[Any, ...]]) -> pyarrow.RecordBatch:
    columns = list(zip(*given, strict=True)) or [(), (), ()]
    kinds = (pyarrow.string(), pyarrow.binary(), HEADERS)
    arrays = [pyarrow.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, names=["key", "value", "headers"])


def unescaped(field: str) -> str | None:
    """A field as COPY understands it."""
    if field == "\\N":
        return None
    text, place = "", 0
    while place < len(field):
        if field[place] == "\\":
            place += 1
            text += _ESCAPES[field[place]]
        else:
            text += field[place]
        place += 1
    return text


def elements(literal: str | None) -> list[str]:
    """The elements of an array literal, all of them quoted."""
    assert literal is not None
    assert (literal[0], literal[-1]) == ("{", "}")
    found, place = [], 1
    while literal[place] != "}":
        assert literal[place] == '"'
        place, text = place + 1, ""
        while literal[place] != '"':
            place += literal[place] == "\\"
            text += literal[place]
            place += 1
        found.append(text)
        place += 1
        place += literal[place] == ","
    return found


def as_bytes(text: str | None) -> bytes | None:
    assert text is None or text.startswith("\\x")
    return None if text is None else bytes.fromhex(text[2:])


def written(given: list[tuple[Any, ...]], layout: StagedColumns, *, skipped: int) -> list[tuple[Any, ...]]:
    """The rows as Postgres reads them, when `skipped` others stand before them in the batch's buffers."""
    other = ("skipped", b"skipped", [{"key": "tracestate", "value": b""}])
    batch = batch_of([other] * skipped + given).slice(skipped)
    assert first_problem(batch, layout) is None
    text = b"".join(copy_lines(batch, layout)).decode()
    read = []
    for line in text.split("\n")[:-1]:
        key, value, header_keys, header_values = (unescaped(field) for field in line.split("\t"))
        pairs = zip(elements(header_keys), map(as_bytes, elements(header_values)), strict=True)
        read.append((key, as_bytes(value), [{"key": name, "value": value} for name, value in pairs]))
    assert text.count("\n") == len(given)
    return read


@settings(deadline=None, max_examples=300)
@given(rows, st.integers(0, 5))
def test_what_is_read_is_what_was_written(given: list[tuple[Any, ...]], skipped: int) -> None:
    assert written(given, LAYOUT, skipped=skipped) == [(key, value, headers or []) for key, value, headers in given]


@settings(deadline=None, max_examples=300)
@given(rows, st.integers(0, 5))
def test_a_trace_context_stands_behind_the_headers_of_rows_without_one(
    given: list[tuple[Any, ...]], skipped: int
) -> None:
    context = [{"key": name, "value": value} for name, value in ADDED.items()]

    def traced(headers: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        has_own = any(header["key"] in ADDED for header in headers or ())
        return (headers or []) + ([] if has_own else context)

    assert written(given, TRACED, skipped=skipped) == [(key, value, traced(headers)) for key, value, headers in given]


def test_constants_stand_first_and_the_time_before_them() -> None:
    constant = {"topic": ("varchar", "a\tb"), "header_keys": ("text[]", ["x"]), "header_values": ("bytea[]", [b"\0"])}
    layout = StagedColumns((StagedColumn("value", "text", 1),), constant, is_text=True, dates=True)
    assert copy_lines(batch_of([("k", b"v", None)]), layout) == [b'now\ta\\tb\t{"x"}\t{"\\\\\\\\x00"}\tv\n']
    assert layout.text_columns == [
        *("create_time", "kafka_topic", "kafka_header_keys", "kafka_header_values", "kafka_value")
    ]


@pytest.mark.parametrize(
    "lengths", [[1], [PIECE_BYTES * 2], [PIECE_BYTES - 1] * 3, [10] * 300_000, [3 * PIECE_BYTES, 5]]
)
def test_pieces_are_whole_lines(lengths: list[int]) -> None:
    text = b"".join(b"x" * (length - 1) + b"\n" for length in lengths)
    found = list(pieces(text))
    assert b"".join(found) == text
    assert all(piece.endswith(b"\n") for piece in found)
    assert all(len(piece) <= PIECE_BYTES or piece.count(b"\n") == 1 for piece in found)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ((None, b"", None), ("key", "null, but the outbox needs a value")),
        (("k" * 101, b"", None), ("key", "101 characters; the outbox's column takes at most 100")),
        (("k", b"", [{"key": None, "value": b""}]), ("headers", "a header has no name")),
        (("k", b"", [{"key": "", "value": b""}]), ("headers", "a header has no name")),
        (("k", b"", [{"key": "a", "value": b""}, {"key": "b", "value": None}]), ("headers", "a header has no value")),
        (
            ("k", b"", [{"key": "a\0", "value": b""}]),
            ("headers", ZERO),
        ),
        (("k", b"", [None]), ("headers", "a header has no name")),
    ],
)
def test_the_first_unfit_row_is_found(row: tuple[Any, ...], problem: tuple[str, str]) -> None:
    fit = ("k", b"v", [{"key": "h", "value": b""}, {"key": "h", "value": b""}])
    batch = batch_of([("skipped", b"", None), fit, fit, row, row]).slice(1)
    found = first_problem(batch, LAYOUT)
    assert found is not None
    assert (found.row, found.column, found.rule) == (2, *problem)


DATES = [
    (-719_563, "0002-11-27 BC"),  # there is no year 0
    (-719_163, "0001-12-31 BC"),
    (-719_162, "0001-01-01"),
    (2_932_896, "9999-12-31"),
    (2_932_897, "10000-01-01"),
    (20_000_000, "56728-02-22"),
    (None, "\\N"),
]


@pytest.mark.parametrize("more", [0, 3])
def test_dates_of_other_years_than_those_with_four_digits(more: int) -> None:
    numbers = [number for number, _ in DATES for _ in range(1 + more)]
    array = pyarrow.array(numbers, pyarrow.int32()).cast(pyarrow.date32())
    assert lines_of(array, "date") == [text for _, text in DATES for _ in range(1 + more)]


@pytest.mark.parametrize(("zone", "suffix"), [("UTC", "+00"), (None, "")])
def test_times_of_other_years(zone: str | None, suffix: str) -> None:
    moments = [-62_135_596_800_000_001, -70_000_000_000_000_000, 0, 2**63 - 1]
    array = pyarrow.array(moments, pyarrow.int64()).cast(pyarrow.timestamp("us", zone))
    assert lines_of(array, "timestamp") == [
        f"0001-12-31 23:59:59.999999{suffix} BC",
        f"0250-10-15 19:33:20.000000{suffix} BC",
        f"1970-01-01 00:00:00.000000{suffix}",
        f"294247-01-10 04:00:54.775807{suffix}",
    ]


def lines_of(array: Any, kind: str) -> list[str]:
    batch = pyarrow.RecordBatch.from_arrays([array], names=["moment"])
    layout = StagedColumns((StagedColumn("moment", kind, 0),))
    return b"".join(copy_lines(batch, layout)).decode().splitlines()


@pytest.mark.parametrize(("number", "fits"), [(-2_440_588, True), (-2_440_589, False), (2_145_042_906, False)])
def test_dates_that_postgres_can_not_hold(number: int, fits: bool) -> None:
    array = pyarrow.array([0, number], pyarrow.int32()).cast(pyarrow.date32())
    batch = pyarrow.RecordBatch.from_arrays([array], names=["day"])
    problem = first_problem(batch, StagedColumns((StagedColumn("day", "date", 0),)))
    assert (problem is None) is fits
    assert problem is None or (problem.row == 1 and "4714-11-24 BC" in problem.rule)

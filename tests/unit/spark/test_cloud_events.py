"""Columns of attributes as lists of headers, by whole columns, as they would be made row by row."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.spark.cloud_events import event_problem, with_events, with_headers
from airflow_outbox.spark.options import WriteOptions
from airflow_outbox.spark.validation import Problem

OPTIONS = WriteOptions(data_source="", outbox=OutboxName.parse("outbox"), are_cloud_events=True)
HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
texts = st.text(min_size=1, max_size=3)
own = st.none() | st.lists(st.tuples(texts, st.binary(max_size=2)), max_size=2)
rows = st.lists(st.tuples(st.none() | texts, texts, st.none() | st.booleans(), st.none() | texts, own), max_size=6)


@given(rows)
@settings(max_examples=60)
def test_each_row_has_its_own_headers_and_those_of_the_event(given: list[tuple[Any, ...]]) -> None:
    columns = list(zip(*given, strict=True)) or [()] * 5
    pairs = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in columns[4]]
    batch = pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.array(pairs, HEADERS),
            pyarrow.array(columns[0], pyarrow.string()),
            pyarrow.array(columns[1], pyarrow.string()),
            pyarrow.array(columns[2], pyarrow.bool_()),
            pyarrow.array(columns[3], pyarrow.string()),
        ],
        names=["headers", "value", "ce_id", "ce_test", "ce_datacontenttype"],
    )
    made = with_events(batch, OPTIONS)
    assert made.schema.names == ["value", "ce_id", "ce_test", "ce_datacontenttype", "headers"]
    told = [[(pair["key"], pair["value"]) for pair in each] for each in made.column("headers").to_pylist()]
    assert told == [
        [
            *(headers or []),
            ("ce_specversion", b"1.0"),
            ("ce_id", number.encode()),
            *([] if test is None else [("ce_test", str(test).lower().encode())]),
            *([] if value is None else [("content-type", (kind or "application/json").encode())]),
        ]
        for value, number, test, kind, headers in given
    ]


def test_the_first_row_that_lacks_an_attribute_is_named() -> None:
    columns = {"ce_id": ["1", "2", None], "ce_source": ["s", "", "s"], "ce_type": ["t", "t", "t"]}
    batch = pyarrow.RecordBatch.from_pydict(columns)
    assert event_problem(batch) == Problem(1, "ce_source", "null or empty, but a CloudEvent needs it")
    assert event_problem(batch.slice(0, 1)) is None


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("ce_my_id", "string", "column ce_my_id can't be an attribute of a CloudEvent"),
        ("ce_specversion", "string", "specversion is written without a column"),
        ("ce_total", "long", "column ce_total is bigint. Cast it"),
    ],
)
def test_other_columns_are_refused(column: str, kind: str, message: str) -> None:
    schema = StructType().add("ce_id", "string").add("ce_source", "string")
    with pytest.raises(ConfigurationError, match="column ce_type is missing, which a CloudEvent needs"):
        with_headers(schema, OPTIONS)
    with pytest.raises(ConfigurationError, match=message):
        with_headers(schema.add("ce_type", "string").add(column, kind), OPTIONS)

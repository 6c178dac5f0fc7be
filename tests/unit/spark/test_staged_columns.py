"""Columns of a DataFrame, found in any case, as Spark finds them."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from airflow_outbox.spark.options import WriteOptions, read_options
from airflow_outbox.spark.staged_columns import as_found, found_names


def options(**given: str) -> WriteOptions:
    return read_options({"dbtable": "outbox", "url": "postgresql://localhost/shop", **given})


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["Topic", "KEY", "value", "Headers", "parTITION"], ["topic", "key", "value", "headers", "partition"]),
        (["key", "Key", "Note"], ["key", "Key", "Note"]),
        (["Key", "KEY"], ["key", "key"]),
        (["CE_id"], ["CE_id"]),
    ],
)
def test_names_that_mean_something_are_found_in_any_case(names: list[str], found: list[str]) -> None:
    assert found_names(names, options()) == found


def test_so_are_the_attributes_of_events() -> None:
    assert found_names(["CE_id", "Ce_Type"], options(format="cloudevents")) == ["ce_id", "ce_type"]


@pytest.mark.parametrize(("asked", "found"), [("NUMBER", "Number"), ("Key", "key"), ("Number", "Number"), ("n", "n")])
def test_the_order_names_columns_in_any_case(asked: str, found: str) -> None:
    schema = StructType([StructField(name, StringType()) for name in ("KEY", "Number")])
    renamed, given = as_found(schema, options(orderby=asked))
    assert renamed.fieldNames() == ["key", "Number"]
    assert given.order_by == (found,)

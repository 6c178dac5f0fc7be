"""Columns and rows on their way from a DataFrame to Postgres: what arrives, and what is refused in which words."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest
from integration.spark.shop import FILL_ORDERS, HEADER, Shop
from psycopg.rows import dict_row
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox


@pytest.mark.parametrize(
    ("column", "bad", "message"),
    [
        ("topic", "'no topic'", "column topic: 'no topic' is not a legal name"),
        ("topic", "'..'", r"column topic: '\.\.' is not a legal name"),
        ("topic", "repeat('x', 250)", "column topic: 'x{40}…' is not a legal name"),
        ("topic", "CAST(NULL AS string)", "column topic: null"),
        ("key", "CAST(NULL AS string)", "column key: null"),
        ("key", "repeat('ü', 101)", "column key: 101 characters; the outbox's column takes at most 100"),
        ("value", "repeat('v', 10001)", "column value: 10001 characters; the outbox's column takes at most 10000"),
        ("value", "'a\\u0000b'", "column value: has a NUL character"),
        ("value", "X'61FF'", "column value: not UTF-8"),
        ("headers", f"array({HEADER}, named_struct('key', '', 'value', 'x'))", "column headers: a header has no name"),
        (
            "headers",
            "array(named_struct('key', 'x', 'value', CAST(NULL AS string)))",
            "column headers: a header has no value",
        ),
        ("headers", f"array({HEADER}, NULL)", "column headers: a header has no name"),
        ("partition", "-1", "column partition: -1, but a partition is 0 or more"),
        ("note", "'a\\u0000b'", "column note: has a NUL character"),
    ],
)
def test_an_unfit_record_is_named(shop: Shop, orders: DataFrame, column: str, bad: str, message: str) -> None:
    good = {"partition": F.lit(1), "note": F.lit("fine"), "value": F.col("value").cast("binary")}
    frame = orders.withColumns(good).coalesce(1).orderBy("number").where("number < 20")
    kind = dict(frame.dtypes)[column]
    frame = frame.withColumn(column, F.when(F.col("number") >= 17, F.expr(bad).cast(kind)).otherwise(F.col(column)))
    with pytest.raises(PySparkException, match=rf"row 17 of partition 0 \(number = 17.*\): {message}.*nothing was com"):
        shop.write(frame, orderBy="number", commitSql=FILL_ORDERS)
    assert shop.counts() == (0, 0, 0)
    assert shop.staging_tables() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop("key"), "column key is missing. Add it, or give the option key"),
        (lambda frame: frame.drop("value"), "column value is missing"),
        (lambda frame: frame.drop("number"), "option orderBy: there is no column number"),
        (lambda frame: frame.withColumn("key", F.col("number")), "column key is bigint. Cast it to string or binary"),
        (lambda frame: frame.withColumn("headers", F.lit("x")), "column headers is string. Cast it to array"),
        (lambda frame: frame.withColumn("header_keys", F.lit(1)), "column header_keys: the view `staged` has its own"),
        (lambda frame: frame.withColumn("nested", F.struct("number")), "column nested is struct<number:bigint>"),
        (lambda frame: frame.withColumn("nested", F.array(F.array("number"))), "column nested is array<array<bigint>>"),
    ],
)
def test_columns_that_do_not_fit(shop: Shop, orders: DataFrame, change: Any, message: str) -> None:
    with pytest.raises(PySparkException) as failure:
        shop.write(change(orders), orderBy="number", commitSql=FILL_ORDERS)
    assert message in str(failure.value)


def test_columns_in_another_case_arrive_as_spark_finds_them(shop: Shop, orders: DataFrame) -> None:
    frame = orders.where("number < 20").withColumnsRenamed(
        {"topic": "Topic", "key": "KEY", "value": "Value", "headers": "Headers"}
    )
    shop.write(frame, orderBy="NUMBER", commitSql=FILL_ORDERS)
    query = "SELECT count(*), count(DISTINCT kafka_key), bool_and(cardinality(kafka_header_keys) > 0) FROM outbox"
    assert shop.connection.execute(query).fetchone() == (20, 7, True)


def test_dates_of_any_year_arrive(shop: Shop, orders: DataFrame) -> None:
    """Spark counts a year 0 as Postgres' 1 BC."""
    dates = orders.where("number = 3").selectExpr(
        "*",
        "make_date(-43, 3, 15) AS long_ago",
        "make_date(12013, 1, 31) AS far_off",
        "make_timestamp(-43, 3, 15, 12, 0, 0.5, 'UTC') AS a_moment",
        "array(make_date(0, 1, 1), make_date(1, 1, 1)) AS several",
    )
    made = "CREATE TABLE seen AS SELECT long_ago, far_off, a_moment, several FROM staged"
    shop.write(dates, commitSql=made)
    query = "SELECT long_ago::text, far_off::text, (a_moment AT TIME ZONE 'UTC')::text, several::text FROM seen"
    assert shop.rows(query) == [
        ("0044-03-15 BC", "12013-01-31", "0044-03-15 12:00:00.5 BC", '{"0001-01-01 BC",0001-01-01}')
    ]


def test_all_types_arrive_as_they_are(shop: Shop, orders: DataFrame) -> None:
    typed = orders.where("number = 3").selectExpr(
        "*",
        "true AS a_boolean",
        "CAST(1 AS tinyint) AS a_tinyint",
        "CAST(-2 AS smallint) AS a_smallint",
        "CAST(1.5 AS float) AS a_float",
        "CAST('NaN' AS double) AS a_double",
        "CAST('12.30' AS decimal(10,2)) AS a_decimal",
        "X'00FF5C' AS a_binary",
        "DATE '2013-01-31' AS a_date",
        "TIMESTAMP '2013-01-31 05:15:00.000001 America/New_York' AS a_timestamp",
        "TIMESTAMP_NTZ '2013-01-31 05:15:00' AS a_local_time",
        "array('x', NULL, '{\"}', 'tab\\t') AS an_array",
        "array(X'00FF', NULL) AS an_array_of_bytes",
        "array(TIMESTAMP '1969-12-31 23:59:59 UTC') AS instants",
        "CAST(array() AS array<int>) AS an_empty_array",
        "CAST(NULL AS array<int>) AS no_array",
        "CAST(NULL AS int) AS nothing",
        "'new\\nline \\\\. \\\\N' AS `a text.with dots`",
    )
    shown = """CREATE TABLE shown AS SELECT a_boolean::text, a_tinyint::text, a_smallint::text, a_float::text,
        a_double::text, a_decimal::text, a_binary::text, a_date::text,
        (a_timestamp AT TIME ZONE 'UTC')::text AS a_timestamp, a_local_time::text, an_array, an_array_of_bytes,
        (instants[1] AT TIME ZONE 'UTC')::text AS an_instant, an_empty_array, no_array, nothing,
        "a text.with dots" FROM staged"""
    shop.write(typed, commitSql=shown)
    with shop.connection.cursor(row_factory=dict_row) as cursor:
        assert cursor.execute("SELECT * FROM shown").fetchall() == [
            {
                "a_boolean": "true",
                "a_tinyint": "1",
                "a_smallint": "-2",
                "a_float": "1.5",
                "a_double": "NaN",
                "a_decimal": "12.30",
                "a_binary": "\\x00ff5c",
                "a_date": "2013-01-31",
                "a_timestamp": "2013-01-31 10:15:00.000001",
                "a_local_time": "2013-01-31 05:15:00",
                "an_array": ["x", None, '{"}', "tab\t"],
                "an_array_of_bytes": [b"\x00\xff", None],
                "an_instant": "1969-12-31 23:59:59",
                "an_empty_array": [],
                "no_array": None,
                "nothing": None,
                "a text.with dots": "new\nline \\. \\N",
            }
        ]


@pytest.mark.parametrize("inline_bytes", ["0", "1000000"], ids=["staged", "inline"])
def test_bytes_partitions_and_records_without_headers(shop: Shop, spark: SparkSession, inline_bytes: str) -> None:
    table = '"Events"."Out box"'
    init_outbox(shop.connection, OutboxName.parse(table), key_type="bytea", value_type="bytea", header_type="bytea")
    one = spark.range(1)
    common = {"dbtable": table, "topic": "t", "inlineBytes": inline_bytes}
    shop.write(one.selectExpr("X'00FF' AS key", "'text' AS value", "3 AS partition"), **common)
    header = "array(named_struct('key', 'h', 'value', X'FF00')) AS headers"
    shop.write(one.selectExpr("'k' AS key", "CAST(NULL AS string) AS value", header), **common)
    shop.write(
        one.selectExpr("X'' AS value", "CAST(NULL AS array<struct<key:string,value:binary>>) AS headers"),
        **common,
        key="constant",
    )
    shop.write(one.selectExpr("'v' AS value"), **common, key="k", headers='{"h": "ü"}')
    columns = "kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition"
    assert shop.rows(f"SELECT {columns} FROM {table} ORDER BY id") == [
        (b"\x00\xff", b"text", [], [], 3),
        (b"k", None, ["h"], [b"\xff\x00"], None),
        (b"constant", b"", [], [], None),
        (b"k", b"v", ["h"], ["ü".encode()], None),
    ]


@pytest.mark.parametrize("order", [{}, {"orderBy": "value"}], ids=["text", "rows"])
@pytest.mark.parametrize("inline_bytes", ["0", "1000000"], ids=["staged", "inline"])
def test_a_table_that_goharvest_made(
    database: str, spark: SparkSession, inline_bytes: str, order: dict[str, str]
) -> None:
    """It has no defaults but that of the id."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE outbox (id BIGSERIAL PRIMARY KEY, create_time TIMESTAMP WITH TIME ZONE NOT NULL,"
            " kafka_topic VARCHAR(249) NOT NULL, kafka_key VARCHAR(100) NOT NULL, kafka_value VARCHAR(10000),"
            " kafka_header_keys TEXT[] NOT NULL, kafka_header_values TEXT[] NOT NULL, leader_id UUID)"
        )
        init_outbox(connection, OutboxName.parse("outbox"))
        shop = Shop(database, cast("Any", connection))
        frame = spark.range(3).selectExpr("CAST(id AS string) AS key", "CAST(id AS string) AS value")
        shop.write(frame.repartition(1).sort("value"), topic="t", inlineBytes=inline_bytes, **order)
        columns = "kafka_key, kafka_header_keys, kafka_header_values, create_time > now() - INTERVAL '1 minute'"
        assert shop.rows(f"SELECT {columns} FROM outbox ORDER BY id") == [(key, [], [], True) for key in "012"]


def test_columns_that_nothing_reads_are_not_sent(shop: Shop, orders: DataFrame) -> None:
    shop.write(orders.withColumn("nested", F.struct("number")))
    assert shop.counts()[0] == 1000

"""Shared by tests of Spark's writes: an outbox and a business table, and records in four partitions and no order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

RECORDS = 1000
STAGING = "public_outbox_staging"
"""The schema of the staging tables."""
FILL_ORDERS = "INSERT INTO orders SELECT number, key FROM staged"
HEADER = "named_struct('key', 'schema', 'value', 'order/1')"


@dataclass(frozen=True, slots=True)
class Shop:
    """A database with an outbox and the table `orders`."""

    url: str
    connection: psycopg.Connection[Any]

    def rows(self, query: str) -> list[Any]:
        return self.connection.execute(query).fetchall()  # type: ignore[call-overload]

    def counts(self) -> tuple[int, int, int]:
        """How many events, business rows and commits there are."""
        return self.rows(
            "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_commits)"
        )[0]

    def staging_tables(self) -> list[str]:
        return [name for (name,) in self.rows("SELECT relname FROM pg_class WHERE relname LIKE '%\\_staging\\_%'")]

    def write(self, frame: DataFrame, *, source: str = "outbox", **options: str) -> None:
        """Write through staging tables, however few the rows are, unless `inlineBytes` says otherwise."""
        options = {"url": self.url, "inlineBytes": "0", **options}
        frame.write.format(source).options(**options).mode("append").save()


def orders(spark: SparkSession) -> DataFrame:
    numbers = spark.range(RECORDS).repartition(4)
    return numbers.select(
        F.lit("orders").alias("topic"),
        F.concat(F.lit("customer-"), F.col("id") % 7).alias("key"),
        F.to_json(F.struct("id")).alias("value"),
        F.expr(f"array({HEADER})").alias("headers"),
        F.col("id").alias("number"),
    )

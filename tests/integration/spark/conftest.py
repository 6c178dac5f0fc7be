"""One Spark session for all tests of this folder: its start takes longer than most of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import psycopg
import pytest
from integration.spark.shop import Shop, orders
from pyspark.sql import DataFrame, SparkSession

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.spark import register


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks at once, each tried up to three times."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("airflow-outbox tests")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        connection.execute("CREATE TABLE orders (number bigint PRIMARY KEY, customer text)")
        yield Shop(database, connection)


@pytest.fixture(name="orders")
def orders_frame(spark: SparkSession) -> DataFrame:
    """Records in four partitions and no order."""
    return orders(spark)

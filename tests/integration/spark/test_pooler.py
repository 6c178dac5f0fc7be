"""With PgBouncer between, which gives each transaction another session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from integration.spark.breaking import end_sessions, first_attempt, register_breaking
from integration.spark.shop import FILL_ORDERS, RECORDS, Shop
from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame, SparkSession
from support.harvesting import wait_until
from support.pooler import Pooler

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.spark import register

ORDER = {"txnAppId": "orders", "orderBy": "number", "commitSql": FILL_ORDERS}


@pytest.fixture(scope="module")
def pooler(postgres: EmbeddedPostgres, server_folder: Path) -> Iterator[Pooler]:
    with Pooler(server_folder / "pooler", postgres.dsn()) as pooler:
        yield pooler


@pytest.fixture
def pooled(shop: Shop, pooler: Pooler) -> Shop:
    """The same shop, by way of the pooler; what the test itself asks goes straight."""
    return Shop(pooler.url(shop.connection.info.dbname), shop.connection)


def test_it_pools_transactions(pooled: Shop) -> None:
    """As sharply as it can: a setting of a session is seen by another client, or not by its own."""
    with psycopg.connect(pooled.url, autocommit=True) as one, psycopg.connect(pooled.url, autocommit=True) as other:
        one.execute("SET application_name = 'whose'; SET search_path = nowhere")
        assert other.execute("SHOW search_path").fetchone() == ("nowhere",)
        one.execute("RESET search_path")


def test_writes_of_one_id_at_once(pooled: Shop, orders: DataFrame, spark: SparkSession) -> None:
    def write() -> None:
        register(spark)
        pooled.write(orders, **ORDER)

    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(write) for _ in range(2)]:
            future.result()
    pooled.write(orders, **ORDER)
    assert pooled.counts() == (RECORDS, RECORDS, 1)
    assert pooled.staging_tables() == []


def test_sessions_that_end_amid_their_copy(pooled: Shop, orders: DataFrame, spark: SparkSession) -> None:
    """Those of the pooler with Postgres, which the tasks lose in the middle of their transactions."""
    direct = pooled.connection.info
    url = make_conninfo(direct.dsn, password=direct.password)
    # Once: a task may be tried no more than three times.
    register_breaking(spark, "breaking", amid_rows=first_attempt(end_sessions(url), partition=0))
    pooled.write(orders, source="breaking", **ORDER)
    killed = "SELECT sessions_killed > 0 FROM pg_stat_database WHERE datname = current_database()"
    wait_until(lambda: pooled.rows(killed) == [(True,)])
    assert pooled.counts() == (RECORDS, RECORDS, 1)
    assert pooled.staging_tables() == []


def test_a_session_that_ends_amid_the_commits_copy(pooled: Shop, orders: DataFrame) -> None:
    pooled.connection.execute(
        "CREATE SEQUENCE tries;"
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('public.tries') = 500 THEN"
        " PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER cut BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION cut()"
    )
    pooled.write(orders, txnAppId="orders")
    assert pooled.rows("SELECT last_value FROM tries") == [(500 + RECORDS,)]
    assert pooled.counts() == (RECORDS, 0, 1)


@pytest.mark.parametrize("inline_bytes", ["0", "1000000"], ids=["staged", "inline"])
def test_many_writes_leave_nothing_in_the_sessions(pooled: Shop, orders: DataFrame, inline_bytes: str) -> None:
    for number in range(4):
        pooled.write(orders.drop("headers") if number % 2 else orders, orderBy="number", inlineBytes=inline_bytes)
    assert pooled.counts() == (4 * RECORDS, 0, 4)
    assert pooled.staging_tables() == []
    with psycopg.connect(pooled.url, autocommit=True) as connection:
        found = connection.execute("SELECT name FROM pg_settings WHERE source = 'session'").fetchall()
    assert not {name for (name,) in found} & {"work_mem", "lock_timeout", "synchronous_commit", "synchronize_seqscans"}


def test_a_stream(pooled: Shop, orders: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    orders.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(orders.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    writer = stream.writeStream.format("outbox").options(url=pooled.url, commitSql=FILL_ORDERS)
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert pooled.counts() == (RECORDS, RECORDS, 4)

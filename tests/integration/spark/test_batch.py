"""`df.write.format("outbox")` on a real Spark and Postgres: one transaction, in the order that was asked for, once."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile.traps import lay_traps
from integration.spark.shop import FILL_ORDERS, RECORDS, STAGING, Shop
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.postgres.commits import CommitId, find_commit
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements
from airflow_outbox.spark import register

ORDER = {"txnAppId": "orders", "orderBy": "number", "commitSql": FILL_ORDERS}


@pytest.mark.parametrize("inline_bytes", ["0", "1000000"], ids=["staged", "inline"])
def test_events_and_business_rows_are_of_one_transaction(shop: Shop, orders: DataFrame, inline_bytes: str) -> None:
    shop.write(orders, **ORDER, inlineBytes=inline_bytes)

    assert shop.counts() == (RECORDS, RECORDS, 1)
    [(transaction,)] = shop.rows(
        "SELECT transaction_id::text::bigint FROM outbox UNION SELECT xmin::text::bigint FROM orders"
    )
    assert shop.rows(
        "SELECT kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM outbox ORDER BY id"
    )[0] == ("orders", "customer-0", '{"id":0}', ["schema"], ["order/1"])
    commit = find_commit(shop.connection, OutboxName.parse("outbox"), CommitId("orders", 0))
    assert commit is not None
    assert (commit.records, commit.ticket.transaction_id) == (RECORDS, transaction)
    assert shop.rows("SELECT outbox_id FROM outbox_state") == [(commit.ticket.outbox_id,)]
    assert shop.staging_tables() == []


@pytest.mark.long(inline_bytes="1000000")
@pytest.mark.parametrize("inline_bytes", ["0", "1000000"], ids=["staged", "inline"])
def test_functions_and_operators_of_others_are_not_called(shop: Shop, orders: DataFrame, inline_bytes: str) -> None:
    lay_traps(shop.connection)
    for _ in range(2):  # the second one finds the commit
        shop.write(orders, txnAppId="orders", orderBy="number", inlineBytes=inline_bytes)
    assert shop.counts() == (RECORDS, 0, 1)


def test_ids_follow_the_jobs_order(shop: Shop, orders: DataFrame) -> None:
    shop.write(orders.withColumn("negative, number", -F.col("number")), orderBy='key, "negative, number"')
    stashed = shop.rows("SELECT kafka_key, (kafka_value::json->>'id')::int FROM outbox ORDER BY id")
    assert len(stashed) == RECORDS
    assert stashed == sorted(stashed, key=lambda record: (record[0], -record[1]))


@pytest.mark.parametrize("inline_bytes", ["0", "8000", "1000000"], ids=["staged", "both", "inline"])
def test_without_an_order_ids_follow_partitions_and_rows(shop: Shop, orders: DataFrame, inline_bytes: str) -> None:
    skewed = F.when(F.col("number") < 700, 1).otherwise(F.col("number") % 5)  # large and small partitions
    mixed = orders.repartition(4, skewed).sortWithinPartitions(F.desc("number"))
    expected = [row["value"] for row in mixed.collect()]
    shop.write(mixed, inlineBytes=inline_bytes)
    assert [value for (value,) in shop.rows("SELECT kafka_value FROM outbox ORDER BY id")] == expected


def test_a_write_tried_again_commits_nothing_more(shop: Shop, orders: DataFrame) -> None:
    shop.write(orders, **ORDER)
    shop.write(orders.withColumn("key", F.lit(None).cast("string")), txnAppId="orders", commitSql="this is never run")
    assert shop.counts() == (RECORDS, RECORDS, 1)


def test_another_version_repeats_the_write(shop: Shop, orders: DataFrame) -> None:
    shop.write(orders, txnAppId="orders")
    shop.write(orders, txnAppId="orders", txnVersion="1")
    assert shop.counts() == (2 * RECORDS, 0, 2)


def test_a_write_without_an_id_is_another_one_each_time(shop: Shop, orders: DataFrame) -> None:
    shop.write(orders)
    shop.write(orders)
    assert shop.counts() == (2 * RECORDS, 0, 2)


def test_a_write_without_rows_commits(shop: Shop, orders: DataFrame) -> None:
    shop.write(orders.where("false"), **ORDER)
    assert shop.counts() == (0, 0, 1)


def test_what_is_constant_comes_from_options(shop: Shop, spark: SparkSession) -> None:
    frame = spark.range(3).selectExpr("CAST(id AS string) AS value", "'other' AS topic")
    constant = {"topic": "orders", "key": "k", "partition": "2", "headers": '{"schema": "order/1", "by": "spark"}'}
    seen = "CREATE TABLE seen AS SELECT topic, key, value, header_keys, header_values, partition FROM staged"
    shop.write(frame, **constant, commitSql=seen)
    expected = [("orders", "k", value, ["schema", "by"], ["order/1", "spark"], 2) for value in "012"]
    columns = "kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition"
    assert shop.rows(f"SELECT {columns} FROM outbox ORDER BY id") == expected
    assert shop.rows("SELECT * FROM seen ORDER BY value") == expected


def test_a_write_from_another_thread(shop: Shop, orders: DataFrame, spark: SparkSession) -> None:
    def write() -> None:
        register(spark)
        shop.write(orders)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert shop.counts() == (RECORDS, 0, 1)


def test_a_streams_foreach_batch(shop: Shop, spark: SparkSession, orders: DataFrame, tmp_path: Path) -> None:
    orders.write.parquet(str(tmp_path / "in"))

    def write(frame: DataFrame, batch: int) -> None:
        register(frame.sparkSession)
        for _ in range(2):
            shop.write(frame, txnAppId="stream", txnVersion=str(batch))

    stream = spark.readStream.schema(orders.schema).option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
    started = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    started.trigger(availableNow=True).start().awaitTermination()
    assert shop.counts() == (RECORDS, 0, 2)


def test_two_statements_and_a_percent_sign(shop: Shop, orders: DataFrame) -> None:
    two = f"{FILL_ORDERS}; UPDATE orders SET customer = 'odd' WHERE number % 2 = 1 -- and 50%s more"
    shop.write(orders, commitSql=two)
    assert shop.rows("SELECT count(*) FROM orders WHERE customer = 'odd'") == [(RECORDS // 2,)]


def test_a_failing_statement_leaves_nothing(shop: Shop, orders: DataFrame) -> None:
    with pytest.raises(PySparkException, match=r"option commitSql: division by zero.*nothing was committed"):
        shop.write(orders, commitSql=f"{FILL_ORDERS}; SELECT 1/0")
    assert shop.counts() == (0, 0, 0)
    assert shop.staging_tables() == []


@pytest.mark.parametrize("ending", ["COMMIT", "COMMIT; BEGIN"])
def test_a_statement_that_ends_the_transaction_does_not_pass_for_a_commit(
    shop: Shop, orders: DataFrame, ending: str
) -> None:
    with pytest.raises(PySparkException, match="option commitSql ended the transaction"):
        shop.write(orders, txnAppId="orders", commitSql=f"{FILL_ORDERS}; {ending}")
    assert shop.counts() == (0, RECORDS, 0)
    shop.write(orders, txnAppId="orders")
    assert shop.counts() == (RECORDS, RECORDS, 1)


def test_an_id_that_another_writer_enters_meanwhile(shop: Shop, orders: DataFrame) -> None:
    rival = "INSERT INTO outbox_commits (app_id, version, records) VALUES ('orders', 0, 0)"
    with pytest.raises(PySparkException, match="is used by another writer; nothing was committed"):
        shop.write(orders, txnAppId="orders", commitSql=rival)
    assert shop.counts() == (0, 0, 0)


def test_a_trigger_that_drops_records_is_noticed(shop: Shop, orders: DataFrame) -> None:
    shop.connection.execute(
        "CREATE FUNCTION drop_some() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.kafka_key = 'customer-3' THEN RETURN NULL; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER drop_some BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION drop_some()"
    )
    with pytest.raises(PySparkException, match="857 of 1000 staged records were inserted; nothing was committed"):
        shop.write(orders)
    assert shop.counts() == (0, 0, 0)


def test_leftovers_that_nobody_needs_are_swept_and_nothing_else(shop: Shop, orders: DataFrame) -> None:
    shop.write(orders, txnAppId="done", txnVersion="3")
    now = int(time.time())
    leftovers = {
        "done": {"app_id": "done", "version": 3, "is_stream": False, "created": now},
        "waiting": {"app_id": "done", "version": 2, "is_stream": False, "created": now},
        "streamed": {"app_id": "done", "version": 2, "is_stream": True, "created": now},
        "streaming": {"app_id": "done", "version": 4, "is_stream": True, "created": now},
        "old": {"app_id": "dead", "version": 0, "is_stream": False, "created": now - 86_500},
        "young": {"app_id": "dead", "version": 0, "is_stream": False, "created": now - 86_300},
    }
    for name, about in leftovers.items():
        table = f"{STAGING}.outbox_staging_{name}"
        shop.connection.execute(f"CREATE UNLOGGED TABLE {table} ()".encode())
        shop.connection.execute(f"COMMENT ON TABLE {table} IS '{json.dumps(about)}'".encode())
    shop.connection.execute(f"CREATE UNLOGGED TABLE {STAGING}.outbox_staging_own ()".encode())
    shop.connection.execute(f"CREATE TABLE {STAGING}.outbox_staging_logged ()".encode())
    shop.write(orders)
    assert sorted(name.removeprefix("outbox_staging_") for name in shop.staging_tables()) == [
        "logged",
        "own",
        "streaming",
        "waiting",
        "young",
    ]


def test_a_role_of_its_own_is_enough(shop: Shop, orders: DataFrame, postgres: EmbeddedPostgres) -> None:
    role = f"job_{threading.get_native_id()}_{time.monotonic_ns()}"
    connection = shop.connection
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT INSERT ON orders TO {role}".encode())
    for statement in grant_statements(connection, OutboxName.parse("outbox"), "job", role):
        connection.execute(statement.encode())
    try:
        url = postgres.uri(connection.info.dbname, user=role)
        login = {"url": f"jdbc:{url}?reWriteBatchedInserts=true", "user": role, "password": "secret"}
        shop.write(orders, **ORDER, **login)
        assert shop.counts() == (RECORDS, RECORDS, 1)
        shop.write(orders, **login)
        assert shop.counts() == (2 * RECORDS, RECORDS, 2)
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dbtable": "missing"}, 'there is no table "missing". Run `airflow-outbox init`'),
        ({"url": "postgresql://postgres@127.0.0.1:1/none"}, "can't connect to Postgres"),
        ({"ordrBy": "number"}, "option ordrby: unknown; did you mean orderBy?"),
        ({"txnVersion": "1"}, "option txnVersion needs txnAppId"),
    ],
)
def test_a_write_that_can_not_begin(shop: Shop, orders: DataFrame, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException) as failure:
        shop.write(orders, **options)
    assert message in str(failure.value)


def test_overwriting_is_refused(shop: Shop, orders: DataFrame) -> None:
    with pytest.raises(PySparkException, match="an outbox only takes appends"):
        orders.write.format("outbox").option("url", shop.url).mode("overwrite").save()

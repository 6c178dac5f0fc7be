"""`df.writeStream.format("outbox")`: each batch of a query once, under the query's own id."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from integration.spark.shop import FILL_ORDERS, HEADER, RECORDS, Shop
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from support.harvesting import PATIENCE, wait_until

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

FILES = 3


@pytest.fixture
def source(spark: SparkSession, orders: DataFrame, tmp_path: Path) -> DataFrame:
    """A stream of the same records, a file a batch."""
    folder = tmp_path / "in"
    orders.repartitionByRange(FILES, "number").sortWithinPartitions("number").write.parquet(str(folder))
    for place, file in enumerate(sorted(folder.glob("part-*"))):  # the source reads the oldest first
        os.utime(file, (time.time() + place - FILES,) * 2)
    return spark.readStream.schema(orders.schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(shop: Shop, frame: DataFrame, checkpoint: Path, **options: str) -> StreamingQuery:
    """Run a query over all that is there."""
    writer = frame.writeStream.format("outbox").options(url=shop.url, **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def commits(shop: Shop) -> list[Any]:
    return shop.rows("SELECT app_id, version, records FROM outbox_commits ORDER BY version")


@pytest.mark.parametrize("inline_bytes", [None, "0"], ids=["inline", "staged"])
def test_each_batch_is_committed_once(shop: Shop, source: DataFrame, tmp_path: Path, inline_bytes: str | None) -> None:
    # Whoever makes a table is told in the log, and that is how few rows are seen to need none.
    shop.connection.execute(
        "CREATE TABLE made (name text); CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.made SELECT object_identity FROM pg_event_trigger_ddl_commands()"
        " WHERE object_identity LIKE '%staging%'; END $$;"
        "CREATE EVENT TRIGGER note ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION note()"
    )
    options = {"commitSql": FILL_ORDERS, **({"inlineBytes": inline_bytes} if inline_bytes else {})}
    query = run(shop, source, tmp_path / "checkpoint", **options)
    assert shop.counts() == (RECORDS, RECORDS, FILES)
    assert [(app_id, version) for app_id, version, _ in commits(shop)] == [
        (f"spark-stream/{query.id}", batch) for batch in range(FILES)
    ]
    numbers = shop.rows("SELECT (kafka_value::json->>'id')::int FROM outbox ORDER BY id")
    assert [number for (number,) in numbers] == list(range(RECORDS))
    assert bool(shop.rows("SELECT FROM made")) == (inline_bytes is not None)
    assert shop.staging_tables() == []


def test_a_query_that_starts_again_goes_on(shop: Shop, source: DataFrame, orders: DataFrame, tmp_path: Path) -> None:
    run(shop, source, tmp_path / "checkpoint")
    run(shop, source, tmp_path / "checkpoint")
    assert shop.counts()[0] == RECORDS
    orders.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    run(shop, source, tmp_path / "checkpoint")
    assert [version for _, version, _ in commits(shop)] == [0, 1, 2, 3]
    assert shop.counts()[0] == 2 * RECORDS


def forget(checkpoint: Path, batch: int, *logs: str) -> None:
    for log in logs:
        (checkpoint / log / str(batch)).unlink()
        (checkpoint / log / f".{batch}.crc").unlink(missing_ok=True)


def test_a_batch_that_spark_forgot_is_not_written_again(shop: Shop, source: DataFrame, tmp_path: Path) -> None:
    """As when a driver dies between Postgres' commit and the checkpoint's."""
    run(shop, source, tmp_path / "checkpoint")
    shop.connection.execute("DELETE FROM outbox_commits WHERE version < 2")  # old entries are not needed
    forget(tmp_path / "checkpoint", 2, "commits")
    query = run(shop, source, tmp_path / "checkpoint")
    assert [progress.batchId for progress in query.recentProgress if progress.numInputRows] == [2]
    assert shop.counts()[0] == RECORDS


@pytest.mark.parametrize("older", [True, False], ids=["by a batch", "within a batch"])
def test_a_checkpoint_that_is_older_than_the_commits_is_an_error(
    shop: Shop, source: DataFrame, tmp_path: Path, older: bool
) -> None:
    """Else new rows would have the numbers of batches that are committed, and be skipped."""
    run(shop, source, tmp_path / "checkpoint")
    if older:
        forget(tmp_path / "checkpoint", 2, "commits", "offsets")
        forget(tmp_path / "checkpoint", 1, "commits")
        message = r"spark-stream/[-0-9a-f]+: batch 1 comes after batch 2 was committed; nothing was committed now"
    else:
        forget(tmp_path / "checkpoint", 2, "commits")
        source = source.where("number <> 999")
        [(_, _, count)] = commits(shop)[2:]
        message = f": batch 2 was committed with {count} records, but has {count - 1} now; nothing was committed"
    with pytest.raises(StreamingQueryException, match=message):
        run(shop, source, tmp_path / "checkpoint")
    assert (shop.counts()[0], len(commits(shop))) == (RECORDS, FILES)


def test_a_batch_that_fails_is_written_when_it_can_be(shop: Shop, source: DataFrame, tmp_path: Path) -> None:
    shop.connection.execute("INSERT INTO orders VALUES (500, 'there already')")
    with pytest.raises(StreamingQueryException, match=r"option commitSql: duplicate key.*nothing was committed"):
        run(shop, source, tmp_path / "checkpoint", commitSql=FILL_ORDERS, inlineBytes="0")
    events, _, batches = shop.counts()
    assert (0 < events < RECORDS, batches) == (True, 1)
    assert shop.staging_tables() == []
    shop.connection.execute("DELETE FROM orders WHERE customer = 'there already'")
    run(shop, source, tmp_path / "checkpoint", commitSql=FILL_ORDERS)
    assert shop.counts() == (RECORDS, RECORDS, FILES)


def test_two_queries_of_one_source_are_two(shop: Shop, source: DataFrame, tmp_path: Path) -> None:
    run(shop, source, tmp_path / "one")
    run(shop, source, tmp_path / "two")
    assert shop.counts()[0] == 2 * RECORDS


def test_an_unfit_record_ends_the_query(shop: Shop, source: DataFrame, tmp_path: Path) -> None:
    unfit = source.withColumn("key", F.when(F.col("number") == 5, None).otherwise(F.col("key")))
    with pytest.raises(StreamingQueryException, match=r"row 5 of partition 0.*: column key: null"):
        run(shop, unfit, tmp_path / "checkpoint")
    assert shop.counts()[0] == 0


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("append", {"txnAppId": "mine"}, "option txnAppId: a streaming query commits under its own id"),
        ("complete", {}, "an outbox only takes appends"),
    ],
)
def test_what_a_stream_can_not_do(
    shop: Shop, source: DataFrame, tmp_path: Path, mode: str, options: dict[str, str], message: str
) -> None:
    counted = source.groupBy("key").agg(F.count("*").alias("n"))
    frame = counted.select("key", F.col("n").cast("string").alias("value"), F.expr(f"array({HEADER}) AS headers"))
    if mode == "append":
        frame = source.drop("number")
    writer = frame.writeStream.format("outbox").outputMode(mode).options(url=shop.url, topic="t", **options)
    with pytest.raises(StreamingQueryException) as failure:
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert message in str(failure.value)


def test_a_query_goes_on_while_postgres_restarts(
    spark: SparkSession, orders: DataFrame, tmp_path: Path, server_folder: Path, topic_prefix: str
) -> None:
    batches = 30
    folder = tmp_path / "in"
    orders.repartitionByRange(batches, "number").write.parquet(str(folder))
    frame = spark.readStream.schema(orders.schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    with EmbeddedPostgres(server_folder / f"{topic_prefix}restarting") as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            init_outbox(connection, OutboxName.parse("outbox"))
        writer = frame.writeStream.format("outbox").options(url=server.dsn(), inlineBytes="0")
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

        def batch() -> int:
            return query.lastProgress.batchId if query.lastProgress else -1

        try:
            for _ in range(2):
                seen = batch()
                wait_until(lambda seen=seen: not query.isActive or batch() > seen + 3, within=3 * PATIENCE)
                assert query.exception() is None  # it may have done all, while this test was held up
                server.stop()
                time.sleep(1)
                server.start()
            query.awaitTermination()
        finally:
            query.stop()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            counts = "SELECT count(*), count(DISTINCT kafka_value) FROM outbox"
            assert connection.execute(counts).fetchone() == (RECORDS, RECORDS)
            assert connection.execute("SELECT count(*) FROM outbox_commits").fetchone() == (batches,)

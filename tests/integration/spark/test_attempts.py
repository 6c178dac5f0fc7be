"""Exactly once, whatever fails: a task at each of its steps, the commit, Postgres, or everything at once."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import psycopg
import pytest
from integration.spark.breaking import Fault, die, end_sessions, fail, first_attempt, register_breaking
from integration.spark.shop import FILL_ORDERS, RECORDS, STAGING, Shop
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.harvesting import PATIENCE, wait_until

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.spark import register

ORDER = {"txnAppId": "orders", "orderBy": "number", "commitSql": FILL_ORDERS}
WHOLE = (RECORDS, RECORDS, 1)


@pytest.mark.long(step="before_rows", fault=die)
@pytest.mark.long(step="amid_rows")
@pytest.mark.long(step="staged", fault=fail)
@pytest.mark.parametrize("fault", [fail, die], ids=["raises", "is killed"])
@pytest.mark.parametrize("step", ["before_rows", "amid_rows", "after_rows", "staged"])
def test_a_task_that_fails_at_first(
    shop: Shop, orders: DataFrame, spark: SparkSession, step: str, fault: Fault
) -> None:
    register_breaking(spark, "breaking", **{step: first_attempt(fault)})
    seen = "CREATE TABLE seen AS SELECT relname FROM pg_class WHERE relname LIKE '%\\_staging\\_%'"
    shop.write(orders, source="breaking", **{**ORDER, "commitSql": f"{FILL_ORDERS}; {seen}"})
    assert shop.counts() == WHOLE
    # Only an attempt that died behind its COPY has left a table, beside those that count.
    assert len(shop.rows("SELECT FROM seen")) == (8 if step == "staged" else 4)
    assert shop.staging_tables() == []


def test_a_task_that_fails_for_good_leaves_nothing(shop: Shop, orders: DataFrame, spark: SparkSession) -> None:
    def fail_in_one() -> None:
        if TaskContext.get().partitionId() == 2:  # type: ignore[union-attr]
            raise RuntimeError("every attempt fails")

    register_breaking(spark, "breaking", amid_rows=fail_in_one)
    with pytest.raises(PySparkException, match="every attempt fails"):
        shop.write(orders, source="breaking", **ORDER)
    assert shop.counts() == (0, 0, 0)
    assert shop.staging_tables() == []
    shop.write(orders, **ORDER)
    assert shop.counts() == WHOLE


def test_sessions_that_end_amid_their_copy(shop: Shop, orders: DataFrame, spark: SparkSession) -> None:
    # Once: a task may be tried no more than three times.
    register_breaking(spark, "breaking", amid_rows=first_attempt(end_sessions(shop.url), partition=0))
    shop.write(orders, source="breaking", **ORDER)
    assert shop.counts() == WHOLE
    assert shop.staging_tables() == []


@pytest.mark.parametrize("step", ["before_commit", "after_commit"])
def test_a_commit_whose_process_dies(shop: Shop, orders: DataFrame, spark: SparkSession, step: str) -> None:
    register_breaking(spark, "breaking", **{step: die})
    with pytest.raises(Exception, match=r"(?i)crashed|python worker|EOF"):
        shop.write(orders, source="breaking", **ORDER)
    assert shop.counts() == (WHOLE if step == "after_commit" else (0, 0, 0))
    shop.write(orders, **ORDER)
    assert shop.counts() == WHOLE
    assert shop.staging_tables() == []


@pytest.mark.parametrize("form", ["text", "rows"])
def test_a_part_of_the_staging_that_is_gone(shop: Shop, orders: DataFrame, spark: SparkSession, form: str) -> None:
    url = shop.url

    def lose() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE '%\\_staging\\_%' ORDER BY 1")
            name = cast("tuple[str]", found.fetchone())[0]
            table = f'{STAGING}."{name}"'
            connection.execute(f"DELETE FROM {table} WHERE ctid = (SELECT max(ctid) FROM {table})".encode())

    register_breaking(spark, "breaking", before_commit=lose)
    options = ORDER if form == "rows" else {"txnAppId": "orders"}
    with pytest.raises(PySparkException, match=r"[1-9][0-9]* of 1000 staged rows are left; nothing was committed"):
        shop.write(orders, source="breaking", **options)
    assert shop.counts() == (0, 0, 0)


@pytest.mark.parametrize("moment", ["amid", "after"])
def test_a_commit_whose_session_ends(shop: Shop, orders: DataFrame, moment: str) -> None:
    """Before its end, and after it, without the driver's having seen that."""
    amid = "SELECT CASE WHEN pg_terminate_backend(pg_backend_pid()) THEN pg_sleep(5) END"
    shop.connection.execute("CREATE SEQUENCE tries")
    first_try = f"DO $$ BEGIN IF nextval('tries') = 1 THEN PERFORM 1 FROM ({amid}) AS ending; END IF; END $$"
    if moment == "after":
        shop.connection.execute(
            "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('tries') = 1 THEN"
            " PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON outbox_commits DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION cut()"
        )
    shop.write(orders, **{**ORDER, "commitSql": f"{FILL_ORDERS}; {first_try}" if moment == "amid" else FILL_ORDERS})
    assert shop.rows("SELECT last_value FROM tries") == [(2,)]
    assert shop.counts() == WHOLE
    assert shop.staging_tables() == []


def wait_for_waiting_drivers(shop: Shop, number: int) -> None:
    """Until so many writes wait for a lock in their commit."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'airflow-outbox spark driver' AND wait_event_type = 'Lock'"
    )
    wait_until(lambda: shop.rows(waiting) == [(number,)], within=3 * PATIENCE)


@pytest.mark.parametrize("first_dies", [False, True], ids=["the first commits", "the first dies"])
def test_two_at_once_commit_once(shop: Shop, orders: DataFrame, spark: SparkSession, first_dies: bool) -> None:
    shop.connection.execute("CREATE TABLE gate ()")
    slowly = {**ORDER, "commitSql": f"{FILL_ORDERS}; LOCK TABLE gate"}
    at_the_gate = (
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = 'gate'::regclass AND NOT granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )

    def write() -> None:
        register(spark)
        shop.write(orders, **slowly)

    with ThreadPoolExecutor(2) as threads, psycopg.connect(shop.url) as obstacle:
        obstacle.execute("LOCK TABLE gate")
        running = [threads.submit(write) for _ in range(2)]
        wait_for_waiting_drivers(shop, 2)  # one at the gate, the other until the first has committed
        if first_dies:
            assert shop.rows(at_the_gate) == [(True,)]
            time.sleep(0.5)
        obstacle.rollback()
        for future in running:
            future.result()
    assert shop.counts() == WHOLE
    assert shop.staging_tables() == []


@pytest.mark.parametrize("form", ["text", "rows"])
@pytest.mark.parametrize("how", ["stopped", "crashed"])
def test_postgres_restarted_between_staging_and_commit(
    spark: SparkSession, orders: DataFrame, server_folder: Path, topic_prefix: str, how: str, form: str
) -> None:
    options = ORDER if form == "rows" else {"txnAppId": "orders"}
    whole = WHOLE if form == "rows" else (RECORDS, 0, 1)
    with EmbeddedPostgres(server_folder / f"{topic_prefix}{how}") as server, ThreadPoolExecutor(1) as threads:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            init_outbox(connection, OutboxName.parse("outbox"))
            connection.execute("CREATE TABLE orders (number bigint PRIMARY KEY, customer text)")
        here = server_folder / f"{topic_prefix}{how}-commit"

        def say_and_wait() -> None:
            here.touch()
            ended = time.monotonic() + 4 * PATIENCE  # if the test has failed
            while here.exists() and time.monotonic() < ended:
                time.sleep(0.02)

        def write() -> None:
            register_breaking(spark, "breaking", before_commit=say_and_wait)
            register(spark)
            Shop(server.dsn(), connection).write(orders, source="breaking", **options)

        writing = threads.submit(write)
        wait_until(lambda: here.exists() or writing.done(), within=3 * PATIENCE)
        assert here.exists(), writing.exception()
        server.stop("fast" if how == "stopped" else "immediate")
        here.unlink()
        time.sleep(2)  # the commit finds no server
        server.start()
        failure = writing.exception()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            shop = Shop(server.dsn(), connection)
            if how == "stopped":
                assert failure is None
            else:  # it empties unlogged tables
                assert re.search(
                    r"(\b0 of \d+ staged rows are left|staging table is gone); nothing was committed", str(failure)
                )
                assert shop.counts() == (0, 0, 0)
                shop.write(orders, **options)
            assert shop.counts() == whole
            assert shop.staging_tables() == []


def test_staging_that_a_straggler_holds_is_left_to_a_later_run(
    shop: Shop, orders: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    here = tmp_path / "commit"

    def say_and_wait() -> None:
        here.touch()
        ended = time.monotonic() + 4 * PATIENCE  # if the test has failed
        while here.exists() and time.monotonic() < ended:
            time.sleep(0.02)

    register_breaking(spark, "breaking", before_commit=say_and_wait)

    def write() -> None:
        register(spark)
        shop.write(orders, source="breaking", **ORDER)

    with ThreadPoolExecutor(1) as threads, psycopg.connect(shop.url) as straggler:
        writing = threads.submit(write)
        wait_until(lambda: here.exists() or writing.done(), within=3 * PATIENCE)
        assert here.exists(), writing.exception()
        held = shop.staging_tables()[0]
        straggler.execute(f'LOCK TABLE {STAGING}."{held}" IN ROW EXCLUSIVE MODE'.encode())
        here.unlink()
        writing.result()
        assert shop.counts() == WHOLE
        assert shop.staging_tables() == [held]
    shop.write(orders.withColumn("number", F.col("number") + RECORDS))
    assert shop.staging_tables() == []

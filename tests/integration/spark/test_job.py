"""A job's one transaction, on a real Spark and Postgres: whatever is tried again, it is committed once and whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_outbox.demo.postgres import EmbeddedPostgres
from airflow_outbox.errors import ConfigurationError, JobError, OutboxMissingError, PostgresError, StagingLostError
from airflow_outbox.names import OutboxName
from airflow_outbox.schema import grant_statements, init_outbox
from airflow_outbox.spark import OutboxJob, staging
from airflow_outbox.spark.staging import StagedRows, Staging
from airflow_outbox.table import connect

RECORDS = 1000
FILL_ORDERS = ["INSERT INTO orders SELECT number, key FROM staged"]
HEADER = "named_struct('key', 'schema', 'value', 'order/1')"


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A database with an outbox and a business table."""
    with connect(database, purpose="test") as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        connection.execute("CREATE TABLE orders (number bigint PRIMARY KEY, customer text)")
        yield connection


@pytest.fixture
def job(database: str, connection: psycopg.Connection[Any]) -> OutboxJob:
    return OutboxJob(data_source=database, app_id="orders")


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    """Records in four partitions and no order."""
    numbers = spark.range(RECORDS).repartition(4)
    return numbers.select(
        F.lit("orders").alias("topic"),
        F.concat(F.lit("customer-"), F.col("id") % 7).alias("key"),
        F.to_json(F.struct("id")).alias("value"),
        F.expr(f"array({HEADER})").alias("headers"),
        F.col("id").alias("number"),
    )


def rows(connection: psycopg.Connection[Any], query: str) -> list[Any]:
    return connection.execute(query).fetchall()  # type: ignore[call-overload]


def counts(connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
    """How many events, business rows and commits there are."""
    return rows(
        connection,
        "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_commits)",
    )[0]


def staging_tables(connection: psycopg.Connection[Any]) -> list[str]:
    return [
        name
        for (name,) in rows(connection, "SELECT relname FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r'")
    ]


def wait_for_waiting_drivers(connection: psycopg.Connection[Any], number: int) -> None:
    """Until so many jobs wait for a lock in their commit."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'airflow-outbox spark driver'"
        " AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 60
    while rows(connection, waiting) != [(number,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_events_and_business_rows_are_of_one_transaction(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]
) -> None:
    commit = job.write(orders, order_by="number", statements=FILL_ORDERS)

    assert (commit.records, commit.earlier) == (RECORDS, False)
    assert counts(connection) == (RECORDS, RECORDS, 1)
    assert rows(
        connection, "SELECT transaction_id::text::bigint FROM outbox UNION SELECT xmin::text::bigint FROM orders"
    ) == [(commit.ticket.transaction_id,)]
    assert rows(
        connection,
        "SELECT kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM outbox LIMIT 1",
    ) == [("orders", "customer-0", '{"id":0}', ["schema"], ["order/1"])]
    assert rows(connection, "SELECT outbox_id, incarnation FROM outbox_leader") == [
        (commit.ticket.outbox_id, commit.ticket.incarnation)
    ]
    assert staging_tables(connection) == []


def test_ids_follow_the_jobs_order(job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]) -> None:
    job.write(orders.withColumn("negative", -F.col("number")), order_by=["key", "negative"])
    stashed = rows(connection, "SELECT kafka_key, (kafka_value::json->>'id')::int FROM outbox ORDER BY id")
    assert stashed == sorted(stashed, key=lambda record: (record[0], -record[1]))


def test_a_job_tried_again_commits_nothing_more(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]
) -> None:
    first = job.write(orders, order_by="number", statements=FILL_ORDERS)
    never_run = orders.withColumn("value", F.expr("CAST(raise_error('this is run') AS string)"))
    again = replace(job).write(never_run, order_by="number", statements=["this is never run"])
    assert again == replace(first, earlier=True)
    assert counts(connection) == (RECORDS, RECORDS, 1)


def test_a_second_write_of_a_job_is_an_error_and_not_an_earlier_commit(job: OutboxJob, orders: DataFrame) -> None:
    job.write(orders, order_by="number")
    with pytest.raises(JobError, match="has written already"):
        job.write(orders, order_by="number")


def test_another_version_repeats_the_job(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]
) -> None:
    first = job.write(orders, order_by="number")
    second = replace(job, version=1).write(orders, order_by="number")
    assert second.ticket.transaction_id > first.ticket.transaction_id
    assert counts(connection) == (2 * RECORDS, 0, 2)


def test_a_job_without_records_commits(job: OutboxJob, orders: DataFrame) -> None:
    assert job.write(orders.where("false"), order_by="number").records == 0


def test_a_task_that_fails_in_its_first_attempt(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]
) -> None:
    def fail_at_first(value: str) -> str:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and context.partitionId() == 2:
            raise RuntimeError("the first attempt fails")
        return value

    fragile = F.udf(fail_at_first, "string", useArrow=False)
    job.write(orders.withColumn("value", fragile("value")), order_by="number", statements=FILL_ORDERS)
    assert counts(connection) == (RECORDS, RECORDS, 1)


def test_rows_of_an_attempt_that_died_after_its_copy_do_not_count(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    copier, fill, staged = staging._copier, Staging.fill, []

    def dying(data_source: str, copy: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
        stage = copier(data_source, copy)

        def stage_and_die(batches: Iterator[Any]) -> Iterator[Any]:
            done = list(stage(batches))  # the COPY is committed
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt dies")
            yield from done

        return stage_and_die

    def counted(self: Staging, frame: DataFrame, data_source: str) -> StagedRows:
        filled = fill(self, frame, data_source)
        staged.extend(rows(connection, f'SELECT count(*) FROM "{self._table}"')[0])
        return filled

    monkeypatch.setattr(staging, "_copier", dying)
    monkeypatch.setattr(Staging, "fill", counted)
    commit = job.write(orders, order_by="number", statements=FILL_ORDERS)
    assert staged == [2 * RECORDS]
    assert commit.records == RECORDS
    assert counts(connection) == (RECORDS, RECORDS, 1)


def test_two_at_once_commit_once(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any], database: str
) -> None:
    with ThreadPoolExecutor(2) as threads, psycopg.connect(database) as obstacle:
        obstacle.execute("LOCK TABLE orders")
        running = [
            threads.submit(replace(job).write, orders, order_by="number", statements=FILL_ORDERS) for _ in range(2)
        ]
        wait_for_waiting_drivers(connection, 2)  # one at the table, the other until the first has committed
        obstacle.rollback()
        commits = [future.result() for future in running]
    assert sorted(commit.earlier for commit in commits) == [False, True]
    assert len({commit.ticket for commit in commits}) == 1
    assert counts(connection) == (RECORDS, RECORDS, 1)
    assert staging_tables(connection) == []


def test_of_two_at_once_the_second_commits_when_the_first_dies(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any], database: str
) -> None:
    at_the_table = (
        "SELECT pg_terminate_backend(pid) FROM pg_locks"
        " JOIN pg_database ON pg_database.oid = database"
        " WHERE datname = current_database() AND relation = 'orders'::regclass AND NOT granted"
    )
    with ThreadPoolExecutor(2) as threads, psycopg.connect(database) as obstacle:
        obstacle.execute("LOCK TABLE orders")
        running = [
            threads.submit(replace(job).write, orders, order_by="number", statements=FILL_ORDERS) for _ in range(2)
        ]
        wait_for_waiting_drivers(connection, 2)
        assert rows(connection, at_the_table) == [(True,)]
        wait_for_waiting_drivers(connection, 1)
        obstacle.rollback()
        failures = [future.exception() for future in running]
    assert sorted(failure is None for failure in failures) == [False, True]
    assert counts(connection) == (RECORDS, RECORDS, 1)


def test_emptied_staging_is_noticed(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Staging.fill

    def fill_and_lose(self: Staging, frame: DataFrame, data_source: str) -> StagedRows:
        filled = fill(self, frame, data_source)
        connection.execute(f'DELETE FROM "{self._table}" WHERE number = 17')  # type: ignore[call-overload]
        return filled

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "fill", fill_and_lose)
        with pytest.raises(StagingLostError, match=r"of 1000 staged rows 999 are there; nothing was committed.*again"):
            job.write(orders, order_by="number", statements=FILL_ORDERS)
    assert counts(connection) == (0, 0, 0)
    assert job.write(orders, order_by="number", statements=FILL_ORDERS).records == RECORDS


def test_a_crash_of_postgres_before_the_commit(
    spark: SparkSession, orders: DataFrame, server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Staging.fill
    with EmbeddedPostgres(server_folder / "crashing") as server:
        with connect(server.dsn(), purpose="test") as connection:
            init_outbox(connection, OutboxName.parse("outbox"))
        job = OutboxJob(data_source=server.dsn(), app_id="orders")

        def fill_and_crash(self: Staging, frame: DataFrame, data_source: str) -> StagedRows:
            filled = fill(self, frame, data_source)
            server.kill()
            server.start()
            return filled

        with monkeypatch.context() as patch:
            patch.setattr(Staging, "fill", fill_and_crash)
            with pytest.raises(PostgresError):
                job.write(orders, order_by="number")
        with connect(server.dsn(), purpose="test") as connection:
            assert rows(connection, "SELECT count(*) FROM outbox") == [(0,)]
            assert len(staging_tables(connection)) == 1
            assert job.write(orders, order_by="number").records == RECORDS
            assert rows(connection, "SELECT count(*) FROM outbox") == [(RECORDS,)]
            assert staging_tables(connection) == []


def test_a_failing_statement_leaves_nothing(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]
) -> None:
    with pytest.raises(JobError, match=r"statement 2 of the job: .*division by zero.*nothing was committed"):
        job.write(orders, order_by="number", statements=[*FILL_ORDERS, "SELECT 1/0"])
    assert counts(connection) == (0, 0, 0)
    assert staging_tables(connection) == []


def test_a_statement_that_ends_the_transaction_does_not_pass_for_a_commit(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]
) -> None:
    with pytest.raises(JobError, match="statement 2 of the job has ended the transaction"):
        job.write(orders, order_by="number", statements=[*FILL_ORDERS, "COMMIT"])
    assert counts(connection) == (0, RECORDS, 0)
    assert not job.write(orders, order_by="number").earlier


def test_an_id_that_another_writer_enters_meanwhile(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]
) -> None:
    rival = "INSERT INTO outbox_commits (app_id, version, records) VALUES ('orders', 0, 0)"
    with pytest.raises(JobError, match="is entered by another writer; nothing was committed"):
        job.write(orders, order_by="number", statements=[rival])
    assert counts(connection) == (0, 0, 0)


def test_a_trigger_that_drops_records_is_noticed(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]
) -> None:
    connection.execute(
        "CREATE FUNCTION drop_some() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.kafka_key = 'customer-3' THEN RETURN NULL; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER drop_some BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION drop_some()"
    )
    with pytest.raises(JobError, match="of 1000 staged records 857 were inserted; nothing was committed"):
        job.write(orders, order_by="number")
    assert counts(connection) == (0, 0, 0)


@pytest.mark.parametrize(
    ("column", "bad", "message"),
    [
        ("topic", "'no topic'", "topic: 'no topic' is not a legal name"),
        ("topic", "'..'", r"topic: '\.\.' is not a legal name"),
        ("topic", "repeat('x', 250)", "topic: 'x+' is not a legal name"),
        ("topic", "CAST(NULL AS string)", "topic: null is not a legal name"),
        ("key", "CAST(NULL AS string)", "key: null"),
        ("key", "repeat('k', 101)", "key: 101 characters, the column takes 100"),
        ("value", "repeat('v', 10001)", "value: 10001 characters, the column takes 10000"),
        ("headers", f"array({HEADER}, named_struct('key', '', 'value', 'x'))", "headers: a header has no name"),
        ("headers", "array(named_struct('key', 'x', 'value', CAST(NULL AS string)))", "headers: a header has no value"),
    ],
)
def test_an_unfit_record_is_named(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any], column: str, bad: str, message: str
) -> None:
    one_bad = orders.where("number < 20").withColumn(
        column, F.when(F.col("number") >= 17, F.expr(bad)).otherwise(F.col(column))
    )
    with pytest.raises(JobError, match=f"the record at number = 17: {message}.*nothing was committed"):
        job.write(one_bad, order_by="number", statements=FILL_ORDERS)
    assert counts(connection) == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop("key"), "column key is missing"),
        (lambda frame: frame.drop("number"), "column number is missing"),
        (lambda frame: frame.withColumn("key", F.col("number")), "column key is bigint. Cast it to string or binary"),
        (lambda frame: frame.withColumn("headers", F.lit("x")), "column headers is string. Cast it to array"),
        (lambda frame: frame.withColumn("staged_by", F.lit(1)), "column staged_by: the name is taken"),
        (lambda frame: frame.select("*", F.lit(1).alias("number")), "a name comes twice"),
        (lambda frame: frame.withColumn("nested", F.struct("number")), "column nested is struct<number:bigint>"),
        (lambda frame: frame.withColumn("nested", F.array(F.array("number"))), "column nested is array<array<bigint>>"),
    ],
)
def test_columns_that_do_not_fit(job: OutboxJob, orders: DataFrame, change: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        job.write(change(orders), order_by="number")


def test_all_types_arrive_as_they_are(job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any]) -> None:
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
        "CAST(NULL AS int) AS nothing",
        "'new\\nline \\\\. \\\\N' AS `a text.with dots`",
    )
    shown = """CREATE TABLE shown AS SELECT a_boolean::text, a_tinyint::text, a_smallint::text, a_float::text,
        a_double::text, a_decimal::text, a_binary::text, a_date::text,
        (a_timestamp AT TIME ZONE 'UTC')::text AS a_timestamp, a_local_time::text,
        an_array, nothing, "a text.with dots" FROM staged"""
    job.write(typed, order_by="number", statements=[shown])
    with connection.cursor(row_factory=dict_row) as cursor:
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
                "nothing": None,
                "a text.with dots": "new\nline \\. \\N",
            }
        ]


def test_bytes_partitions_and_records_without_headers(spark: SparkSession, database: str) -> None:
    with connect(database, purpose="test") as connection:
        name = OutboxName.parse('"Events"."Out box"')
        init_outbox(connection, name, key_type="bytea", value_type="bytea", header_type="bytea")
        job = OutboxJob(data_source=database, app_id="bytes", outbox='"Events"."Out box"')
        frame = spark.range(1).selectExpr("'t' AS topic", "X'00FF' AS key", "'text' AS value", "3 AS partition", "id")
        job.write(frame, order_by="id")
        job = replace(job, version=1)
        header = "array(named_struct('key', 'h', 'value', X'FF00')) AS headers"
        job.write(frame.selectExpr("topic", "'k' AS key", "CAST(NULL AS string) AS value", header, "id"), order_by="id")
        columns = "kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition"
        assert rows(connection, f'SELECT {columns} FROM "Events"."Out box" ORDER BY id') == [
            (b"\x00\xff", b"text", [], [], 3),
            (b"k", None, ["h"], [b"\xff\x00"], None),
        ]


def test_leftovers_of_dead_runs_are_swept_and_nothing_else(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any], database: str
) -> None:
    connection.execute("CREATE UNLOGGED TABLE outbox_staging_dead (); CREATE UNLOGGED TABLE outbox_staging_alive ()")
    connection.execute("CREATE TABLE outbox_staging_logged (); CREATE UNLOGGED TABLE other_staging_dead ()")
    with psycopg.connect(database, autocommit=True) as living_driver:
        living_driver.execute("SELECT pg_advisory_lock(hashtextextended('outbox_staging_alive', 0))")
        job.write(orders, order_by="number")
        assert sorted(staging_tables(connection)) == ["other_staging_dead", "outbox_staging_alive"]
    replace(job, version=1).write(orders, order_by="number")
    assert staging_tables(connection) == ["other_staging_dead"]
    assert rows(connection, "SELECT to_regclass('outbox_staging_logged') IS NOT NULL") == [(True,)]


def test_staging_that_a_straggler_holds_is_left_to_the_next_run(
    job: OutboxJob,
    orders: DataFrame,
    connection: psycopg.Connection[Any],
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill = Staging.fill
    with psycopg.connect(database) as straggler:

        def fill_while_another_does(self: Staging, frame: DataFrame, data_source: str) -> StagedRows:
            straggler.execute(f'LOCK TABLE "{self._table}" IN ROW EXCLUSIVE MODE')  # type: ignore[call-overload]
            return fill(self, frame, data_source)

        with monkeypatch.context() as patch:
            patch.setattr(Staging, "fill", fill_while_another_does)
            assert job.write(orders, order_by="number").records == RECORDS
        assert len(staging_tables(connection)) == 1
    replace(job, version=1).write(orders, order_by="number")
    assert staging_tables(connection) == []


def test_a_role_of_its_own_is_enough(
    job: OutboxJob, orders: DataFrame, connection: psycopg.Connection[Any], postgres: EmbeddedPostgres
) -> None:
    role = f"job_{threading.get_native_id()}_{time.monotonic_ns()}"
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT INSERT ON orders TO {role}")  # type: ignore[call-overload]
    for statement in grant_statements(connection, OutboxName.parse("outbox"), "job", role):
        connection.execute(statement)  # type: ignore[call-overload]
    try:
        own = postgres.dsn(connection.info.dbname, user=role, password="secret")
        replace(job, data_source=own).write(orders, order_by="number", statements=FILL_ORDERS)
        assert counts(connection) == (RECORDS, RECORDS, 1)
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")  # type: ignore[call-overload]


def test_an_outbox_that_is_not_there(job: OutboxJob, orders: DataFrame) -> None:
    with pytest.raises(OutboxMissingError):
        replace(job, outbox="missing").write(orders, order_by="number")

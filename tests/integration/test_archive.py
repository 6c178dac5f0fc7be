"""The archive: what is purged goes there by the same statement, by days, for as long as it is retained."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support.harvesting import CHILD, GOHARVEST_TABLE, Outbox, Process, make_outbox, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import FencedError, InvalidNameError, PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.check import examine
from airflow_outbox.postgres.archive import DAYS_AHEAD, Archive
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.schema import grant_statements, init_outbox
from airflow_outbox.postgres.table import SCHEMA_VERSION, OutboxTable
from airflow_outbox.values.pages import PageSnapshot
from airflow_outbox.values.refusals import Cause, Refusal

NAME = OutboxName.parse("outbox")
MONTH = 30 * 86400.0
Query = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def query(connection: psycopg.Connection[Any]) -> Query:
    return lambda statement: connection.execute(statement.encode()).fetchall()


def take_over(connection: psycopg.Connection[Any]) -> tuple[OutboxTable, Any]:
    table, view = OutboxTable(connection, NAME, archives=True), uuid4()
    table.take_over(view, [table.backend()], member="test")
    return table, view


def fill(connection: psycopg.Connection[Any], count: int) -> None:
    headers = {"h": "1"}
    records = [OutboxRecord("t", f"k{number}", str(number), headers, partition=number) for number in range(count)]
    stash(connection, records)


def today() -> date:
    return datetime.now(UTC).date()


def test_what_is_purged_exactly_once_is_archived_whole_and_once(
    connection: psycopg.Connection[Any], query: Query
) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    table, view = take_over(connection)
    fill(connection, 5)
    columns = (
        "id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition,"
        " transaction_id"
    )
    before = query(f"SELECT {columns} FROM outbox WHERE id < 4 ORDER BY id")
    page = table.windows.read(PageSnapshot(), max_records=100, max_bytes=10**9, transaction_ids=False)
    for _ in range(2):
        table.windows.purge_published(view, [1, 2, 3], page.snapshot, batch=7)
    assert query(f"SELECT {columns} FROM outbox_archive ORDER BY id") == before
    assert query("SELECT DISTINCT view, batch FROM outbox_archive") == [(view, 7)]
    assert query("SELECT count(*) FROM outbox") == [(2,)]
    assert query("SELECT DISTINCT tableoid::regclass::text FROM outbox_archive") == [
        (f"outbox_archive_{today():%Y%m%d}",)
    ]
    _, new = take_over(connection)
    with pytest.raises(FencedError):
        table.windows.purge_published(view, [4, 5], page.snapshot, batch=8)
    assert query("SELECT count(*) FROM outbox_archive") == [(3,)]
    table.windows.purge_published(new, [4, 5], page.snapshot, batch=8)
    assert query("SELECT id, batch FROM outbox_archive ORDER BY id")[3:] == [(4, 8), (5, 8)]


@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "goharvest's table"])
def test_what_is_purged_at_least_once_is_archived(
    connection: psycopg.Connection[Any], query: Query, theirs: bool
) -> None:
    if theirs:
        connection.execute(GOHARVEST_TABLE.format("outbox"))
    init_outbox(connection, NAME, archive_retention=MONTH)
    table, view = take_over(connection)
    connection.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)"
        " SELECT now(), 't', n, ARRAY['h'], ARRAY['1'] FROM generate_series(1, 3) AS n"
    )
    table.marks.mark(view, max_records=2, max_bytes=10**9)
    table.marks.purge(view, [1, 2, 3])
    assert query("SELECT id, kafka_header_values, batch FROM outbox_archive ORDER BY id") == [
        (1, ["1"], None),
        (2, ["1"], None),
    ]
    assert query("SELECT id FROM outbox") == [(3,)]


def test_what_cannot_be_deleted_is_archived_when_it_can(connection: psycopg.Connection[Any], query: Query) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    table, view = take_over(connection)
    fill(connection, 1000)
    connection.execute("CREATE TABLE mail (event BIGINT REFERENCES outbox)")
    connection.execute("INSERT INTO mail VALUES (5), (77), (900)")
    page = table.windows.read(PageSnapshot(), max_records=1000, max_bytes=10**9, transaction_ids=False)
    for _ in range(2):  # the second time as after a crash
        table.windows.purge_published(view, range(1, 1001), page.snapshot, batch=7)
        table.undeleted.try_again(view)
        assert query("SELECT id, published FROM outbox_undeleted ORDER BY id") == [(n, True) for n in (5, 77, 900)]
        assert query("SELECT id FROM outbox ORDER BY id") == [(5,), (77,), (900,)]
        assert query("SELECT count(DISTINCT id), count(*) FROM outbox_archive") == [(997, 997)]
    assert OutboxTable(connection, NAME).is_empty()
    connection.execute("DELETE FROM mail WHERE event = 77")
    table.undeleted.try_again(view)
    assert query("SELECT id FROM outbox_undeleted ORDER BY id") == [(5,), (900,)]
    assert query("SELECT count(*) FROM outbox_archive WHERE id = 77") == [(1,)]
    with pytest.raises(FencedError):
        table.undeleted.try_again(uuid4())


def test_what_is_parked_and_cannot_be_deleted_is_archived_once(
    connection: psycopg.Connection[Any], query: Query
) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    table, view = take_over(connection)
    fill(connection, 3)
    connection.execute("CREATE TABLE mail (event BIGINT REFERENCES outbox)")
    connection.execute("INSERT INTO mail VALUES (2)")
    page = table.windows.read(PageSnapshot(), max_records=100, max_bytes=10**9, transaction_ids=False)
    parked = ParkedTable(table)
    refused = {1: Refusal(Cause.REFUSED, "why"), 2: None, 3: None}
    for _ in range(2):  # the second time as after a crash
        parked.park(view, refused, page.snapshot)
        assert query("SELECT id, cause FROM outbox_parked ORDER BY number") == [(1, "refused"), (2, None), (3, None)]
        table.undeleted.try_again(view)
        assert query("SELECT id FROM outbox") == [(2,)]
    parked.unpark(view, [number for (number,) in query("SELECT number FROM outbox_parked")], batch=9)
    connection.execute("DELETE FROM mail")
    table.undeleted.try_again(view)
    assert query("SELECT id, batch FROM outbox_archive ORDER BY id") == [(1, 9), (2, 9), (3, 9)]
    assert query("SELECT count(*) FROM outbox") == query("SELECT count(*) FROM outbox_undeleted") == [(0,)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_publication_of_all_tables_stops_no_archive(
    connection: psycopg.Connection[Any], query: Query, when: str
) -> None:
    if when == "before":
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    init_outbox(connection, NAME, archive_retention=MONTH)
    if when == "after":
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    table, view = take_over(connection)
    last = today() + timedelta(days=DAYS_AHEAD)
    connection.execute(f"DROP TABLE outbox_archive_{today():%Y%m%d}, outbox_archive_{last:%Y%m%d}".encode())
    fill(connection, 1)
    page = table.windows.read(PageSnapshot(), max_records=100, max_bytes=10**9, transaction_ids=False)
    table.windows.purge_published(view, [1], page.snapshot)
    archive = Archive(connection, NAME)
    assert archive.default_records() == 1
    archive.tend(now=archive.now(), retention=MONTH)
    assert {today(), last} <= archive.days()
    assert archive.default_records() == 0
    assert query("SELECT id FROM outbox_archive") == [(1,)]


def test_what_is_published_from_the_parked_table_is_archived_too(
    connection: psycopg.Connection[Any], query: Query
) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    table, view = take_over(connection)
    fill(connection, 2)
    connection.execute(
        "INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values,"
        " transaction_id, incarnation) SELECT id, create_time, kafka_topic, kafka_key, kafka_header_keys,"
        " kafka_header_values, transaction_id, 1 FROM outbox"
    )
    ParkedTable(table).unpark(view, [2], batch=9)
    assert query("SELECT id, kafka_key, batch FROM outbox_archive") == [(2, "k1", 9)]
    assert query("SELECT number FROM outbox_parked") == [(1,)]


def test_init_makes_the_archive_with_partitions_for_days_ahead_once(
    connection: psycopg.Connection[Any], query: Query
) -> None:
    assert init_outbox(connection, NAME) == [
        f'created "outbox" and the tables beside it, schema version {SCHEMA_VERSION}'
    ]
    assert init_outbox(connection, NAME, archive_retention=MONTH) == ['created "outbox_archive"']
    assert init_outbox(connection, NAME, archive_retention=MONTH) == []
    days = {today() + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)}
    assert Archive(connection, NAME).days() == days
    bounds = query(
        f"SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'outbox_archive_{today():%Y%m%d}'"
    )
    with psycopg.connect(
        connection.info.dsn, password=connection.info.password, options="-c TimeZone=Asia/Tokyo"
    ) as elsewhere:
        Archive(elsewhere, NAME).tend(now=datetime.now(UTC) + timedelta(days=1), retention=MONTH)
    connection.execute("SET TimeZone = 'Asia/Tokyo'")
    assert len(Archive(connection, NAME).days()) == DAYS_AHEAD + 2
    assert bounds  # days are UTC's, whatever the session's zone
    begins = query(
        "SELECT (regexp_match(pg_get_expr(relpartbound, oid), 'FROM \\(''([^'']+)''\\)'))[1]::timestamptz"
        " FROM pg_class WHERE relname ~ 'outbox_archive_[0-9]{8}$' ORDER BY relname"
    )
    assert [begin.astimezone(UTC).hour for (begin,) in begins] == [0] * (DAYS_AHEAD + 2)


def test_days_that_are_kept_no_longer_are_dropped_whole(connection: psycopg.Connection[Any], query: Query) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    archive, now = Archive(connection, NAME), datetime.now(UTC)
    first = min(archive.days())
    assert archive.tend(now=now + timedelta(days=2), retention=86400.0 * 3)[-1].startswith("created")
    assert first in archive.days()
    done = archive.tend(now=now + timedelta(days=4), retention=86400.0 * 3)
    assert done[-1] == f'dropped "outbox_archive_{first:%Y%m%d}"'
    assert first not in archive.days()
    insert = (
        "INSERT INTO outbox_archive (id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values,"
        " transaction_id, archived_at, view) SELECT 1, now(), 't', 'k', ARRAY[]::text[], ARRAY[]::text[], '1', at,"
        " gen_random_uuid() FROM unnest(%s::timestamptz[]) AS at"
    )
    connection.execute(insert.encode(), [[now - timedelta(days=5), now]])
    archive.tend(now=now, retention=86400.0 * 3)
    assert query("SELECT archived_at FROM outbox_archive") == [(now,)]
    assert archive.default_records() == 0  # it has moved into a partition that was made for it


def test_without_a_partition_purging_goes_on_and_the_day_gets_one_later(
    connection: psycopg.Connection[Any], query: Query
) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    connection.execute(f"DROP TABLE outbox_archive_{today():%Y%m%d}".encode())
    table, view = take_over(connection)
    fill(connection, 3)
    page = table.windows.read(PageSnapshot(), max_records=100, max_bytes=10**9, transaction_ids=False)
    table.windows.purge_published(view, [1, 2, 3], page.snapshot, batch=1)
    archive = Archive(connection, NAME)
    assert archive.default_records() == 3
    archive.tend(now=datetime.now(UTC), retention=MONTH)
    assert archive.default_records() == 0
    assert query(f"SELECT count(*) FROM outbox_archive_{today():%Y%m%d}") == [(3,)]


def test_several_that_tend_at_once_do_it_once(
    database: str, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_turns(archive: Archive) -> None:
        """As usual, but without the time limit, which a busy machine exceeds."""
        archive._statements.execute("connection.lock_name", {"name": archive._name.text()})

    monkeypatch.setattr(Archive, "_wait_briefly", take_turns)
    init_outbox(connection, NAME, archive_retention=MONTH)
    later = datetime.now(UTC) + timedelta(days=30)

    def tend(_: int) -> int:
        with psycopg.connect(database, autocommit=True) as own:
            return len(Archive(own, NAME).tend(now=later, retention=86400.0))

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(tend, range(4)))
    assert len(Archive(connection, NAME).days()) == DAYS_AHEAD + 1
    assert sum(done) >= 2 * (DAYS_AHEAD + 1)


def test_a_reader_of_the_archive_does_not_hold_up_purging_for_long(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    with psycopg.connect(database) as reader:
        reader.execute("SELECT count(*) FROM outbox_archive")
        with pytest.raises(PostgresError, match="lock timeout"):
            Archive(connection, NAME).tend(now=datetime.now(UTC) + timedelta(days=2), retention=1)
        table, view = take_over(connection)
        fill(connection, 1)
        page = table.windows.read(PageSnapshot(), max_records=100, max_bytes=10**9, transaction_ids=False)
        table.windows.purge_published(view, [1], page.snapshot, batch=1)
        assert reader.execute("SELECT count(*) FROM outbox_archive").fetchone() == (1,)


def test_a_harvester_that_may_make_no_tables_uses_the_default_partition(
    database: str, connection: psycopg.Connection[Any], query: Query
) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    role = "harvest_" + psycopg.conninfo.conninfo_to_dict(database)["dbname"][-12:]
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
    try:
        for statement in grant_statements(connection, NAME, "harvest", role):
            connection.execute(statement.encode())
        with psycopg.connect(database, user=role, password="secret", autocommit=True) as harvester:
            table, view = take_over(harvester)
            fill(connection, 2)
            page = table.windows.read(PageSnapshot(), max_records=100, max_bytes=10**9, transaction_ids=False)
            table.windows.purge_published(view, [1], page.snapshot, batch=1)
            connection.execute(f"DROP TABLE outbox_archive_{today():%Y%m%d}".encode())
            archive = Archive(harvester, NAME)
            assert archive.tend(now=datetime.now(UTC), retention=MONTH) == []
            table.windows.purge_published(view, [2], page.snapshot, batch=1)
            assert archive.default_records() == 1
            archive.tend(now=datetime.now(UTC) + timedelta(days=40), retention=MONTH)
            assert archive.default_records() == 0
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                harvester.execute("DELETE FROM outbox_archive")
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_name_that_leaves_no_room_for_the_partitions_is_refused(connection: psycopg.Connection[Any]) -> None:
    longest = OutboxName.parse("o" * 46)
    init_outbox(connection, longest, archive_retention=MONTH)
    assert len(Archive(connection, longest).days()) == DAYS_AHEAD + 1
    with pytest.raises(InvalidNameError, match="at most 46 bytes"):
        init_outbox(connection, OutboxName.parse("o" * 47), archive_retention=MONTH)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_harvest_archives_all_that_it_publishes_and_tends_to_the_archive(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, delivery: str
) -> None:
    outbox = make_outbox(
        database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", purge="archive", delivery=delivery
    )
    outbox.query("SELECT 1")
    config = HarvestConfig.validated(outbox.settings, source="test")
    assert any('there is no "outbox_archive"' in finding.text for finding in examine(config))
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME, archive_retention=config.archive_retention)
        for ahead in (0, 1):
            connection.execute(f"DROP TABLE outbox_archive_{today() + timedelta(days=ahead):%Y%m%d}".encode())
    assert any("no partition for tomorrow" in finding.text for finding in examine(config))
    outbox.stash(3000)
    process = Process(CHILD, first_line={"config": outbox.settings})
    try:
        wait_until(lambda: outbox.left() == 0, doing="harvesting")
        wait_until(lambda: len(days(database)) == DAYS_AHEAD + 1, doing=f"tending: {process.events}")
    finally:
        process.end()
    assert outbox.query("SELECT count(*), count(DISTINCT id) FROM outbox_archive") == [(3000, 3000)]
    assert outbox.query("SELECT count(*) FROM outbox_archive_default") == [(0,)]
    batches = outbox.query("SELECT count(DISTINCT batch) FROM outbox_archive")[0][0]
    assert (batches > 0) == (delivery == "exactly_once")
    assert not any("archive" in finding.text for finding in examine(config))


def days(database: str) -> set[date]:
    with psycopg.connect(database) as connection:
        return Archive(connection, NAME).days()


def test_a_harvester_without_its_archive_does_not_start(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> None:
    outbox: Outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", purge="archive")
    process = Process(CHILD, first_line={"config": outbox.settings})
    try:
        process.ends()
    finally:
        process.end()
    assert 'there is no "public"."outbox_archive". Run `airflow-outbox init`' in process.events[-1]["error"]

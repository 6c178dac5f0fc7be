"""Windows over a real Postgres: each committed record is read once, whatever the writers' transactions do."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.protocol.windows import Windows
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.statements import composed
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.pages import OutboxRow
from airflow_outbox.values.records import Snapshot

NAME = OutboxName.parse("outbox")
INSERT = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES ('t', 'k', %s)"


@pytest.fixture(scope="module")
def own_postgres(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    settings = {"max_prepared_transactions": "20", "autovacuum": "off"}  # which has transactions of its own
    with EmbeddedPostgres(server_folder / "windows", fsync=False, settings=settings) as server:
        yield server


@pytest.fixture
def prepared_database(own_postgres: EmbeddedPostgres) -> Iterator[str]:
    """One whose server knows prepared transactions, with an outbox."""
    name = f"windows_{uuid.uuid4().hex[:12]}"
    database = own_postgres.create_database(name)
    with psycopg.connect(database) as connection:
        init_outbox(connection, NAME)
    yield database
    own_postgres.drop_database(name)


class Reader:
    """Reads as a leader does."""

    def __init__(self, database: str, *, max_records: int) -> None:
        self.table = OutboxTable(connect(database, purpose="test"), NAME)
        self.table.prefer_indexes()
        self.windows = Windows()
        self.seen: Counter[str] = Counter()
        self.ids: list[int] = []
        self.pages: list[tuple[int, int]] = []
        """Of each page its records, and the blocks that were looked at for it, if they are counted."""
        self.counts_blocks = False
        self._max_records = max_records

    def read(self) -> bool:
        """A page; whether there was anything."""
        before = self._blocks()
        page = self.table.windows.read(
            self.windows.next, max_records=self._max_records, max_bytes=10**9, transaction_ids=False
        )
        rows: list[OutboxRow] = list(page.rows)
        self.seen.update(str(row[3]) for row in rows)
        self.ids += [row[0] for row in rows]
        self.pages.append((len(rows), self._blocks() - before))
        self.windows.advance(snapshot=page.snapshot, last_id=rows[-1][0] if rows else None, complete=page.complete)
        return bool(rows)

    def _blocks(self) -> int:
        """How many blocks of the table and its indexes anybody has looked at."""
        if not self.counts_blocks:
            return 0
        self.table.connection.execute("SELECT pg_stat_force_next_flush()")
        query = (
            "SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit FROM pg_statio_user_tables"
            " WHERE relname = 'outbox'"
        )
        [(found,)] = self.table.connection.execute(query).fetchall()
        return int(found)

    def read_all(self) -> None:
        """Until a window comes that is empty."""
        while self.read():
            pass


Kept = Callable[[psycopg.Connection, list[str], random.Random], list[str]]
"""Writes some values, ends the transaction, and tells which are committed."""


def committed(connection: psycopg.Connection, values: list[str], _: random.Random) -> list[str]:
    for value in values:
        connection.execute(INSERT, [value])
    connection.commit()
    return values


def rolled_back(connection: psycopg.Connection, values: list[str], _: random.Random) -> list[str]:
    for value in values:
        connection.execute(INSERT, [value])
    connection.rollback()
    return []


def with_savepoints(connection: psycopg.Connection, values: list[str], chance: random.Random) -> list[str]:
    kept = []
    for value in values:
        with connection.transaction() as savepoint:
            connection.execute(INSERT, [value])
            if chance.random() < 0.5:
                raise psycopg.Rollback(savepoint)
            kept.append(value)
    connection.commit()
    return kept


def with_ids_drawn_early(connection: psycopg.Connection, values: list[str], chance: random.Random) -> list[str]:
    """Before the transaction has an id of its own."""
    drawn = [connection.execute("SELECT nextval('outbox_id_seq')").fetchone() for _ in values]
    time.sleep(chance.uniform(0, 0.1))
    for value, row in zip(values, drawn, strict=True):
        assert row is not None
        connection.execute(
            "INSERT INTO outbox (id, kafka_topic, kafka_key, kafka_value) VALUES (%s, 't', 'k', %s)", [row[0], value]
        )
    connection.commit()
    return values


def slow(connection: psycopg.Connection, values: list[str], chance: random.Random) -> list[str]:
    for value in values:
        connection.execute(INSERT, [value])
        time.sleep(chance.uniform(0, 0.1))
    connection.commit()
    return values


def prepared(connection: psycopg.Connection, values: list[str], chance: random.Random) -> list[str]:
    for value in values:
        connection.execute(INSERT, [value])
    name = sql.Literal(str(uuid.uuid4()))
    keeps = chance.random() < 0.7
    connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(name))
    connection.commit()
    time.sleep(chance.uniform(0, 0.2))
    connection.autocommit = True
    connection.execute(sql.SQL("COMMIT PREPARED {}" if keeps else "ROLLBACK PREPARED {}").format(name))
    connection.autocommit = False
    return values if keeps else []


KINDS: list[Kept] = [committed, rolled_back, with_savepoints, with_ids_drawn_early, slow, prepared]


@pytest.mark.parametrize("max_records", [7, 10_000], ids=["pages of 7", "whole windows"])
def test_each_committed_record_is_read_once(
    prepared_database: str, max_records: int, request: pytest.FixtureRequest
) -> None:
    seconds = 60 if request.config.getoption("--faults") == "long" else 4
    kept: list[str] = []
    ending = threading.Event()

    def write(writer: int) -> None:
        chance = random.Random(writer)
        with psycopg.connect(prepared_database) as connection:
            for turn in range(1_000_000):
                if ending.is_set():
                    return
                values = [f"{writer}/{turn}/{number}" for number in range(chance.randint(1, 12))]
                kept.extend(chance.choice(KINDS)(connection, values, chance))

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    reader = Reader(prepared_database, max_records=max_records)
    with closing(reader.table), psycopg.connect(prepared_database) as late:
        late.execute(INSERT, ["hours late"])
        for writer in writers:
            writer.start()
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end or (
                time.monotonic() < end + PATIENCE and (len(reader.pages) <= 100 or came_late(reader.ids) <= 20)
            ):
                reader.read()
        finally:
            ending.set()
            for writer in writers:
                writer.join()
        reader.read_all()
        windows = len(reader.pages)
        late.commit()
        reader.read_all()
    assert windows > 100
    assert reader.seen == Counter([*kept, "hours late"])
    assert came_late(reader.ids) > 20, "hardly any record came after one with a higher id"


def came_late(ids: Sequence[int]) -> int:
    """How many records came after one with a higher id."""
    return sum(later < earlier for earlier, later in pairwise(ids))


def test_no_window_shows_what_its_snapshot_does_not_see(prepared_database: str) -> None:
    """Neither its first page, by transaction ids, nor the next ones, by ids. The trigger is off: the statements alone
    have to leave out a row that claims a transaction to come.
    """
    reader = Reader(prepared_database, max_records=2)
    with closing(reader.table), psycopg.connect(prepared_database, autocommit=True) as writer:
        writer.execute("ALTER TABLE outbox DISABLE TRIGGER ALL")
        reader.read_all()
        before = reader.windows.next.after
        assert before is not None
        for value in ("1", "2", "3"):
            writer.execute(INSERT, [value])
        writer.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, transaction_id)"
            " VALUES ('t', 'k', 'to come', %s::text::xid8)",
            [before.xmax + 10],
        )
        assert reader.read()
        writer.execute(INSERT, ["of the next window"])
        assert reader.read()
        assert reader.windows.next.within is None
        assert reader.seen == Counter(["1", "2", "3"])
        reader.read_all()
        assert reader.seen == Counter(["1", "2", "3", "of the next window"])
        for _ in range(10):
            writer.execute("SELECT pg_current_xact_id()")
        reader.read_all()
        reader.read_all()
        assert reader.seen == Counter(["1", "2", "3", "of the next window", "to come"])


def test_a_transaction_without_end_costs_nothing(prepared_database: str) -> None:
    reader = Reader(prepared_database, max_records=100)
    with (
        closing(reader.table),
        psycopg.connect(prepared_database) as idle,
        psycopg.connect(prepared_database) as writer,
    ):
        idle.execute(INSERT, ["at last"])
        for turn in range(50):
            committed(writer, [str(turn)], random.Random())
            reader.read_all()
        assert len(reader.seen) == 50
        after = reader.windows.next.after
        assert after is not None
        assert len(after.in_progress) == 1
        idle.commit()
        reader.read_all()
        assert reader.seen["at last"] == 1


def plan(table: OutboxTable, statement: str, **values: object) -> str:
    query = composed(
        f"windows.{statement}",
        table.name,
        partition=sql.Identifier("kafka_partition"),
        transaction_id=sql.SQL("NULL::bigint"),
        durable=sql.SQL("0"),
        table=sql.SQL("NULL"),
        last_drawn=sql.SQL("0"),
        key=table.key,
        measured=composed("windows.measured", table.name),
        fresh=table.fresh,
    )
    given = {"max_records": 10_000, "max_size": 10**8, "most_bytes": 10**8, "above": 0, "within": None, **values}
    rows = table.connection.execute(sql.SQL("EXPLAIN {}").format(query), given).fetchall()
    return "\n".join(row[0] for row in rows)


def test_transactions_to_come_are_looked_for_without_a_look_at_dead_rows(prepared_database: str) -> None:
    """While an old snapshot keeps dead rows, the index on transaction ids leads to them, too."""
    with (
        psycopg.connect(prepared_database, autocommit=True) as connection,
        psycopg.connect(prepared_database) as reporting,
    ):
        reporting.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reporting.execute("SELECT count(*) FROM outbox")
        committed(connection, [str(number) for number in range(2000)], random.Random())
        connection.execute("DELETE FROM outbox")
        connection.execute("SET enable_seqscan = off")
        query = composed("fence.newest_transaction_id", NAME)
        explaining = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT {}").format(query)
        (found,) = connection.execute(explaining).fetchall()
        plan = found[0][0]["Plan"]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 10, plan
        assert connection.execute(sql.SQL("SELECT {}").format(query)).fetchone() == (0,)
        connection.execute("ALTER TABLE outbox DISABLE TRIGGER ALL")
        connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, transaction_id) VALUES ('t', 'k', %s::text::xid8)", [2**40]
        )
        assert connection.execute(sql.SQL("SELECT {}").format(query)).fetchone() == (2**40,)


@pytest.mark.parametrize("undeleted", [0, 1, 1_000])
def test_a_large_transaction_is_paged_by_indexes_though_statistics_know_nothing_of_it(
    prepared_database: str, undeleted: int
) -> None:
    """A million records, of which the first page and the last cost about the same."""
    with psycopg.connect(prepared_database, autocommit=True) as writer:
        writer.execute(
            "INSERT INTO outbox_undeleted (id, create_time, shard, published, reason)"
            " SELECT -n, now(), 0, true, 'why' FROM generate_series(1, %s) AS n",
            (undeleted,),
        )
        writer.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")
        writer.execute("ANALYZE outbox")
        reader = Reader(prepared_database, max_records=10_000)
        with closing(reader.table):
            committed(writer, ["first"], random.Random())
            reader.read_all()
            before = reader.windows.next.after
            writer.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
                "SELECT 't', 'k', n::text FROM generate_series(1, 1000000) AS n"
            )
            writer.execute("SELECT pg_stat_force_next_flush()")
            reader.pages.clear()
            reader.counts_blocks = True
            within: Snapshot | None = None
            while reader.read():
                within = within or reader.windows.next.within
            assert len(reader.seen) == 1_000_001
            assert set(reader.seen.values()) == {1}
            first = plan(reader.table, "read_window", after=str(before))
            further = plan(reader.table, "read_on", after=str(before), within=str(within), above=500_000)
    blocks = [blocks for records, blocks in reader.pages if records == 10_000]
    assert "outbox_transaction_id_idx" in first, first
    assert "outbox_pkey" in further, further
    assert "Seq Scan" not in first + further
    assert "Sort" not in further, further
    assert len(blocks) == 99  # and smaller ones, with which a term begins
    early, late = sum(blocks[1:11]), sum(blocks[-10:])
    assert max(early, late) < 3 * min(early, late), blocks


def test_a_leader_reads_without_compiling(database: str) -> None:
    """Postgres compiles what it thinks is expensive, as it thinks of all that it was told not to do (up to 17)."""
    with psycopg.connect(database) as connection:
        init_outbox(connection, NAME)
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET jit = on')  # type: ignore[call-overload]
    table = Reader(database, max_records=10).table
    with table.connection as connection:
        assert connection.execute("SHOW jit").fetchone() == ("off",)

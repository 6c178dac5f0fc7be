"""Which clusters count, as Postgres keeps it, while others change it, read it or migrate it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from support.harvesting import PATIENCE, wait_until
from support.leading import NAME

from airflow_outbox.errors import ConfigurationError, OutboxError, TakeOverError
from airflow_outbox.operate.clusters import request_detach
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.clusters import ClusterStatements
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.layout import ask_layout, known_shards, read_layout, write_layout
from airflow_outbox.postgres.membership import ask_attach, read_membership, write_membership
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.slots import make_indexes
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.verdict_facts import read_facts
from airflow_outbox.values.fence import LedgerPosition
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.records import Snapshot

AS_OF_VERSION_14 = (
    "ALTER TABLE outbox_cluster DROP COLUMN lacks CASCADE; ALTER TABLE outbox_ledger DROP COLUMN skipped;"
    " ALTER TABLE outbox_state DROP COLUMN attach_closing;"
    " DROP TABLE outbox_positions, outbox_undeleted, outbox_member;"
    " UPDATE outbox_state SET schema_version = 14"
)


def meanwhile(database: str, connection: psycopg.Connection[Any], act: Callable[[Any], object]) -> Callable[[], object]:
    """Begin to act over another connection, and return when it waits for a lock. The result waits until it has ended,
    and returns the error, if any.
    """
    errors: list[Exception] = []

    def run() -> None:
        with closing(connect(database, purpose="test")) as other:
            other.execute("SET lock_timeout = 0")
            try:
                act(other)
            except (OutboxError, psycopg.Error) as error:
                errors.append(error)

    acting = threading.Thread(target=run)
    acting.start()
    waits = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND application_name = 'airflow-outbox test'"
    )
    wait_until(lambda: connection.execute(waits).fetchall() or not acting.is_alive())
    assert acting.is_alive()

    def ended() -> object:
        acting.join(PATIENCE)
        assert not acting.is_alive()
        return errors[0] if errors else None

    return ended


def test_a_request_that_comes_as_the_cluster_begins_to_count_is_refused(
    connection: psycopg.Connection[Any], database: str
) -> None:
    init_outbox(connection, NAME)
    add_clusters(connection, NAME, ["b"])
    write_membership(connection, NAME, {"b": "owed"})
    with psycopg.connect(database) as changing, changing.transaction():
        write_membership(changing, NAME, {"b": "backup"})
        ended = meanwhile(database, connection, lambda other: ask_attach(other, NAME, cluster="b"))
    error = ended()
    assert isinstance(error, ConfigurationError)
    assert "it counts already" in str(error)
    assert read_membership(connection, NAME).attach is None


def test_whoever_reads_the_verdict_does_not_wait_for_a_migration_that_waits_for_him(
    connection: psycopg.Connection[Any], database: str
) -> None:
    init_outbox(connection, NAME)
    connection.execute(AS_OF_VERSION_14.encode())
    with psycopg.connect(database) as reading:
        reading.execute("SELECT FROM outbox_shard, outbox_state")  # the statement names these first
        ended = meanwhile(database, connection, lambda other: init_outbox(other, NAME))
        reading.execute("SET lock_timeout = '1min'")  # a deadlock is found within a second
        reading.execute("SELECT FROM outbox_ledger")
        reading.commit()
    assert ended() is None
    read_facts(connection, NAME)


def test_shards_of_earlier_layouts_are_known_and_only_who_attaches_a_cluster_takes_them_over(
    connection: psycopg.Connection[Any], database: str
) -> None:
    init_outbox(connection, NAME)
    make_indexes(connection, NAME)
    ask_layout(connection, NAME, shards=4)
    views: dict[int, UUID] = {}
    for shard in range(4):
        table, views[shard] = OutboxTable(connection, NAME, shard=shard), uuid4()
        table.take_over(views[shard], [], member="test")
        assert table.fence(views[shard]).dormant == ()
        witness = LedgerPosition("ledger", batch=0 if shard == 2 else 5, offset=7)
        table.begin(views[shard], delivery="exactly_once", witness=witness)
    write_layout(connection, NAME, views=views, shards=1)
    first, last, view = OutboxTable(connection, NAME), OutboxTable(connection, NAME, shard=3), uuid4()
    assert first.take_over(uuid4(), [], member="test").dormant == (1, 3)
    assert known_shards(connection, NAME) == 4
    with pytest.raises(TakeOverError):
        last.take_over(view, [], member="test")
    assert last.take_over(view, [], member="test", reshards=True).witness.batch == 5
    write_membership(connection, NAME, {}, views={3: (view, None)})


def test_other_shards_are_led_unless_a_cluster_that_is_asked_for_is_about_to_count(
    connection: psycopg.Connection[Any],
) -> None:
    init_outbox(connection, NAME)
    make_indexes(connection, NAME)
    ask_layout(connection, NAME, shards=2)
    add_clusters(connection, NAME, ["b"])
    request_detach(connection, NAME, "b")
    ask_attach(connection, NAME, cluster="b")
    first, other, view = OutboxTable(connection, NAME), OutboxTable(connection, NAME, shard=1), uuid4()
    first.take_over(view, [], member="test")
    assert ClusterStatements(first).close_attach(view, "b")
    with pytest.raises(TakeOverError):
        other.take_over(uuid4(), [], member="test")
    connection.execute("UPDATE outbox_state SET attach_wanted = NULL")  # as versions left it in which shards disagreed
    other.take_over(uuid4(), [], member="test")


def test_a_cluster_is_detached_while_the_tables_are_migrated(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """Both lock the shards first, and so neither waits for the other for ever."""
    init_outbox(connection, NAME)
    add_clusters(connection, NAME, ["b"])
    with psycopg.connect(database) as migrating:
        migrating.execute("LOCK TABLE outbox_shard IN ACCESS EXCLUSIVE MODE")  # as migration 015 begins
        ended = meanwhile(database, connection, lambda other: request_detach(other, NAME, "b"))
        migrating.execute("SET lock_timeout = '1min'")  # a deadlock is found within a second
        migrating.execute("LOCK TABLE outbox_ledger, outbox_state IN ACCESS EXCLUSIVE MODE")
    assert ended() is None
    assert read_membership(connection, NAME).parts["b"] == "owed"


def test_a_request_for_other_shards_is_withdrawn_when_a_cluster_ceases_to_count(
    connection: psycopg.Connection[Any],
) -> None:
    init_outbox(connection, NAME)
    add_clusters(connection, NAME, ["b", "c"])
    make_indexes(connection, NAME)
    OutboxTable(connection, NAME).take_over(uuid4(), [], member="test")  # else they would be there at once
    ask_layout(connection, NAME, shards=3)
    write_membership(connection, NAME, {"b": "primary", "primary": "backup"})
    assert read_layout(connection, NAME).wanted == 3, "all count"
    write_membership(connection, NAME, {"c": "owed"}, reasons={"c": "it is away"})
    assert read_layout(connection, NAME) == Layout(number=2, shards=1, wanted=None)
    told = "it is away. The request for 3 shards was withdrawn: ask for them again when all clusters count"
    assert [each.reason for each in read_membership(connection, NAME).clusters if each.name == "c"] == [told]
    with pytest.raises(ConfigurationError, match="cluster c does not count"):
        ask_layout(connection, NAME, shards=3)
    ask_layout(connection, NAME, shards=None)


def test_a_request_for_other_shards_is_withdrawn_when_a_cluster_is_added_that_lacks_records(
    connection: psycopg.Connection[Any],
) -> None:
    init_outbox(connection, NAME)
    make_indexes(connection, NAME)
    table, view = OutboxTable(connection, NAME), uuid4()
    table.take_over(view, [], member="test")
    table.begin(view, delivery="exactly_once", witness=LedgerPosition())
    ask_layout(connection, NAME, shards=3)
    assert add_clusters(connection, NAME, []) == {}
    assert read_layout(connection, NAME).wanted == 3
    assert add_clusters(connection, NAME, ["b"]) == {"b": "owed"}
    assert read_layout(connection, NAME).wanted is None


def test_what_is_kept_for_too_long_is_forgotten_and_only_a_cluster_that_lacks_it_is_to_be_reset(
    connection: psycopg.Connection[Any],
) -> None:
    init_outbox(connection, NAME)
    add_clusters(connection, NAME, ["b", "c"])
    table, view = OutboxTable(connection, NAME), uuid4()
    table.take_over(view, [], member="test")
    table.begin(view, delivery="exactly_once", witness=LedgerPosition())
    write_membership(connection, NAME, {"b": "owed", "c": "owed"}, reasons={"b": "b is away", "c": "c is away"})
    view = uuid4()
    table.take_over(view, [], member="test")
    owed = ClusterStatements(table)
    for batch in (1, 2, 3):
        owed.keep_owed(view, batch, "[]", ids=[], unparked=[], snapshot=Snapshot(1, 1))
    connection.execute("UPDATE outbox_owed SET kept_at = kept_at - make_interval(hours => 3 - batch::int)")
    for name, batch in (("b", 0), ("c", 1)):
        connection.execute("UPDATE outbox_ledger SET witnessed_batch = %s WHERE cluster = %s", (batch, name))

    def reasons() -> dict[str, str | None]:
        return {each.name: each.reason for each in read_membership(connection, NAME).clusters if each.name != "primary"}

    assert owed.drop_owed(view, seconds=3 * 3600, most_bytes=10**9) == 0
    assert reasons() == {"b": "b is away", "c": "c is away"}
    assert owed.drop_owed(view, seconds=90 * 60, most_bytes=10**9) == 1
    kept = connection.execute("SELECT array_agg(batch ORDER BY batch) FROM outbox_owed").fetchone()
    assert kept == ([2, 3],)
    told = reasons()
    assert told["c"] == "c is away", "it has what is forgotten"
    assert "airflow-outbox clusters reset NAME" in (told["b"] or "")
